package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// visit is one call of a verb: who calls, and what the audit record will say.
type visit struct {
	s      *Service
	caller sandbox.Caller
	ctx    context.Context // of the call, which the visit does not outlive
	cancel context.CancelFunc

	// action names a verb that changes something, and is recorded; "" does not.
	action    string
	atOnce    bool // the record is stored before the verb returns
	sandboxID string
	detail    string
	began     time.Time

	handle *handle // of which this is a call
	done   func()
}

// begin counts a call under way, for which Close waits, until the result is
// called. It fails when the service is closed.
func (s *Service) begin() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the server is shutting down; try again in a moment")
	}
	s.calls++
	s.lastCall = time.Now()
	return s.end, nil
}

func (s *Service) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.lastCall = time.Now()
	if s.calls == 0 {
		s.drained.Broadcast()
	}
}

// anyScope is of verbs for which every key is good that has a scope at all.
const anyScope sandbox.Scope = ""

// enter begins a verb that needs a scope. It always returns a visit, whose
// leave must be deferred with the verb's error.
func (s *Service) enter(ctx context.Context, scope sandbox.Scope, action string) (*visit, error) {
	v := &visit{s: s, action: action, began: time.Now(), ctx: ctx, cancel: func() {}, done: func() {}}
	done, err := s.begin()
	if err != nil {
		v.action = ""
		return v, err
	}
	v.done = done
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	v.ctx, v.cancel = ctx, func() { stop(); cancel() }
	c, ok := sandbox.CallerOf(ctx)
	if !ok || c.Team == "" {
		return v, sandbox.Errorf(sandbox.CodeUnauthenticated, "the request carries no identity; send an API key")
	}
	if c.Namespace != "" {
		if err := checkName("namespace", c.Namespace); err != nil {
			return v, err
		}
	}
	v.caller = c
	if scope == anyScope && len(c.Scopes) > 0 {
		return v, nil
	}
	return v, c.Need(scope)
}

// Denied records that the caller asked for an operation that no scope of theirs
// allows, when a door knows that before it reads the request.
func (s *Service) Denied(ctx context.Context, operation string) {
	v, err := s.enter(ctx, anyScope, operation)
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		return // there is no record any more
	}
	err = sandbox.Errorf(sandbox.CodeForbidden, "denied")
	v.leave(&err)
}

// leave ends a verb: it makes its error public and writes the audit record.
func (v *visit) leave(err *error) {
	if pass, ok := errors.AsType[*callbackError](*err); ok {
		*err = pass.err
	} else {
		*err = v.s.public(*err, v.action)
	}
	v.record(*err)
	v.s.metrics.observe(v.action, v.began, *err)
	v.cancel()
	if v.handle != nil {
		v.handle.leave()
	}
	v.done()
}

func (v *visit) record(err error) {
	if v.action == "" || v.caller.Team == "" {
		return
	}
	e := sandbox.AuditEvent{
		Time: time.Now().UTC(), Team: v.caller.Team, KeyID: v.caller.KeyID, Action: v.action,
		SandboxID: v.sandboxID, Detail: v.detail, Code: sandbox.CodeOf(err),
	}
	if !v.atOnce {
		v.s.audit.Record(e)
		return
	}
	ctx, cancel := teardown(v.ctx)
	defer cancel()
	if err := v.s.audit.Write(ctx, e); err != nil {
		v.s.log.Error("write audit event", "action", e.Action, "error", err)
	}
}

// system records what Cove itself did to a sandbox.
func (s *Service) system(r *store.Record, action, detail string) {
	s.audit.Record(sandbox.AuditEvent{
		Time: time.Now().UTC(), Team: r.Team, KeyID: "system", Action: action, SandboxID: r.ID, Detail: detail,
	})
}

// callbackError is an error that the caller's own function returned, and gets
// back as it is.
type callbackError struct{ err error }

func (e *callbackError) Error() string { return e.err.Error() }
func (e *callbackError) Unwrap() error { return e.err }

// resolve returns the record of the caller's sandbox with this id or name, in
// any state.
func (v *visit) resolve(ref string) (store.Record, error) {
	r, err := v.s.resolve(v.ctx, v.realm(), ref)
	if err == nil {
		v.sandboxID = r.ID
	}
	return r, err
}

func (s *Service) resolve(ctx context.Context, in realm, ref string) (store.Record, error) {
	if ref == "" {
		return store.Record{}, sandbox.Errorf(sandbox.CodeInvalid, "no sandbox is named; give its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || checkText("sandbox", ref) != nil {
		return store.Record{}, noSandbox(ref)
	}
	var r store.Record
	var err error
	if isSandboxID(ref) {
		r, err = s.cfg.Store.Sandbox(ctx, ref)
	} else {
		r, err = s.cfg.Store.SandboxByName(ctx, in.team, in.namespace, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && !in.has(r.Team, r.Namespace) {
		return store.Record{}, noSandbox(ref)
	}
	return r, err
}

// noSandbox is the one answer for what does not exist and what is another
// team's or in another namespace.
func noSandbox(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s; list the sandboxes to see which there are", quote(ref))
}

// notRunning says why a sandbox cannot do what was asked, and what to do.
func notRunning(r *store.Record) error {
	switch r.State {
	case sandbox.StateCreating:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is still being created; try again in a moment", r.ID)
	case sandbox.StatePaused:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is paused; resume it first", r.ID)
	case sandbox.StateStopping:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is being killed; create a new one", r.ID)
	}
	return ended(r)
}

// ended tells when and why a sandbox ended.
func ended(r *store.Record) error {
	verb, when, why := "was killed", "", ""
	if r.State == sandbox.StateFailed {
		verb = "failed"
	}
	if r.EndedAt != nil {
		when = " at " + r.EndedAt.UTC().Format(time.RFC3339)
	}
	if r.Reason != "" {
		why = ": " + r.Reason
	}
	return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s %s%s%s; create a new one", r.ID, verb, when, why)
}

// quote shows a caller's own text to it, bounded.
func quote(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q…", s[:80])
	}
	return fmt.Sprintf("%q", s)
}
