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

// root returns the root of an instance that is to be made. If there are several machines, the
// one that has the checkpoint has its root, too.
func (e *Engine) root(ctx context.Context, r engine.Root) (engine.Root, error) {
	if e.scattered == nil {
		return e.LocalRoot(ctx, r)
	}
	here, _ := e.here(r)
	return here, nil
}

// LocalRoot implements [engine.RootFetcher].
func (e *Engine) LocalRoot(ctx context.Context, r engine.Root) (engine.Root, error) {
	here, missing := e.here(r)
	if !missing {
		return here, nil
	}
	err := e.FetchRoot(ctx, r.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		err = sandbox.Wrap(sandbox.CodeUnavailable, err, "the files of the template are neither on this server nor whole in the object store; start the server that has built the template, which stores them")
	}
	return here, err
}

// here returns a root as it is on this machine, and whether it may have to be fetched.
func (e *Engine) here(r engine.Root) (here engine.Root, missing bool) {
	if e.cfg.Roots == nil {
		return r, false
	}
	if _, err := os.Stat(r.Dir); err == nil {
		return r, false
	}
	return e.cfg.Roots.Here(r), true
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
