package envd

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/sandbox"
)

// codes are those by which the clients choose the class of an error.
// resource_exhausted reads as a rate limit there, so what is too large is an
// invalid argument.
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

// explain is failure for errors that may be of the sandbox as a whole: one that
// is gone is told apart from a file or a process that is not there.
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
