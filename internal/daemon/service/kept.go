package service

import (
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// replicator returns the engine if it keeps checkpoints elsewhere too, or nil.
func (s *Service) replicator() engine.Replicator {
	r, _ := s.cfg.Engine.(engine.Replicator)
	return r
}

// stored says where a checkpoint is kept; it is empty if there is only one place.
func (s *Service) stored(checkpoint string) sandbox.Stored {
	r := s.replicator()
	if r == nil || checkpoint == "" {
		return ""
	}
	at := r.Kept(checkpoint)
	if at == engine.PlaceUnknown {
		return ""
	}
	return sandbox.Stored(at)
}

// keepState notes in a record that a checkpoint is the sandbox's newest automatic one. The
// one before it stays until the new one is stored everywhere; see [Service.settleStored].
func (s *Service) keepState(r *store.Record, state store.KeptState) {
	k := &r.Kept
	k.FailedAt, k.Failure, k.Restores = time.Time{}, "", 0
	if s.replicator() == nil {
		k.Last, k.Next = state, store.KeptState{}
		return
	}
	k.Next = state
}

// storing notes that a checkpoint is to be stored elsewhere, so that the one before it can
// be removed.
func (s *Service) storing(r *store.Record) {
	if r.Kept.Next.Checkpoint == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unstored[r.ID] = r.Kept.Next.Checkpoint
}

// fate is what the engine knows of an instance that has failed, and of the automatic
// checkpoints of its sandbox.
type fate struct {
	of string // the instance
	// lost and stopped are those of [engine.Fencer]. An engine that loses no instances has
	// neither.
	lost, stopped bool
	// gone are checkpoints that are nowhere any more, and pending those that are only where
	// the instance was.
	gone, pending map[string]bool
	looked        store.Kept
}

// fateOf asks the engine, which may have to wait for the store: not within a transaction.
func (s *Service) fateOf(r *store.Record) fate {
	f := fate{of: r.Instance, looked: r.Kept, gone: map[string]bool{}, pending: map[string]bool{}}
	if fencer, ok := s.cfg.Engine.(engine.Fencer); ok {
		f.lost, f.stopped = fencer.Lost(r.Instance)
	}
	replicator, scattered := s.replicator(), engine.Scattered(nil)
	if replicator == nil {
		scattered, _ = s.cfg.Engine.(engine.Scattered)
	}
	for _, state := range []store.KeptState{r.Kept.Newest(), r.Kept.Last} {
		id := state.Checkpoint
		switch {
		case id == "":
		case replicator != nil:
			at := replicator.Kept(id)
			f.gone[id], f.pending[id] = at == "", at == engine.PlacePending
		case scattered != nil:
			f.gone[id] = scattered.Standing(id) == engine.StandingNone
		}
	}
	return f
}

// knows reports whether a record is the one of which the engine was asked.
func (f *fate) knows(r *store.Record) bool {
	return f.of == r.Instance && f.looked.Last.Checkpoint == r.Kept.Last.Checkpoint && f.looked.Next.Checkpoint == r.Kept.Next.Checkpoint
}

// fallback returns the newest automatic checkpoint from which a sandbox can continue that
// has failed through no fault of its own, and otherwise what to add to the reason.
func fallback(r *store.Record, f *fate) (back store.KeptState, but string) {
	newest := r.Kept.Newest()
	if r.State != sandbox.StateRunning || r.CheckpointIntervalSeconds == 0 || newest.Checkpoint == "" {
		return back, ""
	}
	if r.Kept.Restores >= sandbox.MaxCheckpointRestores {
		return back, fmt.Sprintf("; it has failed %d times since its automatic checkpoint of %s", r.Kept.Restores+1, newest.At.Format(time.RFC3339))
	}
	if f.lost && !f.stopped {
		// Two instances of one sandbox must never run.
		return back, "; it does not continue from its automatic checkpoint, because it may still run there"
	}
	// What is only on a lost machine may be gone. If there is no other, the machine may return.
	last := r.Kept.Last
	usable := last.Checkpoint != newest.Checkpoint && last.Checkpoint != "" && !f.gone[last.Checkpoint]
	if usable && (f.gone[newest.Checkpoint] || f.lost && f.pending[newest.Checkpoint]) {
		return last, ""
	}
	if f.gone[newest.Checkpoint] {
		return back, fmt.Sprintf("; its automatic checkpoint of %s is lost, too", newest.At.Format(time.RFC3339))
	}
	return newest, ""
}

// fallBack changes the record of a failed sandbox: it is paused with the state of an
// automatic checkpoint, and continues from it at its next call.
func fallBack(r *store.Record, back store.KeptState, reason string) {
	now := time.Now().UTC()
	r.State, r.Checkpoint, r.PausedAt = sandbox.StatePaused, back.Checkpoint, &now
	r.PausedExpiresAt = expiry(now, r.PausedLifetimeSeconds)
	r.Applying = false
	if back == r.Kept.Last {
		r.Kept.Next = store.KeptState{} // it is of a time that has not happened now
	}
	r.Kept.Restores++
	at := back.At
	noteMoment(r, sandbox.Moment{Kind: sandbox.MomentRestored, At: now, SandboxID: r.ID, StateAt: &at, Reason: reason})
	noteMoment(r, sandbox.Moment{Kind: sandbox.MomentPaused, At: now})
}

// expiry returns when a time of so many seconds ends; nil for 0, which is no bound.
func expiry(from time.Time, seconds int64) *time.Time {
	if seconds == 0 {
		return nil
	}
	at := from.Add(time.Duration(seconds) * time.Second)
	return &at
}

// lastCheckpoint is what callers see of a sandbox's automatic checkpoints.
func (s *Service) lastCheckpoint(r *store.Record) *sandbox.AutomaticCheckpoint {
	k := &r.Kept
	newest := k.Newest()
	if r.State.Final() || newest.Checkpoint == "" && k.Failure == "" {
		return nil
	}
	c := &sandbox.AutomaticCheckpoint{Failure: k.Failure, Restores: k.Restores}
	if newest.Checkpoint != "" {
		at := newest.At
		c.At, c.SizeBytes, c.Stored = &at, newest.SizeBytes, s.stored(newest.Checkpoint)
	}
	if k.Failure != "" {
		at := k.FailedAt
		c.FailedAt = &at
	} else if kept := s.replicator(); kept != nil && newest.Checkpoint != "" {
		if waits, failure := kept.Waits(newest.Checkpoint); waits && failure != nil {
			c.Failure = fmt.Sprintf("it is not in the object store yet: %v", failure)
		}
	}
	return c
}
