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
	return sandbox.Stored(r.Kept(checkpoint))
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

// fallback returns the newest automatic checkpoint from which a sandbox can continue that
// has failed through no fault of its own, and otherwise what to add to the reason.
func (s *Service) fallback(r *store.Record) (back store.KeptState, but string) {
	newest := r.Kept.Newest()
	if r.State != sandbox.StateRunning || r.CheckpointIntervalSeconds == 0 || newest.Checkpoint == "" {
		return back, ""
	}
	if r.Kept.Restores >= sandbox.MaxCheckpointRestores {
		return back, fmt.Sprintf("; it has failed %d times since its automatic checkpoint of %s", r.Kept.Restores+1, newest.At.Format(time.RFC3339))
	}
	f, ok := s.cfg.Engine.(engine.Fencer)
	if !ok {
		return newest, ""
	}
	lost, stopped := f.Lost(r.Instance)
	if lost && !stopped {
		// Two instances of one sandbox must never run.
		return back, "; it does not continue from its automatic checkpoint, because it may still run there"
	}
	if kept := s.replicator(); kept != nil && r.Kept.Last.Checkpoint != "" {
		// What is only on a lost machine may be gone, or is gone already.
		if at := kept.Kept(newest.Checkpoint); at == "" || lost && at == engine.PlacePending {
			return r.Kept.Last, ""
		}
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
