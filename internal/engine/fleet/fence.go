package fleet

import (
	"context"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
)

var _ engine.Fencer = (*Fleet)(nil)

// Fence implements [engine.Fencer]. That an instance is fenced is recorded after it is so;
// its lease is renewed from the beginning, or it would stop if that could not be recorded.
func (f *Fleet) Fence(ctx context.Context, id string) error {
	f.mu.Lock()
	e := f.instances[id]
	var there *remote.Engine
	var err error
	switch {
	case e == nil || e.Fenced: // it is on this machine, or is fenced
		f.mu.Unlock()
		return nil
	case e.GivenUp:
		err = engine.ErrNotFound
	case e.site.remote == nil:
		err = f.away(e.site)
	default:
		there, e.fencing = e.site.remote, true
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if err := there.Fence(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.instances[id]
	if now == nil || now.GivenUp {
		return engine.ErrNotFound
	}
	if now.site.givingUp {
		return f.away(now.site)
	}
	fenced := *now
	fenced.Fenced = true
	return f.setInstance(id, fenced)
}

// Lost implements [engine.Fencer].
func (f *Fleet) Lost(id string) (lost, stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.instances[id]
	if e == nil || !e.GivenUp {
		return false, false
	}
	return true, e.Fenced
}

// fenced lists the fenced instances of a node.
func (f *Fleet) fenced(s *site) (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, e := range s.instances {
		if (e.Fenced || e.fencing) && !e.GivenUp {
			ids = append(ids, id)
		}
	}
	return ids
}
