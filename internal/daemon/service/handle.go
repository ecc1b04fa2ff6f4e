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

// maxAsking bounds the questions for the ends of jobs that wait in one sandbox at the same
// time: its agent takes 250 calls at once, and most must stay free for others. The ends of
// further jobs are asked for at intervals.
const maxAsking = 64

// handle is the connection to a running sandbox. It is in [Service.handles] from the
// moment at which the sandbox runs, or was found running, until the sandbox ends.
type handle struct {
	id       string
	realm    call.Realm // with the sandbox's namespace
	instance engine.Instance
	client   *agentclient.Client
	// updating is a semaphore: one update at a time.
	updating chan struct{}
	// vcpus is how many processors the sandbox has.
	vcpus atomic.Int32
	// history is how many automatic snapshots are kept.
	history atomic.Int32
	// checkpoints say when the next automatic checkpoint is due.
	checkpoints checkpointTimes
	// asking is a semaphore: one place for each question for a job's end that waits.
	asking chan struct{}
	// gone is closed when the sandbox has ended or is paused; why is set before gone is
	// closed.
	gone chan struct{}
	why  error

	mu     sync.Mutex
	calls  int       // guarded by mu; calls under way
	active time.Time // when a call last began or ended
	stored time.Time // the value of active that the store has
	// resting is non-nil while it is being decided whether the idle sandbox is paused
	// or ended, and closed after the decision. Guarded by mu.
	resting chan struct{}
	// silentSince is when the agent first failed to answer a check, and zero while it
	// answers. Guarded by mu.
	silentSince time.Time
	// begun are the jobs that this daemon has begun while [Service.announceFound] is
	// still finding out what else runs; nil otherwise. Guarded by mu.
	begun map[string]bool
	// opened is the time since which begun is complete.
	opened time.Time
}

func newHandle(r *store.Record, instance engine.Instance) *handle {
	h := &handle{
		id: r.ID, realm: call.RealmOf(r), instance: instance,
		client:   agentclient.New(r.ID, instance.Dial),
		updating: make(chan struct{}, 1),
		asking:   make(chan struct{}, maxAsking),
		gone:     make(chan struct{}),
		active:   r.LastActiveAt, stored: r.LastActiveAt,
	}
	h.vcpus.Store(int32(r.Resources.VCPUs))
	h.history.Store(int32(r.History))
	h.checkpoints.set(r)
	return h
}

// acquire counts a call. If the sandbox has ended, or is about to be paused or ended
// for being idle, acquire counts nothing and returns a channel: when the channel is
// closed, the caller opens the sandbox again.
func (h *handle) acquire() (again <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.gone:
		return h.gone
	default:
	}
	if h.resting != nil {
		return h.resting
	}
	h.calls++
	h.active = time.Now()
	return nil
}

// rest makes new calls wait until wake is called, so that an idle sandbox is not paused
// under a call that has just begun. It does nothing and reports false if the sandbox
// was used after since.
func (h *handle) rest(since time.Time) (wake func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls > 0 || h.active.After(since) || h.resting != nil {
		return nil, false
	}
	return h.hold(), true
}

// hold makes new calls wait until wake is called. The caller holds mu, and nobody else makes
// calls wait.
func (h *handle) hold() (wake func()) {
	resting := make(chan struct{})
	h.resting = resting
	return func() {
		h.mu.Lock()
		h.resting = nil
		h.mu.Unlock()
		close(resting)
	}
}

// quiet makes new calls wait until wake is called, and waits for those under way, but at
// most until ctx ends. It does nothing and reports false if it is just being decided whether
// the sandbox is idle.
func (h *handle) quiet(ctx context.Context) (wake func(), ok bool) {
	h.mu.Lock()
	if h.resting != nil {
		h.mu.Unlock()
		return nil, false
	}
	wake = h.hold()
	h.mu.Unlock()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for busy := true; busy && ctx.Err() == nil; {
		if _, busy = h.lastActive(); !busy {
			break
		}
		select {
		case <-tick.C:
		case <-h.gone:
			busy = false
		case <-ctx.Done():
		}
	}
	return wake, true
}

// noteJobs starts to keep the jobs that begin, until [handle.notedJobs]. It is called
// before others see the handle.
func (h *handle) noteJobs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun, h.opened = map[string]bool{}, time.Now()
}

// noteJob notes that this daemon is about to begin a job, whose end it announces.
func (h *handle) noteJob(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun != nil {
		h.begun[id] = true
	}
}

// notedJobs returns the jobs that were noted, and since when, and stops noting.
func (h *handle) notedJobs() (begun map[string]bool, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begun, h.begun = h.begun, nil
	return begun, h.opened
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

// lastActive returns when a call last began or ended, and whether a call is under way.
func (h *handle) lastActive() (at time.Time, busy bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active, h.calls > 0
}

// Touch records that the sandbox was in use at the given time.
func (h *handle) Touch(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.active) {
		h.active = at
	}
}

// unsaved returns the time of last use, and whether the store lacks it. A call under
// way counts as use.
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

// drop removes the handle of a sandbox that ends. Calls under way fail with why.
func (s *Service) drop(id string, why error) {
	s.dropIf(id, func(*handle) bool { return true }, why)
}

// dropInstance is [Service.drop] for a sandbox that may continue in another instance: the
// handle of that one stays.
func (s *Service) dropInstance(r *store.Record, instance string, why error) {
	s.dropIf(r.ID, func(h *handle) bool { return h.instance.ID() == instance }, why)
}

// dropPaused ends the connection to the instance of a sandbox that is paused now.
func (s *Service) dropPaused(r *store.Record) {
	s.dropInstance(r, r.Instance, sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s was paused during the call; what ran in it continues when it is resumed, by the next call or sandbox_resume", r.ID))
}

func (s *Service) dropIf(id string, is func(*handle) bool, why error) {
	s.mu.Lock()
	h := s.handles[id]
	if h == nil || !is(h) {
		s.mu.Unlock()
		return
	}
	delete(s.handles, id)
	s.mu.Unlock()
	h.end(why)
}

// holdCalls makes new calls wait that would use an instance whose sandbox is about to continue
// elsewhere, until wake is called: they began in time to continue there. If others make
// calls wait already, holdCalls leaves that to them.
func (s *Service) holdCalls(id, instance string) (wake func()) {
	s.mu.Lock()
	h := s.handles[id]
	s.mu.Unlock()
	if h == nil || h.instance.ID() != instance {
		return func() {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resting != nil {
		return func() {}
	}
	return sync.OnceFunc(h.hold())
}

// end fails the calls under way with why, and closes the connection. The caller has
// removed the handle from [Service.handles], so that end is called once.
func (h *handle) end(why error) {
	h.why = why
	close(h.gone)
	h.client.Close()
}

// explain finds the reason for the error of a call into a sandbox, such as the end of
// the sandbox. If the connection broke, explain waits for the engine to report the
// reason.
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
// sandbox broke. The engine takes up to two seconds. It is a variable for tests, which wait for longer.
var failureNotice = 2500 * time.Millisecond

// awaitNotice waits until the engine has reported the sandbox's end, or the agent
// answers.
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

// silent returns since when the agent of a running sandbox has not answered, if that is
// longer than [silentAfter]. The sandbox has not failed: its programs run, and the
// agent may answer again.
func (h *handle) silent() (since time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silentSince, !h.silentSince.IsZero() && time.Since(h.silentSince) >= silentAfter
}

// heard records that the agent has answered, or has a reason not to.
func (h *handle) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silentSince = time.Time{}
}

// silentError is the error of calls that need an agent which does not answer.
func silentError(cause error, id string, since time.Time) error {
	return call.Unavailable(cause, "sandbox %s: %s", id, silentReason(since))
}

// silentReason tells a sandbox's owner what it means that the agent does not answer.
func silentReason(since time.Time) string {
	return "its agent has not responded since " + since.UTC().Format(time.RFC3339) +
		" although its kernel is running: a program in it has stopped or is tracing process 1, or uses all processor time; " +
		"kill the sandbox, restore a snapshot of it, or pause it and resume it from its files"
}
