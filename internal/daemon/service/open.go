package service

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// openFor returns the handle of the caller's running sandbox, and counts the call on
// the handle.
func (s *Service) openFor(c *call.Call, ref string) (*handle, error) {
	h, err := s.acquireHandle(c.Ctx, func() (*handle, error) { return s.open(c.Ctx, c.Realm(), ref) })
	if h != nil {
		c.SandboxID = h.id
	}
	if err != nil {
		return nil, err
	}
	c.AtEnd(h.release)
	return h, nil
}

// acquireHandle opens a sandbox and counts a call on its handle; the caller ends the
// call by [handle.release]. If the sandbox ends or is paused at that moment,
// acquireHandle opens it again.
func (s *Service) acquireHandle(ctx context.Context, open func() (*handle, error)) (*handle, error) {
	for range openTries {
		h, err := open()
		if err != nil {
			return h, err
		}
		again := h.acquire()
		if again == nil {
			return h, nil
		}
		select {
		case <-again:
		case <-h.gone:
		case <-ctx.Done():
			return h, ctx.Err()
		}
	}
	return nil, errMoved
}

// open finds a handle by the sandbox's id without asking the store, since every command
// comes this way. A paused sandbox is resumed.
func (s *Service) open(ctx context.Context, in call.Realm, ref string) (*handle, error) {
	if ids.IsSandbox(ref) {
		s.mu.Lock()
		h := s.handles[ref]
		s.mu.Unlock()
		if h != nil && in.Has(h.realm.Team, h.realm.Namespace) {
			return h, nil
		}
	}
	var h *handle
	err := errMoved
	for try := 0; try < openTries && errors.Is(err, errMoved); try++ {
		var r store.Record
		if r, err = s.gate.Resolve(ctx, in, ref); err != nil {
			return nil, err
		}
		if r.State == sandbox.StatePaused {
			if r, err = s.wake(ctx, &r); err != nil {
				return nil, err
			}
		}
		h, err = s.openRecord(ctx, &r)
	}
	return h, err
}

// openTries is how often a call looks again for a sandbox that changes at the same
// time.
const openTries = 5

// errMoved says that a record is out of date: the sandbox has been paused, or has
// another instance.
var errMoved error = sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox was paused, resumed, restored or merged at the same time; try again")

// isOpen reports whether a sandbox has a handle.
func (s *Service) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[id] != nil
}

// openRecord returns the handle of a sandbox that runs according to its record. The
// first call after the daemon's start makes the handle.
func (s *Service) openRecord(ctx context.Context, r *store.Record) (*handle, error) {
	if r.State != sandbox.StateRunning {
		return nil, call.NotRunning(r)
	}
	for {
		s.mu.Lock()
		if h := s.handles[r.ID]; h != nil {
			s.mu.Unlock()
			return h, nil
		}
		other := s.opening[r.ID]
		if other == nil {
			other = make(chan struct{})
			s.opening[r.ID] = other
			s.mu.Unlock()
			return s.attach(ctx, r, other)
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// attach opens the instance of a running record. The caller has put the channel place
// into [Service.opening].
func (s *Service) attach(ctx context.Context, r *store.Record, place chan struct{}) (*handle, error) {
	defer func() {
		s.mu.Lock()
		delete(s.opening, r.ID)
		s.mu.Unlock()
		close(place)
	}()
	instance, err := s.cfg.Engine.Open(ctx, r.Instance)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		failed, err := s.fail(ctx, r, s.vanished(r))
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return nil, call.NoSandbox(r.ID)
		case err != nil:
			return nil, err
		case failed.State == sandbox.StatePaused, failed.State == sandbox.StateRunning:
			return nil, errMoved
		}
		return nil, call.NotRunning(failed)
	case err != nil:
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			return nil, e
		}
		return nil, call.Unavailable(err, "sandbox %s is not responding; try again", r.ID)
	}
	h := newHandle(r, instance)
	h.noteJobs()
	s.mu.Lock()
	there := s.handles[r.ID]
	if there == nil {
		s.handles[r.ID] = h
	}
	s.mu.Unlock()
	if there != nil { // another call made the sandbox go on in a new instance
		h.client.Close()
		return there, nil
	}
	// The sandbox may have ended since the record was read. Whoever ends a sandbox
	// changes the record before dropping the handle.
	now, err := s.cfg.Store.Sandbox(ctx, r.ID)
	if err == nil && now.State == sandbox.StateRunning && now.Instance == r.Instance {
		s.announceFound(h)
		return h, nil
	}
	switch {
	case err != nil:
	case now.State == sandbox.StatePaused, now.State == sandbox.StateRunning:
		err = errMoved
	default:
		err = call.NotRunning(&now)
	}
	s.dropIf(r.ID, func(other *handle) bool { return other == h }, err)
	return nil, err
}

// vanished returns why the engine has no instance of a sandbox that should run.
func (s *Service) vanished(r *store.Record) string {
	if r.BootID != s.cfg.Boot.ID {
		return "the machine restarted at " + s.cfg.Boot.At.Format(time.RFC3339)
	}
	return "its supervisor exited unexpectedly while the daemon was down"
}
