package service

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/layer"
	"github.com/cove-sh/cove/sandbox"
)

// subject is a sandbox or snapshot to compare, and where its changed files are
// read.
type subject struct {
	id     string
	origin string
	root   engine.Root
	source engine.Source
	// release ends the use of the checkpoint.
	release func()
}

// Diff implements [sandbox.Snapshots].
func (s *Service) Diff(ctx context.Context, ref string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Diff, error) {
		if err := checkDiff(&req); err != nil {
			return nil, err
		}
		if err := s.needCheckpointer(); err != nil {
			return nil, err
		}
		to, err := s.subjectFor(c, ref)
		if err != nil {
			return nil, err
		}
		defer to.release()
		if req.Against == "" {
			return s.diff(c.Ctx, nil, to, &req)
		}
		from, err := s.subjectFor(c, req.Against)
		if err != nil {
			return nil, err
		}
		defer from.release()
		return s.diff(c.Ctx, from, to, &req)
	})
}

func checkDiff(req *sandbox.DiffRequest) error {
	req.Limit = cmp.Or(req.Limit, sandbox.DefaultDiffLimit)
	if err := validate.Range("limit", int64(req.Limit), 1, sandbox.MaxDiffLimit); err != nil {
		return err
	}
	return checkPaths(req.Paths)
}

func checkPaths(paths []string) error {
	if len(paths) > sandbox.MaxDiffPaths {
		return validate.Errorf("%d paths are given; use at most %d", len(paths), sandbox.MaxDiffPaths)
	}
	for _, p := range paths {
		if err := checkPath("paths", p); err != nil {
			return err
		}
	}
	return nil
}

// checkPath checks an absolute path in a field of a request.
func checkPath(field, p string) error {
	if err := validate.Path(field, p); err != nil {
		return err
	}
	if p == "" || p[0] != '/' {
		return validate.Errorf("path %s must be absolute; begin it with /", validate.Quote(p))
	}
	return nil
}

// subjectFor finds a sandbox or a snapshot of the caller by id or name. If both have
// the name, it is the sandbox.
func (s *Service) subjectFor(c *call.Call, ref string) (*subject, error) {
	if !ids.IsSnapshot(ref) {
		r, err := c.Resolve(ref)
		if err == nil {
			return s.sandboxSubject(&r)
		}
		if sandbox.CodeOf(err) != sandbox.CodeNotFound || ids.IsSandbox(ref) {
			return nil, err
		}
	}
	snap, err := c.Snapshot(ref)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox or snapshot %s; list them to see which exist", validate.Quote(ref))
	}
	if err != nil {
		return nil, err
	}
	root, err := startup.RootOf(snap.Root)
	if err != nil {
		return nil, err
	}
	return &subject{
		id: snap.ID, origin: snap.Origin, root: root, source: engine.Source{Checkpoint: snap.Checkpoint}, release: s.use(snap.Checkpoint),
	}, nil
}

func (s *Service) sandboxSubject(r *store.Record) (*subject, error) {
	root, err := startup.RootOf(r.Root)
	if err != nil {
		return nil, err
	}
	sub := &subject{id: r.ID, origin: r.Origin, root: root, release: func() {}}
	switch r.State {
	case sandbox.StateRunning:
		sub.source.Instance = r.Instance
	case sandbox.StatePaused:
		sub.source.Checkpoint, sub.release = r.Checkpoint, s.use(r.Checkpoint)
	default:
		return nil, call.NotRunning(r)
	}
	return sub, nil
}

// diff compares two subjects that were made from the same template, or one
// with its template.
func (s *Service) diff(ctx context.Context, from, to *subject, req *sandbox.DiffRequest) (*sandbox.Diff, error) {
	if from != nil && from.origin != to.origin {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "%s and %s were created from different templates; compare each with its own template by leaving out against", from.id, to.id)
	}
	lower, err := s.openLower(ctx, to.root)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	opts := layer.ReadOptions{}
	if req.Patch {
		opts.Keep = func(string) bool { return true }
	}
	var a, b *layer.Layer
	g, gctx := errgroup.WithContext(ctx)
	if from != nil {
		g.Go(func() (err error) { a, err = s.readLayer(gctx, from, opts, nil); return err })
	}
	g.Go(func() (err error) { b, err = s.readLayer(gctx, to, opts, nil); return err })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return layer.Compare(ctx, layer.View{Lower: lower, Layer: a}, layer.View{Lower: lower, Layer: b}, layer.CompareOptions{
		Paths: req.Paths, Limit: req.Limit, Patch: req.Patch,
	})
}

// openLower opens the template below a layer as sandboxes see it.
func (s *Service) openLower(ctx context.Context, root engine.Root) (*layer.Dir, error) {
	if f, ok := s.cfg.Engine.(engine.RootFetcher); ok {
		var err error
		if root, err = f.LocalRoot(ctx, root); err != nil {
			return nil, err
		}
	}
	binds := make([]layer.Bind, len(root.Binds))
	for i, b := range root.Binds {
		binds[i] = layer.Bind{Source: b.Source, Target: b.Target}
	}
	return layer.OpenDir(root.Dir, binds, mapOwners(os.Geteuid(), os.Getegid()))
}

// mapOwners maps owners on the host to those in a sandbox. If the daemon is not root,
// the sandbox has only the daemon's own user and group, as root.
func mapOwners(uid, gid int) func(uint32, uint32) (uint32, uint32) {
	if uid == 0 {
		return nil
	}
	const nobody = 65534
	return func(u, g uint32) (uint32, uint32) {
		mapped := [2]uint32{nobody, nobody}
		if int(u) == uid {
			mapped[0] = 0
		}
		if int(g) == gid {
			mapped[1] = 0
		}
		return mapped[0], mapped[1]
	}
}

// readLayer reads what a subject has changed, and copies the stream to copyTo unless
// that is nil.
func (s *Service) readLayer(ctx context.Context, of *subject, opts layer.ReadOptions, copyTo io.Writer) (*layer.Layer, error) {
	r, err := s.checkpointer.Changes(ctx, of.source)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, call.Unavailable(err, "sandbox %s ended or changed during the call; check its state and try again", of.id)
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	stream := io.Reader(r)
	if copyTo != nil {
		stream = io.TeeReader(r, copyTo)
	}
	l, err := layer.Read(ctx, stream, opts)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal && !call.DiskFull(err) {
		return nil, call.Unavailable(err, "cannot read the changed files of %s; try again, and see the server's log for details", of.id)
	}
	return l, err
}
