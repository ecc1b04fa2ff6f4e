package service

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
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

// failureNotice is how long to wait for the engine to say why the connection to a
// sandbox broke. The engine takes up to two seconds.
const failureNotice = 2500 * time.Millisecond

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

// lookTimeout is how long an agent may take to answer a routine question.
const lookTimeout = 2 * time.Second

// silentAfter is how long an agent may leave questions unanswered before callers are
// told. It is asked each [sandbox.StatsInterval], so it has missed three.
const silentAfter = 2*sandbox.StatsInterval + lookTimeout

// silent tells since when the agent of a running sandbox has not answered, if
// that is long enough to be told. The sandbox has not failed: its programs run,
// and the agent may answer again.
func (h *handle) silent() (since time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silentSince, !h.silentSince.IsZero() && time.Since(h.silentSince) >= silentAfter
}

// heard notes that the agent has answered, or has a reason not to.
func (h *handle) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silentSince = time.Time{}
}

// silentError is the answer to calls that need a silent agent.
func silentError(cause error, id string, since time.Time) error {
	return call.Unavailable(cause, "sandbox %s: %s", id, silentReason(since))
}

// silentReason says for a sandbox's owner what a silent agent means.
func silentReason(since time.Time) string {
	return "its agent has not answered since " + since.UTC().Format(time.RFC3339) +
		" although its kernel runs: a program in it has stopped or traces process 1, or leaves it no processor time; " +
		"kill the sandbox, restore a snapshot of it, or pause it and resume it from its files"
}
