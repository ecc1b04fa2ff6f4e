package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// silence is how much longer than its idle timeout a sandbox lives if its agent does
// not say whether a command runs.
const silence = 2 * time.Minute

// clockSkew is how far ahead a sandbox's clock may be.
const clockSkew = 2 * time.Second

// Expire ends or pauses a sandbox whose lifetime or idle timeout has passed. For other
// sandboxes it only updates the time of last use. The janitor calls it for sandboxes
// that are due according to their records.
func (s *Service) Expire(ctx context.Context, id string) error {
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if r.State == sandbox.StatePaused && pausedTooLong(&r) {
		return s.expirePaused(ctx, &r)
	}
	reason, settle, err := s.expired(ctx, &r)
	if err != nil || reason == "" {
		return err
	}
	if r.OnTimeout == sandbox.ActionPause && r.State == sandbox.StateRunning {
		_, err := s.pause(ctx, id, settle)
		if errors.Is(err, errInUse) {
			return nil
		}
		if err != nil {
			return call.Detailed(err)
		}
		s.gate.System(&r, "sandbox.pause", reason)
		return nil
	}
	done, err := settle()
	if err != nil {
		return nil // in use again
	}
	defer done()
	if _, err := s.kill(ctx, id, reason); err != nil {
		return call.Detailed(err)
	}
	s.gate.System(&r, "sandbox.expire", reason)
	return nil
}

// errInUse says that a sandbox is no longer idle.
var errInUse = errors.New("the sandbox is in use again")

// stillIdle is the [settle] that agrees if the sandbox was not used after the given
// time.
func (s *Service) stillIdle(id string, last time.Time) settle {
	return func() (func(), error) {
		s.mu.Lock()
		h := s.handles[id]
		s.mu.Unlock()
		if h == nil {
			return nothing()
		}
		wake, ok := h.rest(last)
		if !ok {
			return nil, errInUse
		}
		return wake, nil
	}
}

// pausedTooLong reports whether a sandbox has been paused for longer than it may be.
func pausedTooLong(r *store.Record) bool {
	return r.PausedExpiresAt != nil && !time.Now().Before(*r.PausedExpiresAt)
}

// expirePaused ends a sandbox that was paused for too long, unless it is being resumed.
func (s *Service) expirePaused(ctx context.Context, r *store.Record) error {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	reason := fmt.Sprintf("it was paused for %s", time.Duration(r.PausedLifetimeSeconds)*time.Second)
	now, err := s.cfg.Store.UpdateSandbox(ctx, r.ID, store.Change{
		From: []sandbox.State{sandbox.StatePaused},
		Apply: func(r *store.Record) error {
			if !pausedTooLong(r) {
				return errMoved
			}
			r.State, r.Reason = sandbox.StateStopping, reason
			return nil
		},
	})
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotRunning || code == sandbox.CodeNotFound || errors.Is(err, errMoved) {
		return nil
	}
	if err == nil {
		_, err = s.finish(ctx, &now)
	}
	if err != nil {
		return call.Detailed(err)
	}
	s.gate.System(&now, "sandbox.expire", reason)
	return nil
}

// expired returns why a sandbox must end now, or "", and the [settle] to ask right
// before its end.
func (s *Service) expired(ctx context.Context, r *store.Record) (string, settle, error) {
	if r.State != sandbox.StateRunning && (r.State != sandbox.StatePaused || r.OnTimeout == sandbox.ActionPause) {
		return "", nil, nil
	}
	now := time.Now()
	if r.ExpiresAt != nil && !now.Before(*r.ExpiresAt) {
		return fmt.Sprintf("its lifetime of %s ended", time.Duration(r.LifetimeSeconds)*time.Second), nothing, nil
	}
	idle := time.Duration(r.IdleTimeoutSeconds) * time.Second
	if r.State != sandbox.StateRunning || idle <= 0 || now.Sub(r.LastActiveAt) < idle {
		return "", nil, nil
	}
	last, err := s.lastUse(ctx, r, now)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning || errors.Is(err, errMoved) || ctx.Err() != nil {
			return "", nil, nil
		}
		if now.Sub(last) < idle+silence {
			return "", nil, call.Detailed(err)
		}
	}
	if now.Sub(last) < idle {
		return "", nil, s.cfg.Store.TouchSandboxes(ctx, map[string]time.Time{r.ID: last})
	}
	return fmt.Sprintf("it was idle for %s", idle), s.stillIdle(r.ID, last), nil
}

// lastUse returns when a sandbox last had a call or a command; now if one is under way.
func (s *Service) lastUse(ctx context.Context, r *store.Record, now time.Time) (time.Time, error) {
	last := r.LastActiveAt
	h, err := s.openRecord(ctx, r)
	if err != nil {
		return last, err
	}
	at, busy := h.lastActive()
	if busy {
		return now, nil
	}
	if at.After(last) {
		last = at
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	jobs, err := h.client.ListJobs(ctx)
	if err != nil {
		return last, err
	}
	for _, j := range jobs {
		if j.ID == startup.JobID || j.ID == startup.ReadyJobID {
			continue
		}
		if j.State == sandbox.JobRunning {
			return now, nil
		}
		// A time in the future is ignored, but the sandbox's clock may be a little
		// fast.
		if at := *j.EndedAt; at.After(last) && at.Before(now.Add(clockSkew)) {
			last = earlier(at, now)
		}
	}
	h.Touch(last)
	return last, nil
}
