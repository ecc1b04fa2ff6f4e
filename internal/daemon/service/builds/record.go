package builds

import (
	"context"
	"errors"
	"maps"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// noteMachine notes that a build has a sandbox, or no longer has it.
func (x *Builder) noteMachine(id string, here bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !here {
		delete(x.machines, id)
		return
	}
	if x.machines == nil {
		x.machines = map[string]bool{}
	}
	x.machines[id] = true
}

// Owns reports whether an instance is a build's sandbox.
func (x *Builder) Owns(id string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.machines[id]
}

// keepEnd keeps the end of a build that the store could not take, for example because
// the disk is full. [Builder.recordEnds] tries again.
func (x *Builder) keepEnd(r store.BuildRecord) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ends == nil {
		x.ends = map[string]store.BuildRecord{}
	}
	x.ends[r.ID] = r
}

// endOf returns a build whose end is not in the store yet, or nil.
func (x *Builder) endOf(id string) *sandbox.Build {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r, ok := x.ends[id]; ok {
		return &r.Build
	}
	return nil
}

// recordEnds records what [Builder.keepEnd] has kept.
func (x *Builder) recordEnds(ctx context.Context) error {
	x.mu.Lock()
	ends := maps.Clone(x.ends)
	x.mu.Unlock()
	var errs []error
	for id, r := range ends {
		if err := x.cfg.Store.UpdateBuild(ctx, r); err != nil {
			errs = append(errs, err)
			continue
		}
		x.mu.Lock()
		delete(x.ends, id)
		x.mu.Unlock()
	}
	return errors.Join(errs...)
}
