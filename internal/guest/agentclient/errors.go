package agentclient

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// maxErrorText bounds the text of an error from the agent, in bytes.
const maxErrorText = 1000

// codes maps the agent's codes. Others become internal. PermissionDenied is about files
// in the sandbox, not about the caller's key.
var codes = map[connect.Code]sandbox.Code{
	connect.CodeInvalidArgument:    sandbox.CodeInvalid,
	connect.CodeOutOfRange:         sandbox.CodeInvalid,
	connect.CodePermissionDenied:   sandbox.CodeInvalid,
	connect.CodeNotFound:           sandbox.CodeNotFound,
	connect.CodeAlreadyExists:      sandbox.CodeConflict,
	connect.CodeAborted:            sandbox.CodeConflict,
	connect.CodeFailedPrecondition: sandbox.CodeConflict,
	connect.CodeResourceExhausted:  sandbox.CodeTooLarge,
	connect.CodeDeadlineExceeded:   sandbox.CodeTimeout,
	connect.CodeCanceled:           sandbox.CodeCancelled,
	connect.CodeUnimplemented:      sandbox.CodeUnsupported,
	connect.CodeUnavailable:        sandbox.CodeUnavailable,
}

// mapError makes a [sandbox.Error] of the error of a call made with ctx.
func mapError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return contextError(ctx, err)
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok || !connect.IsWireError(err) {
		// Whoever dials may know better why the agent cannot be reached.
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			return e
		}
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the agent in the sandbox does not answer; try again, or kill the sandbox and create a new one")
	}
	code, known := codes[ce.Code()]
	if !known {
		code = sandbox.CodeInternal
	}
	text := clean(ce.Message(), maxErrorText)
	if text == "" {
		text = "the agent in the sandbox refused: " + ce.Code().String()
	}
	e := sandbox.Wrap(code, err, text)
	if reason := sandbox.Reason(ce.Meta().Get(reasonHeader)); slices.Contains(reasons, reason) {
		e.Reason = reason
	}
	return e
}

// reasonHeader carries the reason of an error of the agent, one of reasons.
const reasonHeader = "cove-reason"

var reasons = []sandbox.Reason{sandbox.ReasonProgramNotFound, sandbox.ReasonProgramNotExecutable, sandbox.ReasonDiskFull}

func contextError(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the agent in the sandbox does not answer in time; try again, or kill the sandbox and create a new one")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sandbox.Wrap(sandbox.CodeTimeout, err, "the request took too long; try again or allow more time")
	}
	return sandbox.Wrap(sandbox.CodeCancelled, err, "the request was cancelled")
}

// clean makes a text from the agent safe to display: valid, on one line, without control
// characters, and of at most limit bytes and an ellipsis.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = clip.Head(s, limit) + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}
