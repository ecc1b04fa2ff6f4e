package service

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// handle is the way to a running sandbox. It is in [Service.handles] from the
// moment the sandbox runs, or was found running, until it ends.
type handle struct {
	id       string
	realm    call.Realm // with its namespace
	instance engine.Instance
	client   *agentclient.Client
	// updating is held by the update under way: it has room for one.
	updating chan struct{}
	// vcpus is how many processors it has.
	vcpus atomic.Int32
	// history is how many automatic snapshots are kept.
	history atomic.Int32
	// gone is closed when the sandbox has ended or is paused; why is set before
	// that.
	gone chan struct{}
	why  error

	mu     sync.Mutex
	calls  int       // guarded by mu; calls under way
	active time.Time // guarded by mu; when one last began or ended
	stored time.Time // guarded by mu; what of that is in the store
	// resting is closed when it is decided whether the idle sandbox is paused or
	// ended, and nil while nobody is about to. Guarded by mu.
	resting chan struct{}
	// silentSince is when the agent first left a look unanswered, and zero
	// while it answers. Guarded by mu.
	silentSince time.Time
}

func newHandle(r *store.Record, instance engine.Instance) *handle {
	h := &handle{
		id: r.ID, realm: call.RealmOf(r), instance: instance,
		client:   agentclient.New(r.ID, instance.Dial),
		updating: make(chan struct{}, 1),
		gone:     make(chan struct{}),
		active:   r.LastActiveAt, stored: r.LastActiveAt,
	}
	h.vcpus.Store(int32(r.Resources.VCPUs))
	h.history.Store(int32(r.History))
	return h
}

// acquire counts a call. It does not, and returns a channel, if the sandbox has
// ended or is being put to rest: whoever calls has to open the sandbox again
// when the channel is closed.
func (h *handle) acquire() (again <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resting != nil {
		return h.resting
	}
	select {
	case <-h.gone:
		return h.gone
	default:
	}
	h.calls++
	h.active = time.Now()
	return nil
}

// rest has calls wait until wake is called, so that an idle sandbox is not taken
// from under one that has just begun. It reports false, and does nothing, if
// the sandbox was used after since.
func (h *handle) rest(since time.Time) (wake func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls > 0 || h.active.After(since) || h.resting != nil {
		return nil, false
	}
	resting := make(chan struct{})
	h.resting = resting
	return func() {
		h.mu.Lock()
		h.resting = nil
		h.mu.Unlock()
		close(resting)
	}, true
}

func (h *handle) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls--
	h.active = time.Now()
}

// DialPort opens a connection to a port of the sandbox; see [expose.Sandbox].
func (h *handle) DialPort(ctx context.Context, port int, loopback bool) (net.Conn, error) {
	gateway, ok := h.instance.(engine.Gateway)
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server cannot connect to ports of sandboxes")
	}
	conn, err := gateway.DialPort(ctx, port, loopback)
	if err != nil {
		return nil, h.explain(ctx, err)
	}
	return conn, nil
}

// lastActive tells when a call last began or ended, and whether one is under
// way.
func (h *handle) lastActive() (at time.Time, busy bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active, h.calls > 0
}

// Touch notes that the sandbox was in use at the given time.
func (h *handle) Touch(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.active) {
		h.active = at
	}
}

// unsaved returns the time of last use if the store does not have it. A call
// under way counts as use.
func (h *handle) unsaved() (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls > 0 {
		h.active = time.Now()
	}
	return h.active, h.active.After(h.stored)
}

func (h *handle) saved(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stored = at
}

// openFor returns the handle of the caller's running sandbox, and counts the
// call as one on it.
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

// acquireHandle opens a sandbox and counts a call on it, which the caller ends by
// [handle.release]. It opens the sandbox again if that ends or is put to rest at
// the same moment.
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
		case <-ctx.Done():
			return h, ctx.Err()
		}
	}
	return nil, errMoved
}

// open finds the handle by id without asking the store: this is the path of
// every command. A paused sandbox is resumed.
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

// openTries is how often a call looks for a sandbox that moves meanwhile.
const openTries = 5

// errMoved says that a record is not up to date: the sandbox is paused by now,
// or has another machine.
var errMoved error = sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox was paused, resumed, restored or merged at the same moment; try again")

// isOpen reports whether a sandbox has a handle.
func (s *Service) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[id] != nil
}

// openRecord returns the handle of a sandbox that is running by its record,
// and makes it if this is the first call since the daemon started.
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

// attach opens the instance of a running record. It owns the place in
// [Service.opening].
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
		return nil, call.Unavailable(err, "sandbox %s does not answer now; try again", r.ID)
	}
	h := newHandle(r, instance)
	s.mu.Lock()
	there := s.handles[r.ID]
	if there == nil {
		s.handles[r.ID] = h
	}
	s.mu.Unlock()
	if there != nil { // of whoever has had the sandbox go on in an instance meanwhile
		h.client.Close()
		return there, nil
	}
	// It may have ended since the record was read; whoever ended it has
	// changed the record first and dropped the handle second.
	now, err := s.cfg.Store.Sandbox(ctx, r.ID)
	if err == nil && now.State == sandbox.StateRunning && now.Instance == r.Instance {
		return h, nil
	}
	switch {
	case err != nil:
	case now.State == sandbox.StatePaused, now.State == sandbox.StateRunning:
		err = errMoved
	default:
		err = call.NotRunning(&now)
	}
	s.drop(r.ID, err)
	return nil, err
}

// drop removes the handle of a sandbox that ends, and tells the calls under
// way why.
func (s *Service) drop(id string, why error) {
	s.mu.Lock()
	h := s.handles[id]
	delete(s.handles, id)
	s.mu.Unlock()
	if h != nil {
		h.end(why)
	}
}

// end tells the calls under way that a handle is good for nothing any more, and
// why. It is called once, by whoever has taken it from [Service.handles].
func (h *handle) end(why error) {
	h.why = why
	close(h.gone)
	h.client.Close()
}

// explain gives the reason for an error of a call into a sandbox: if the
// sandbox has ended, that. When the connection broke, the engine may be about
// to tell.
func (h *handle) explain(ctx context.Context, err error) error {
	if err == nil || sandbox.CodeOf(err) == sandbox.CodeCancelled && ctx.Err() != nil {
		return err
	}
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		h.awaitNotice(ctx)
	}
	select {
	case <-h.gone:
		switch sandbox.CodeOf(err) {
		case sandbox.CodeUnavailable, sandbox.CodeInternal, sandbox.CodeCancelled:
			return h.why
		}
	default:
		if since, ok := h.silent(); ok && sandbox.CodeOf(err) == sandbox.CodeUnavailable {
			return silentError(err, h.id, since)
		}
	}
	return err
}

// awaitNotice waits until the engine has told that the sandbox ended, or its
// agent that it lives.
func (h *handle) awaitNotice(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, failureNotice)
	defer cancel()
	lives := make(chan struct{})
	go func() {
		if _, err := h.client.Health(ctx); err == nil {
			h.heard()
			close(lives)
		}
	}()
	select {
	case <-h.gone:
	case <-lives:
	case <-ctx.Done():
	}
}
