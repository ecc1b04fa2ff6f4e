package tiered

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// What is stored ahead of need: the programs of this build, and the roots of sandboxes, before
// any checkpoint needs them. The next server can be of another build and on another machine:
// then it has neither.

// errUse means that it is not known which roots sandboxes need.
var errUse = errors.New("it is not known which templates sandboxes need")

// useTimeout bounds how long that may take to be found out.
const useTimeout = time.Minute

// usedRoot is a root that sandboxes or templates of this process have.
type usedRoot struct {
	last   time.Time // when it was used
	stored bool      // or it cannot be
}

// SetRootsInUse sets what returns the digests of the roots that are needed. They are kept in
// the bucket even if no checkpoint there needs them. It is called once.
func (e *Engine) SetRootsInUse(inUse func(context.Context) (map[string]bool, error)) {
	e.mu.Lock()
	e.rootsInUse = inUse
	e.mu.Unlock()
	if e.scattered == nil || e.cfg.Roots == nil {
		return
	}
	e.wg.Go(func() { // those of sandboxes that an earlier process has made
		digests, err := inUse(e.ctx)
		if err != nil && e.ctx.Err() == nil {
			e.cfg.Log.Warn("templates of running sandboxes are stored in the object store later", "error", err)
		}
		for digest := range digests {
			if e.cfg.Roots.HasRoot(digest) {
				e.KeepRoot(digest)
			}
		}
	})
}

// KeepRoot has a root of this machine stored in the background. It stays in the bucket as long
// as it is in use; see [Engine.SetRootsInUse].
func (e *Engine) KeepRoot(digest string) {
	if e.cfg.Roots == nil || digest == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	used := e.roots[digest]
	used.last = time.Now()
	e.roots[digest] = used
	if !used.stored {
		e.wakeAhead()
	}
}

// CollectRoots says that some roots may not be in use any more: the next sweep looks for them.
func (e *Engine) CollectRoots() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty = true
}

// storeAhead stores one thing after another, until the engine is closed.
func (e *Engine) storeAhead() {
	if e.cfg.Build != nil {
		switch err := e.retry(func() error { return e.storeBuild(e.ctx) }); {
		case err == nil:
			e.cfg.Log.Info("the object store has the programs of this build")
		case errors.Is(err, errLocal):
			e.cfg.Log.Error("the programs of this build cannot be stored in the object store", "error", err)
		}
	}
	for {
		digest := e.nextRoot()
		if digest == "" {
			select {
			case <-e.ahead:
				continue
			case <-e.ctx.Done():
				return
			}
		}
		err := e.retry(func() error { return e.storeRoot(e.ctx, digest) })
		switch {
		case err == nil:
			e.cfg.Log.Info("the object store has the files of a template", "digest", digest)
		case e.ctx.Err() == nil:
			e.cfg.Log.Error("the files of a template cannot be stored in the object store", "digest", digest, "error", err)
		}
		e.mu.Lock()
		if used, ok := e.roots[digest]; ok {
			used.stored = true
			e.roots[digest] = used
		}
		e.mu.Unlock()
	}
}

// nextRoot returns a root that is to be stored, or "".
func (e *Engine) nextRoot() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for digest, used := range e.roots {
		if !used.stored {
			return digest
		}
	}
	return ""
}

func (e *Engine) storeRoot(ctx context.Context, digest string) error {
	e.collecting.RLock()
	defer e.collecting.RUnlock()
	if err := e.stillHolder(ctx); err != nil {
		return err
	}
	_, err := e.shareRoot(ctx, engine.Root{Digest: digest})
	return err
}

// stillHolder returns [errReplaced] if another daemon uses the bucket now.
func (e *Engine) stillHolder(ctx context.Context) error {
	h, err := e.readHolder(ctx)
	if err == nil && h.Token != e.token {
		err = errReplaced
	}
	return err
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

// neededRoots returns the roots that sandboxes and templates need. What was used just now
// counts, too: nothing else may know of it yet.
func (e *Engine) neededRoots(ctx context.Context) (map[string]bool, error) {
	e.mu.Lock()
	inUse, digests := e.rootsInUse, map[string]bool{}
	for digest, used := range e.roots {
		if time.Since(used.last) < grace {
			digests[digest] = true
		}
	}
	e.mu.Unlock()
	if inUse == nil {
		return digests, nil
	}
	limited, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	all, err := inUse(limited)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUse, err)
	}
	maps.Copy(digests, all)
	return digests, nil
}

// markRoots marks the roots that are needed, as far as the bucket has them.
func (e *Engine) markRoots(ctx context.Context, chunks map[sum]bool, shared map[string]bool) error {
	digests, err := e.neededRoots(ctx)
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

// forgetRoots forgets the roots that the bucket does not keep: they are stored again when they
// are used again, and at once if they are needed.
func (e *Engine) forgetRoots(ctx context.Context, shared map[string]bool) error {
	needed, err := e.neededRoots(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, digest := range slices.Collect(maps.Keys(e.roots)) {
		object, err := e.vessel.sharedObject(sharedRoot(digest))
		if err != nil {
			return err
		}
		used := e.roots[digest]
		switch {
		case !used.stored || shared[object]:
		case needed[digest] || time.Since(used.last) < grace:
			used.stored = false
			e.roots[digest] = used
			e.wakeAhead()
		default:
			delete(e.roots, digest)
		}
	}
	return nil
}

// wakeAhead has [Engine.storeAhead] look for what is to be stored.
func (e *Engine) wakeAhead() {
	select {
	case e.ahead <- struct{}{}:
	default: // it is looked for anyway
	}
}
