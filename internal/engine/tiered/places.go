package tiered

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Place implements [engine.Placer]. It returns "" if there is one place only.
func (e *Engine) Place(r sandbox.Resources) string {
	if p, ok := e.Inner.(engine.Placer); ok {
		return p.Place(r)
	}
	return ""
}

// PlaceOf implements [engine.Placer].
func (e *Engine) PlaceOf(of engine.Source) string {
	p, ok := e.Inner.(engine.Placer)
	if !ok || of.Instance == "" && e.Kept(of.Checkpoint) == engine.PlaceRemote {
		return ""
	}
	return p.PlaceOf(of)
}

// A machine may be for the instances of one family only; see [engine.Spec]. A checkpoint that is
// on a machine which is not for the instance that is to continue from it is stored first, and
// then fetched to another machine.

// foreign reports whether the machine that has a checkpoint is not for the instance that is to
// continue from it.
func (e *Engine) foreign(id string, n need) bool {
	return e.scattered != nil && n.spec != nil && !e.scattered.Takes(id, n.spec.Family)
}

// suits reports whether a fetch that somebody else has begun brings the checkpoint to a machine
// that is for a need. The caller holds mu.
func (e *Engine) suits(id string, ent *entry, f *fetch, n need) bool {
	if e.scattered == nil || n.spec == nil {
		return true
	}
	if f.early() { // it is there
		return !e.foreign(id, n)
	}
	family := ent.Family
	if f.spec != nil {
		family = f.spec.Family
	}
	return family == n.spec.Family
}

// awaitStored waits until a checkpoint is in the bucket, if an instance is to continue from
// it and its machine is being emptied or is not for the instance. It does not wait if the
// bucket does not work or the machine is away: then the instance continues where the checkpoint
// is, if it can.
func (e *Engine) awaitStored(ctx context.Context, id string, n need) error {
	for e.scattered != nil && n.spec != nil {
		e.mu.Lock()
		ent, progress := e.entries[id], e.progress
		wait := ent != nil && !ent.stored && !ent.removed && ent.failures == 0 && e.connected && e.failure == nil
		e.mu.Unlock()
		if !wait || !e.mustLeave(id, n) {
			return nil
		}
		select {
		case <-progress:
		case <-time.After(lookAgain): // the machine may be away by now
		case <-ctx.Done():
			return sandbox.Wrap(sandbox.CodeUnavailable, context.Cause(ctx), "the state is being stored, so that the sandbox can run on another node; try again in a while")
		}
	}
	return nil
}

// lookAgain is how often a wait for a checkpoint looks whether its machine is there.
const lookAgain = time.Second

// mustLeave reports whether a checkpoint is on a machine that is there, and where the instance
// that is to continue from it cannot run.
func (e *Engine) mustLeave(id string, n need) bool {
	switch e.scattered.Standing(id) {
	case engine.StandingLeaving:
		return true
	case engine.StandingReady, engine.StandingDraining:
		return e.foreign(id, n)
	}
	return false
}

// turn waits until the checkpoint can be brought to a machine for this instance, if none has it
// that is for the instance. Instances of several families that continue from one checkpoint
// would otherwise take it away from each other.
func (e *Engine) turn(ctx context.Context, id string, n need) (next func(), err error) {
	if !e.homeless(id, n) {
		return func() {}, nil
	}
	e.mu.Lock()
	ent := e.entries[id]
	if ent == nil {
		e.mu.Unlock()
		return func() {}, nil
	}
	if ent.turns == nil {
		ent.turns = semaphore.NewWeighted(1)
	}
	turns := ent.turns
	e.mu.Unlock()
	if err := turns.Acquire(ctx, 1); err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, context.Cause(ctx), "the kept state is being brought to other nodes; try again in a while")
	}
	if !e.homeless(id, n) { // another of the family has brought it
		turns.Release(1)
		return func() {}, nil
	}
	return func() { turns.Release(1) }, nil
}

// homeless reports whether no machine has a checkpoint that is for the instance.
func (e *Engine) homeless(id string, n need) bool {
	return e.foreign(id, n) || e.scattered != nil && n.spec.Family != "" && e.scattered.Standing(id) == engine.StandingNone
}

// Holds implements [engine.Replicator].
func (e *Engine) Holds(ctx context.Context, ids []string) bool {
	e.mu.Lock()
	held := e.connected && e.failure == nil
	for _, id := range ids {
		ent := e.entries[id]
		held = held && ent != nil && ent.stored && !ent.removed
	}
	e.mu.Unlock()
	for _, id := range ids {
		if !held {
			return false
		}
		_, err := e.vessel.bucket.Stat(ctx, checkpointObject(id))
		held = err == nil
	}
	return held
}
