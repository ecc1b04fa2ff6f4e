package call

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Verb says what a call needs and how it is recorded.
type Verb struct {
	scope  sandbox.Scope
	action string
	atOnce bool
}

// Unaudited is a verb that is not recorded.
func Unaudited(scope sandbox.Scope) Verb { return Verb{scope: scope} }

// Audited is a verb that is recorded as an action, a little later.
func Audited(scope sandbox.Scope, action string) Verb { return Verb{scope: scope, action: action} }

// AuditedAtOnce is a verb whose record is stored before it returns.
func AuditedAtOnce(scope sandbox.Scope, action string) Verb {
	return Verb{scope: scope, action: action, atOnce: true}
}

// AnyScope is the scope of verbs that any key with at least one scope may call.
const AnyScope sandbox.Scope = ""

// Call is one call of a verb: who calls, and what the audit record will say.
type Call struct {
	// Caller is who calls.
	Caller sandbox.Caller
	// Ctx ends with the caller's context and when the service is closed.
	Ctx context.Context
	// SandboxID and Detail are what the audit record says besides the action.
	SandboxID string
	Detail    string

	gate   *Gate
	verb   Verb
	began  time.Time
	cancel func()
	atEnd  func()
	done   func()
}

// Do runs f as a call of a verb, if the caller may call it. Its error is made public;
// see [Gate.Public].
func Do[T any](ctx context.Context, g *Gate, verb Verb, f func(*Call) (T, error)) (result T, err error) {
	c, err := g.Enter(ctx, verb)
	defer c.Leave(&err)
	if err != nil {
		return result, err
	}
	return f(c)
}

// Run is [Do] for a verb that returns nothing but an error.
func Run(ctx context.Context, g *Gate, verb Verb, f func(*Call) error) (err error) {
	c, err := g.Enter(ctx, verb)
	defer c.Leave(&err)
	if err != nil {
		return err
	}
	return f(c)
}

// Enter begins a call that lasts longer than a function; see [Do] for others. It
// always returns a call, which ends with Leave.
func (g *Gate) Enter(ctx context.Context, verb Verb) (*Call, error) {
	nothing := func() {}
	c := &Call{gate: g, verb: verb, began: time.Now(), Ctx: ctx, cancel: nothing, atEnd: nothing, done: nothing}
	done, err := g.Begin()
	if err != nil {
		c.verb.action = ""
		return c, err
	}
	c.done = done
	c.Ctx, c.cancel = g.cancelled(ctx)
	caller, ok := sandbox.CallerOf(ctx)
	if !ok || caller.Team == "" {
		return c, sandbox.Errorf(sandbox.CodeUnauthenticated, "the request has no identity; send an API key")
	}
	if caller.Namespace != "" {
		if err := validate.Name("namespace", caller.Namespace); err != nil {
			return c, err
		}
	}
	c.Caller = caller
	if verb.scope == AnyScope && len(caller.Scopes) > 0 {
		return c, nil
	}
	return c, caller.Need(verb.scope)
}

// Leave ends a call: it makes its error public and writes the audit record.
func (c *Call) Leave(err *error) {
	if pass, ok := errors.AsType[*CallbackError](*err); ok {
		*err = pass.Err
	} else {
		*err = c.gate.Public(*err, c.verb.action)
	}
	c.record(*err)
	c.gate.cfg.Observe(c.verb.action, c.began, *err)
	c.cancel()
	c.atEnd()
	c.done()
}

// AtEnd sets the function that is called when the call ends. A call has at most one.
func (c *Call) AtEnd(f func()) { c.atEnd = f }

// Go runs f in the background. It may outlive the call; the service waits for it when
// it closes.
func (c *Call) Go(f func()) { c.gate.wg.Go(f) }

func (c *Call) record(err error) {
	if c.verb.action == "" || c.Caller.Team == "" {
		return
	}
	e := sandbox.AuditEvent{
		Time: time.Now().UTC(), Team: c.Caller.Team, KeyID: c.Caller.KeyID, Action: c.verb.action,
		SandboxID: c.SandboxID, Detail: c.Detail, Code: sandbox.CodeOf(err),
	}
	if !c.verb.atOnce {
		c.gate.cfg.Audit.Record(e)
		return
	}
	ctx, cancel := Teardown(c.Ctx)
	defer cancel()
	if err := c.gate.cfg.Audit.Write(ctx, e); err != nil {
		c.gate.cfg.Log.Error("write audit event", "action", e.Action, "error", err)
	}
}

// Denied records that the caller requested an operation that their scopes do not allow.
// Doors call it if they refuse before they read the request.
func (g *Gate) Denied(ctx context.Context, operation string) {
	c, err := g.Enter(ctx, Audited(AnyScope, operation))
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		return // the gate is closed
	}
	err = sandbox.Errorf(sandbox.CodeForbidden, "denied")
	c.Leave(&err)
}

// Resolve returns the record of the caller's sandbox with this id or name, in
// any state.
func (c *Call) Resolve(ref string) (store.Record, error) {
	r, err := c.gate.Resolve(c.Ctx, c.Realm(), ref)
	if err == nil {
		c.SandboxID = r.ID
	}
	return r, err
}

// Snapshot returns the record of the caller's snapshot with this id or name.
func (c *Call) Snapshot(ref string) (store.SnapshotRecord, error) {
	snap, err := c.gate.snapshot(c.Ctx, c.Realm(), ref)
	if err == nil {
		c.SandboxID = snap.SandboxID
	}
	return snap, err
}
