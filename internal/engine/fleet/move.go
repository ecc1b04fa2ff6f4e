package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// OnReach implements [engine.Scattered].
func (f *Fleet) OnReach(reached func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reached = reached
}

// Standing implements [engine.Scattered].
func (f *Fleet) Standing(id string) engine.Standing {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.checkpoints[id]
	switch {
	case k == nil:
		return engine.StandingNone
	case k.site != f.local && k.site.remote == nil:
		return engine.StandingAway
	case k.site.member.Moving:
		return engine.StandingLeaving
	case k.site.member.Draining || k.site.member.Retired:
		return engine.StandingDraining
	}
	return engine.StandingReady
}

// Export implements [engine.Portable]. What a node says of whose the checkpoint is, and of
// its root, is not taken; nor are the programs that it sends.
func (f *Fleet) Export(ctx context.Context, id string) (*engine.Export, error) {
	s, err := f.siteOfCheckpoint(id)
	if err != nil {
		return nil, err
	}
	p, err := f.portable(s)
	if err != nil {
		return nil, err
	}
	out, err := p.Export(ctx, id)
	if err != nil || s == f.local {
		return out, err
	}
	f.mu.Lock()
	k := f.checkpoints[id]
	f.mu.Unlock()
	if k == nil || k.site != s {
		out.Close()
		return nil, engine.ErrNotFound
	}
	size := out.SizeBytes
	out.Checkpoint = k.Checkpoint
	out.SizeBytes = size
	for i := range out.Files {
		if file := &out.Files[i]; file.Shared != "" {
			file.ReadCloser.Close()
			file.ReadCloser = &sharedFile{open: f.cfg.Shared, name: file.Shared, node: s.name}
		}
	}
	return out, nil
}

// sharedFile is a file that checkpoints share, of which this machine has the content.
type sharedFile struct {
	open func(name string) (io.ReadCloser, error)
	name string
	node string
	from io.ReadCloser
}

func (s *sharedFile) Read(p []byte) (int, error) {
	if s.from == nil {
		err := errors.New("there are none")
		if s.open != nil {
			s.from, err = s.open(s.name)
		}
		if err != nil {
			return 0, fmt.Errorf("node %s has a build of cove that neither the server nor the object store has (%w), so what runs with that build stays there", s.node, err)
		}
	}
	return s.from.Read(p)
}

func (s *sharedFile) Close() error {
	if s.from == nil {
		return nil
	}
	return s.from.Close()
}

func (f *Fleet) portable(s *site) (engine.Portable, error) {
	e, err := f.engineOf(s)
	if err != nil {
		return nil, err
	}
	if p, ok := e.(engine.Portable); ok {
		return p, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeUnsupported, "%s cannot copy the state of sandboxes", s.name)
}

// Import implements [engine.Portable].
func (f *Fleet) Import(ctx context.Context, c engine.Checkpoint, description []byte, fetch engine.Fetch) (engine.Checkpoint, error) {
	return f.ImportFor(ctx, nil, c, description, fetch, nil)
}

// ImportFor implements [engine.Scattered].
func (f *Fleet) ImportFor(ctx context.Context, spec *engine.Spec, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	reads := spec == nil
	if reads {
		spec = &engine.Spec{Resources: c.Resources, Family: c.Family}
	}
	sites, err := f.candidates(spec)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if reads && c.Family != "" {
		if sites = f.claimedBy(sites, c.Family); len(sites) == 0 {
			return engine.Checkpoint{}, sandbox.Errorf(sandbox.CodeUnavailable, "the state of a dedicated sandbox is in the object store, and is only read where the sandbox or one of its forks runs; resume one, and try again")
		}
	}
	err = noRoom("no other node has room for the sandbox; kill or pause sandboxes that are no longer needed, add a node, or retry later")
	from := &source{fetch: fetch}
	for _, s := range sites {
		if f.has(s, c.ID) || !f.fits(s, c.SizeBytes) {
			continue
		}
		var made engine.Checkpoint
		early := newEarly(usable)
		if made, err = f.importClaimed(ctx, s, spec, c, description, from.get, early); err == nil {
			return made, nil
		}
		if early.used || ctx.Err() != nil || from.failed.Load() || errors.Is(err, errUnrecorded) {
			break // no other machine can do better
		}
		f.log.Warn("a checkpoint cannot move to a machine", "node", s.name, "checkpoint", c.ID, "error", err)
	}
	return engine.Checkpoint{}, err
}

// errUnrecorded means that the server cannot record where a checkpoint is.
var errUnrecorded = errors.New("the place of a checkpoint cannot be recorded")

// source remembers whether it failed itself, and not the machine that it was to serve.
type source struct {
	fetch  engine.Fetch
	failed atomic.Bool
}

func (s *source) get(want engine.ExportFile, to io.WriterAt) error {
	w := &sink{WriterAt: to}
	target := io.WriterAt(w)
	if p, ok := to.(engine.PartWriter); ok {
		target = earlySink{w, p}
	}
	err := s.fetch(want, target)
	// A machine may also ask for what there is not.
	if err != nil && !w.failed.Load() && !errors.Is(err, engine.ErrNoFile) {
		s.failed.Store(true)
	}
	return err
}

// sink remembers whether a write failed.
type sink struct {
	io.WriterAt
	failed atomic.Bool
}

func (s *sink) WriteAt(p []byte, at int64) (int, error) {
	n, err := s.WriterAt.WriteAt(p, at)
	if err != nil {
		s.failed.Store(true)
	}
	return n, err
}

// earlySink is a sink for a file that is in use while it is written.
type earlySink struct {
	*sink
	to engine.PartWriter
}

func (s earlySink) Wanted() <-chan engine.Part { return s.to.Wanted() }
func (s earlySink) Unneeded() <-chan struct{}  { return s.to.Unneeded() }

// has reports whether a machine has a checkpoint. A copy on a node that belongs to nobody is
// what an import that was cut off has left.
func (f *Fleet) has(s *site, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.checkpoints[id]
	return k != nil && k.site == s && (s == f.local || k.Checkpoint.Owner != "")
}

func (f *Fleet) fits(s *site, bytes int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.report.FreeDisk-diskFloor >= bytes
}

// importTo makes a checkpoint on a machine. It is then there, and nowhere else.
func (f *Fleet) importTo(ctx context.Context, s *site, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable *earlyUse) (engine.Checkpoint, error) {
	p, err := f.portable(s)
	if err != nil {
		return c, errors.Join(errAway, err)
	}
	// What a try that was cut off has left there, or what the machine was to remove.
	if err := p.RemoveCheckpoint(ctx, c.ID); err != nil {
		return c, err
	}
	f.mu.Lock()
	f.clearStale(s, c.ID)
	f.mu.Unlock()
	record := func(made engine.Checkpoint) (engine.Checkpoint, error) {
		c.SizeBytes = made.SizeBytes
		if s == f.local {
			c = made
		}
		return c, f.recordMoved(s, c)
	}
	if e, ok := p.(engine.EarlyImporter); ok && usable.call != nil && f.canBeEarly(s) {
		return f.importEarly(ctx, e, c, description, fetch, usable, record)
	}
	made, err := p.Import(ctx, c, description, fetch)
	if err != nil {
		return c, err
	}
	return record(made)
}

// recordMoved records that a checkpoint is on a machine, and removes it where it was.
func (f *Fleet) recordMoved(s *site, c engine.Checkpoint) (err error) {
	f.mu.Lock()
	before := f.checkpoints[c.ID]
	moved := before != nil && before.site != s
	if moved && before.site != f.local {
		err = f.markStale(before.site, c.ID)
	}
	if err == nil {
		err = f.setCheckpoint(kept{site: s, Checkpoint: c})
	}
	f.mu.Unlock()
	if err != nil {
		return errors.Join(errUnrecorded, err)
	}
	if moved {
		f.wg.Go(func() { f.removeBefore(before.site, c.ID) })
	}
	return nil
}

// removeTimeout bounds the removal of a checkpoint that has moved.
const removeTimeout = time.Minute

// removeBefore removes a checkpoint from where it was before it moved. A node that is away
// does so with its next connection, and this machine with the next start.
func (f *Fleet) removeBefore(s *site, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	var err error
	if s == f.local {
		if keeper, ok := s.local.(engine.Checkpointer); ok {
			err = keeper.RemoveCheckpoint(ctx, id)
		}
	} else {
		f.mu.Lock()
		e, wanted := s.remote, !s.stale[id]
		f.mu.Unlock()
		if e == nil || wanted {
			return
		}
		err = f.removeStale(ctx, s, e, id)
	}
	if err != nil {
		f.log.Warn("a checkpoint that has moved is removed later", "node", s.name, "checkpoint", id, "error", err)
	}
}

var _ engine.Portable = (*remote.Engine)(nil)
