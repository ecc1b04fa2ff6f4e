package call

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// NoSandbox is the error for a sandbox that does not exist, and the same error for one
// that is another team's or in another namespace.
func NoSandbox(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s; list the sandboxes to see which exist", validate.Quote(ref))
}

// NoSnapshot is [NoSandbox] for snapshots.
func NoSnapshot(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no snapshot %s; list the snapshots to see which exist", validate.Quote(ref))
}

// NotRunning returns an error that says why a sandbox is not running, and what to do.
func NotRunning(r *store.Record) error {
	switch r.State {
	case sandbox.StateCreating:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is still being created; try again in a moment", r.ID)
	case sandbox.StatePaused:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is paused; resume it first", r.ID)
	case sandbox.StateStopping:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is being killed; create a new one", r.ID)
	}
	return Ended(r)
}

// Ended returns an error that says when and why a sandbox ended.
func Ended(r *store.Record) error {
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

// ErrNoCheckpoints says that the engine keeps no state.
var ErrNoCheckpoints = sandbox.Errorf(sandbox.CodeUnsupported, "this server cannot keep the state of sandboxes; use one that runs them with gVisor")

// CallbackError is an error of the caller's own function, which the caller gets back
// unchanged.
type CallbackError struct{ Err error }

// Error implements error.
func (e *CallbackError) Error() string { return e.Err.Error() }

// Unwrap returns the caller's own error.
func (e *CallbackError) Unwrap() error { return e.Err }

// Public turns any error into one that a caller may see, and logs what only the
// operator may know.
func (g *Gate) Public(err error, action string) error {
	if err == nil {
		return nil
	}
	if sandbox.CodeOf(err) == sandbox.CodeInternal && DiskFull(err) {
		g.cfg.Log.Error("verb failed", "action", action, "error", Detailed(err))
		return Unavailable(err, "the server's disk is full; delete snapshots or sandboxes and try again")
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		if e.Code == sandbox.CodeInternal {
			g.cfg.Log.Error("verb failed", "action", action, "error", e.Detail())
		}
		return e
	}
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeInternal {
		g.cfg.Log.Error("verb failed", "action", action, "error", err)
	}
	return sandbox.Wrap(code, err, sandbox.MessageOf(err))
}

// DiskFull reports whether an error of the system or of the database says that the
// server's disk is full.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "database or disk is full")
}

// Unavailable returns an error for a failure of a part of Cove that a retry may fix.
func Unavailable(cause error, format string, args ...any) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, fmt.Sprintf(format, args...))
}

// Detailed returns an error whose text includes the cause of a domain error, for logs.
func Detailed(err error) error {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Unwrap() != nil {
		return fmt.Errorf("%s: %w", e.Message, e.Unwrap())
	}
	return err
}

// teardownTimeout bounds work that continues without its caller, such as the removal of
// a sandbox.
const teardownTimeout = 60 * time.Second

// Teardown returns a context for work that must be completed even if its caller is
// gone.
func Teardown(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
}

// RetryLater adds to an error about a used-up quota when to try again.
func RetryLater(err error) error {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.CodeQuotaExceeded && e.RetryAfter == 0 {
		e.RetryAfter = 10 * time.Second
	}
	return err
}
