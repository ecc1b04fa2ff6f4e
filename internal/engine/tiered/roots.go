package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// sharedRoot is the name under which checkpoints share a root.
func sharedRoot(digest string) string { return "root-" + strings.ToLower(digest) }

// shareRoot stores a root unless it is there, and returns the name under which it is shared.
// The server that made the instance may have been another one, whose templates this machine
// does not have.
func (e *Engine) shareRoot(ctx context.Context, r engine.Root) (string, error) {
	if e.cfg.Roots == nil || r.Digest == "" {
		return "", nil
	}
	name := sharedRoot(r.Digest)
	if !e.cfg.Roots.HasRoot(r.Digest) {
		switch _, err := e.vessel.shared(ctx, name); {
		case errors.Is(err, errDamaged):
			return "", fmt.Errorf("%w: its root %s is neither here nor in the object store", errLocal, r.Digest)
		case err != nil:
			return "", err
		}
		return name, nil
	}
	read, write := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := e.cfg.Roots.PackRoot(ctx, r.Digest, write)
		if err != nil {
			err = fmt.Errorf("%w: %w", errLocal, err)
		}
		write.CloseWithError(err)
	}()
	err := e.vessel.share(ctx, name, read)
	read.CloseWithError(errors.New("nobody reads it any more"))
	<-done
	return name, err
}

// root returns a root as it is on this machine, and fetches it if the bucket has it. If there
// are several machines, the one that has the checkpoint has its root, too.
func (e *Engine) root(ctx context.Context, r engine.Root) (engine.Root, error) {
	if e.cfg.Roots == nil {
		return r, nil
	}
	if _, err := os.Stat(r.Dir); err == nil {
		return r, nil
	}
	here := e.cfg.Roots.Here(r)
	if e.scattered != nil {
		return here, nil
	}
	if err := e.fetchRoot(ctx, sharedRoot(r.Digest), r.Digest); err != nil {
		return r, e.forCaller("the kept state", err)
	}
	return here, nil
}

// LocalRoot implements [engine.RootFetcher].
func (e *Engine) LocalRoot(ctx context.Context, r engine.Root) (engine.Root, error) {
	if e.cfg.Roots == nil {
		return r, nil
	}
	if _, err := os.Stat(r.Dir); err == nil {
		return r, nil
	}
	err := e.FetchRoot(ctx, r.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		err = sandbox.Wrap(sandbox.CodeUnavailable, err, "the files of the template are neither on this server nor in the object store")
	}
	return e.cfg.Roots.Here(r), err
}

// rootFetch is a fetch of a template's root, which callers wait for.
type rootFetch struct {
	done chan struct{} // closed when err is set
	err  error
}

// FetchRoot makes a root that the bucket has on this machine. The error is [fs.ErrNotExist] if
// the bucket does not have it, or not whole. The fetch goes on if the caller ends, so that the
// next one finds it done.
func (e *Engine) FetchRoot(ctx context.Context, digest string) error {
	e.mu.Lock()
	f := e.fetchingRoots[digest]
	if f == nil {
		f = &rootFetch{done: make(chan struct{})}
		e.fetchingRoots[digest] = f
		e.wg.Go(func() {
			f.err = e.fetchForTemplate(digest)
			e.mu.Lock()
			delete(e.fetchingRoots, digest)
			e.mu.Unlock()
			close(f.done)
		})
	}
	e.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *Engine) fetchForTemplate(digest string) error {
	began := time.Now()
	err := e.fetchRoot(e.ctx, sharedRoot(digest), digest)
	switch {
	case err == nil:
		e.cfg.Log.Info("fetched the files of a template from the object store", "digest", digest, "took", time.Since(began).Round(time.Millisecond))
		return nil
	case errors.Is(err, errDamaged):
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	default:
		err = e.forCaller("the template", err)
	}
	e.cfg.Log.Error("fetch the files of a template from the object store", "digest", digest, "error", err)
	return err
}

// fetchRoot fetches what is shared under a name as a root, unless that is here.
func (e *Engine) fetchRoot(ctx context.Context, name, digest string) error {
	if e.cfg.Roots.HasRoot(digest) {
		return nil
	}
	f, err := e.vessel.shared(ctx, name)
	if err != nil {
		return err
	}
	if err := e.cfg.step("unpack root"); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(e.cfg.Dir, "root-")
	if err != nil {
		return err
	}
	defer tmp.Close()
	if err := os.Remove(tmp.Name()); err != nil { // it ends with this process
		return err
	}
	if err := tmp.Truncate(f.Size); err != nil {
		return err
	}
	if err := e.vessel.get(ctx, "", f, tmp); err != nil {
		return err
	}
	return e.cfg.Roots.UnpackRoot(ctx, digest, io.NewSectionReader(tmp, 0, f.Size), nil)
}
