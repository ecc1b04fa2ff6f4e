package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Kill implements [sandbox.Sandboxes].
func (s *Service) Kill(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.kill"), func(c *call.Call) (*sandbox.Sandbox, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		if r, err = s.kill(c.Ctx, r.ID, "killed by "+c.Caller.KeyID); err != nil {
			return nil, err
		}
		return s.view(r), nil
	})
}

var living = []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused}

// kill ends a sandbox and returns its record. Once started it continues even if ctx
// ends. It may be repeated.
func (s *Service) kill(ctx context.Context, id, reason string) (store.Record, error) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	r, err := s.beginKill(ctx, id, reason)
	if err != nil || r.State.Final() && !r.Held {
		return r, err
	}
	return s.finish(ctx, &r)
}

// beginKill records that a sandbox is stopping, and fails the calls under way. It
// returns the record, whose state is stopping unless the sandbox has ended.
func (s *Service) beginKill(ctx context.Context, id, reason string) (store.Record, error) {
	s.stopCreation(ctx, id)
	r, err := s.cfg.Store.UpdateSandbox(ctx, id, store.Change{
		From: living,
		Apply: func(r *store.Record) error {
			r.State, r.Reason = sandbox.StateStopping, reason
			return nil
		},
	})
	switch sandbox.CodeOf(err) {
	case "":
		s.drop(id, sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s was just killed (%s); create a new one", id, reason))
	case sandbox.CodeNotRunning: // stopping, or ended
	case sandbox.CodeNotFound: // its creation was cancelled and undone
		return r, call.NoSandbox(id)
	default:
		return r, err
	}
	return r, nil
}

// finish has the engine remove what is left of a sandbox that is stopping or has ended,
// and records that.
func (s *Service) finish(ctx context.Context, r *store.Record) (store.Record, error) {
	s.Ports.Close(r.ID)
	if err := s.cfg.Engine.Destroy(ctx, r.Instance); err != nil {
		return *r, call.Unavailable(err, "sandbox %s could not be stopped completely; kill it again", r.ID)
	}
	if err := s.forgetSteps(ctx, r.ID, 0); err != nil {
		return *r, err
	}
	defer s.collectSoon()
	done, err := s.recordEnd(ctx, r.ID, false)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return *r, nil
	}
	return done, err
}

// recordEnd records that a stopping sandbox has ended, and whether the engine may still
// hold something of it.
func (s *Service) recordEnd(ctx context.Context, id string, held bool) (store.Record, error) {
	return s.cfg.Store.UpdateSandbox(ctx, id, store.Change{Apply: func(r *store.Record) error {
		if r.State == sandbox.StateStopping {
			now := time.Now().UTC()
			r.State, r.EndedAt = sandbox.StateKilled, &now
		}
		r.Held = held || !r.State.Final()
		return nil
	}})
}

// stopCreation cancels a create of this sandbox that is under way, and waits until the
// create is undone.
func (s *Service) stopCreation(ctx context.Context, id string) {
	s.mu.Lock()
	c := s.creating[id]
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.cancel(errKilled)
	select {
	case <-c.done:
	case <-ctx.Done():
	}
}

// instanceFailed is called by the engine. It must not block.
func (s *Service) instanceFailed(st engine.Status) {
	// If the service is closed, the next start finds the instance in the engine's list.
	s.gate.Go(func() {
		ctx, cancel := call.Teardown(s.gate.Context())
		defer cancel()
		s.failInstance(ctx, st)
	})
}

// failInstance records the end of the sandbox whose instance has failed, unless the
// sandbox has another instance by now.
func (s *Service) failInstance(ctx context.Context, st engine.Status) {
	// First, so that whoever is about to record the instance learns of its end.
	s.mu.Lock()
	if _, ok := s.coming[st.ID]; ok {
		s.coming[st.ID] = cmp.Or(st.Reason, "it ended by itself")
	}
	s.mu.Unlock()
	r, err := s.cfg.Store.SandboxByInstance(ctx, st.ID)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.State == sandbox.StatePaused {
		s.destroy(ctx, st.ID)
		return
	}
	if err != nil {
		s.log.Error("find the sandbox of a failed instance", "instance", st.ID, "error", err)
		s.insist(st.ID, func(ctx context.Context) error {
			r, err := s.cfg.Store.SandboxByInstance(ctx, st.ID)
			if err == nil {
				_, err = s.tryFail(ctx, &r, st.Reason, "log", st.Log)
			}
			return err
		})
		return
	}
	_, _ = s.fail(ctx, &r, st.Reason, "log", st.Log) // what fails is logged, and tried again
}

// fail records that a sandbox has ended by itself, with the reason, and has the engine
// remove what is left of it. If the sandbox has an automatic checkpoint, it does not end: it
// is paused with that state, and continues from it at its next call. It returns the record, or a not_found error if there is
// none. For a sandbox that is stopping or has ended, fail only removes the rest; a
// sandbox that has been paused, or has another instance, is left alone. Details are
// attributes for the log. If the store does not take the record, fail returns the
// error, and goes on trying in the background.
func (s *Service) fail(ctx context.Context, before *store.Record, reason string, details ...any) (*store.Record, error) {
	r, err := s.tryFail(ctx, before, reason, details...)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		s.log.Error("record a failed sandbox", "sandbox", before.ID, "error", err)
		again := *before
		s.insist(before.Instance, func(ctx context.Context) error {
			_, err := s.tryFail(ctx, &again, reason, details...)
			return err
		})
	}
	return r, err
}

// errLookAgain says that a record is not the one of which the engine was asked.
var errLookAgain = errors.New("the automatic checkpoints have changed")

// tryFail is one attempt of [Service.fail].
func (s *Service) tryFail(ctx context.Context, before *store.Record, reason string, details ...any) (*store.Record, error) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	id := before.ID
	now, known := *before, s.fateOf(before)
	var back store.KeptState
	change := store.Change{
		From: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning},
		Apply: func(r *store.Record) error {
			if now = *r; r.Instance != before.Instance {
				return errMoved
			}
			if !known.knows(r) {
				return errLookAgain
			}
			var but string
			if back, but = fallback(r, &known); back.Checkpoint != "" {
				fallBack(r, back, reason)
				return nil
			}
			now := time.Now().UTC()
			r.State, r.Reason, r.EndedAt = sandbox.StateFailed, reason+but, &now
			return nil
		},
	}
	wake := s.holdCalls(id, before.Instance)
	defer wake()
	r, err := s.cfg.Store.UpdateSandbox(ctx, id, change)
	for errors.Is(err, errLookAgain) && ctx.Err() == nil {
		known = s.fateOf(&now)
		r, err = s.cfg.Store.UpdateSandbox(ctx, id, change)
	}
	switch sandbox.CodeOf(err) {
	case "":
		if back.Checkpoint != "" {
			s.dropInstance(&r, before.Instance, fallenBack(&r, back, reason))
			if known.lost { // its node removes the rest when it is back
				wake()
			}
			s.fellBack(ctx, before, &r, back, reason, details...)
			return &r, nil
		}
		reason = r.Reason
		s.drop(id, call.Ended(&r))
		wake()
		s.gate.System(&r, "sandbox.fail", reason)
		s.log.Warn("sandbox failed", append([]any{"sandbox", id, "reason", reason}, details...)...)
	case sandbox.CodeNotRunning:
		if r.State == sandbox.StatePaused && r.Instance == before.Instance {
			// Paused at the same time, or by an attempt before this one, whose outcome was not known.
			s.dropInstance(&r, before.Instance, call.NotRunning(&r))
			s.destroy(ctx, before.Instance)
		}
		if !r.State.Final() || !r.Held { // a kill under way removes it, or nothing is left
			return &r, nil
		}
		s.drop(id, call.Ended(&r))
		wake()
	default:
		if errors.Is(err, errMoved) {
			return &now, nil
		}
		return nil, err
	}
	done, err := s.finish(ctx, &r)
	if err != nil {
		s.log.Error("remove a failed sandbox", "sandbox", id, "error", err)
		return &r, nil // Repair removes it
	}
	return &done, nil
}

// fallenBack is the error of calls during which a sandbox has gone back to an automatic
// checkpoint.
func fallenBack(r *store.Record, back store.KeptState, reason string) error {
	return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s failed during the call: %s; with its next call it continues from its automatic checkpoint of %s, and what it did since then is lost", r.ID, reason, back.At.Format(time.RFC3339))
}

// fellBack ends what is left of an instance whose sandbox has gone back to an automatic
// checkpoint, and says so.
func (s *Service) fellBack(ctx context.Context, before, r *store.Record, back store.KeptState, reason string, details ...any) {
	at := back.At.Format(time.RFC3339)
	s.gate.System(r, "sandbox.restored", fmt.Sprintf("to its automatic checkpoint of %s, because %s", at, reason))
	s.log.Warn("sandbox failed; it continues from its automatic checkpoint", append([]any{"sandbox", r.ID, "reason", reason, "at", back.At}, details...)...)
	s.metrics.checkpoint("restored")
	s.collectSoon()
	s.destroy(ctx, before.Instance)
}

// destroy removes an instance that no record needs any more. If that fails, destroy goes on
// trying in the background: two instances of a sandbox must not run.
func (s *Service) destroy(ctx context.Context, instance string) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	if err := s.cfg.Engine.Destroy(ctx, instance); err != nil {
		s.log.Error("remove an instance that no sandbox has any more", "instance", instance, "error", err)
		// What recorded the end may still be at work for the instance itself.
		s.insist("the rest of "+instance, func(ctx context.Context) error { return s.cfg.Engine.Destroy(ctx, instance) })
	}
}

// endInstance removes a sandbox's previous instance, if there is one. What cannot be
// removed now is removed later, at the latest at the next start, since no record refers to it
// any more.
func (s *Service) endInstance(ctx context.Context, before *store.Record) {
	s.destroy(ctx, before.Instance)
	s.collectSoon()
}
