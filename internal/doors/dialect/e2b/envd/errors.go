package envd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// codes are the codes by which clients choose the class of an error. They take
// resource_exhausted for a rate limit, so what is too large is an invalid argument.
var codes = map[sandbox.Code]connect.Code{
	sandbox.CodeInvalid:         connect.CodeInvalidArgument,
	sandbox.CodeUnauthenticated: connect.CodeUnauthenticated,
	sandbox.CodeForbidden:       connect.CodePermissionDenied,
	sandbox.CodeNotFound:        connect.CodeNotFound,
	sandbox.CodeConflict:        connect.CodeFailedPrecondition,
	sandbox.CodeNotRunning:      connect.CodeUnavailable,
	sandbox.CodeQuotaExceeded:   connect.CodeResourceExhausted,
	sandbox.CodeTooLarge:        connect.CodeInvalidArgument,
	sandbox.CodeTimeout:         connect.CodeDeadlineExceeded,
	sandbox.CodeCancelled:       connect.CodeCanceled,
	sandbox.CodeUnsupported:     connect.CodeUnimplemented,
	sandbox.CodeUnavailable:     connect.CodeUnavailable,
}

func fail(code connect.Code, format string, args ...any) *connect.Error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// failure describes an error of the service, without its cause.
func failure(err error) error {
	if err == nil {
		return nil
	}
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	code, known := codes[sandbox.CodeOf(err)]
	if !known {
		code = connect.CodeInternal
	}
	return fail(code, "%s", sandbox.MessageOf(err))
}

// errNotRunning is the error for a sandbox that has ended or is paused.
var errNotRunning = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run")

// refusal is an error with the status of its HTTP response.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

func refused(status int, message string) error { return &refusal{status, message} }

// restStatuses are the statuses of errors of calls; others are 500.
var restStatuses = map[connect.Code]int{
	connect.CodeInvalidArgument: http.StatusBadRequest,
	connect.CodeNotFound:        http.StatusNotFound,
	connect.CodeUnavailable:     http.StatusBadGateway,
}

// refuse answers an HTTP request with an error. For a sandbox that has ended it gives
// the answer of the gateway.
func (p *plane) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch e := err.(type) { // not errors.As: an error of the service may wrap one of the agent
	case *refusal:
		answer.Fail(w, e.status, e.message)
		return
	case *connect.Error:
		answer.Fail(w, cmp.Or(restStatuses[e.Code()], http.StatusInternalServerError), e.Message())
		return
	}
	box, _ := gate.SandboxOf(r.Context())
	switch code := sandbox.CodeOf(err); {
	case p.gone(r.Context(), box.ID, err):
		answer.Gone(w, access.ToE2B(box.ID), errNotRunning)
	case sandbox.ReasonOf(err) == sandbox.ReasonDiskFull:
		answer.Fail(w, http.StatusInsufficientStorage, "not enough disk space available: "+sandbox.MessageOf(err))
	case code == sandbox.CodeConflict || code == sandbox.CodeTooLarge || code == sandbox.CodeCancelled:
		answer.Fail(w, http.StatusBadRequest, sandbox.MessageOf(err))
	default:
		answer.Error(w, err)
	}
}

// explain is failure for errors that may concern the sandbox as a whole: it
// distinguishes a sandbox that has ended from a missing file or process.
func (p *plane) explain(ctx context.Context, id string, err error) error {
	if p.gone(ctx, id, err) {
		return fail(connect.CodeUnavailable, "The sandbox was not found")
	}
	return failure(err)
}

// gone reports whether an error means that the sandbox itself has ended.
func (p *plane) gone(ctx context.Context, id string, err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotRunning:
		return true
	case sandbox.CodeNotFound:
		box, err := p.cfg.Service.Get(context.WithoutCancel(ctx), id)
		return sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && box.State.Final()
	}
	return false
}

func notFound(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeNotFound }
