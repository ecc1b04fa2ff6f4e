package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
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
			return "", fmt.Errorf("%w: its root %s is gone", errLocal, r.Digest)
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

// root returns a root as it is on this machine, and fetches it if the bucket has it. A node
// may have it although this machine does not.
func (e *Engine) root(ctx context.Context, r engine.Root) (engine.Root, error) {
	if e.cfg.Roots == nil {
		return r, nil
	}
	if _, err := os.Stat(r.Dir); err == nil {
		return r, nil
	}
	here := e.cfg.Roots.Here(r)
	err := e.fetchRoot(ctx, sharedRoot(r.Digest), r.Digest)
	if err != nil && e.scattered == nil {
		return r, e.forCaller(err)
	}
	return here, nil
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

// SetRootsInUse sets what returns the digests of the roots that sandboxes need. They are kept
// in the bucket even if no checkpoint there needs them.
func (e *Engine) SetRootsInUse(inUse func(context.Context) (map[string]bool, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rootsInUse = inUse
}

// markRoots marks the roots that sandboxes need, as far as the bucket has them.
func (e *Engine) markRoots(ctx context.Context, chunks map[sum]bool, shared map[string]bool) error {
	e.mu.Lock()
	inUse := e.rootsInUse
	e.mu.Unlock()
	if inUse == nil {
		return nil
	}
	digests, err := inUse(ctx)
	if err != nil {
		return err
	}
	for digest := range digests {
		if err := e.markShared(ctx, sharedRoot(digest), chunks, shared); err != nil && !errors.Is(err, errDamaged) {
			return err
		}
	}
	return nil
}

// rootUsed has the root of a new instance stored ahead of need: if the next server is on
// another machine, it does not have the root.
func (e *Engine) rootUsed(digest string) {
	if e.cfg.Build == nil || e.cfg.Roots == nil || digest == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.roots[digest] {
		return
	}
	e.roots[digest] = true
	e.wg.Go(func() { e.storeRoot(digest) })
}

// storeRoot stores a root, and tries again until that has succeeded.
func (e *Engine) storeRoot(digest string) {
	_ = e.retry(func() error {
		e.collecting.RLock()
		defer e.collecting.RUnlock()
		_, err := e.shareRoot(e.ctx, engine.Root{Digest: digest})
		return err
	})
}

// retry does something with the bucket again and again until it succeeds, once the bucket is
// known to be this installation's. It gives up if this machine is to blame, or was replaced.
func (e *Engine) retry(do func() error) error {
	for failures := 0; e.ctx.Err() == nil; failures++ {
		more := e.uploadable() // before it is looked for
		e.mu.Lock()
		connected := e.connected
		e.mu.Unlock()
		if !connected {
			failures = -1
			select {
			case <-more:
			case <-e.ctx.Done():
			}
			continue
		}
		err := do()
		if errors.Is(err, errLocal) || errors.Is(err, errReplaced) {
			return err
		}
		e.note(err)
		if err == nil {
			return nil
		}
		t := time.NewTimer(pauseAfter(failures))
		select {
		case <-t.C:
		case <-e.ctx.Done():
			t.Stop()
		}
	}
	return context.Cause(e.ctx)
}
