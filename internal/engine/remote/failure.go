package remote

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// failure is an error on its way between the ends.
type failure struct {
	// Code is set for a [sandbox.Error].
	Code         sandbox.Code   `json:",omitempty"`
	Reason       sandbox.Reason `json:",omitempty"`
	Message      string
	RetryAfterMS int64 `json:",omitempty"`
	// Cause names the error of the contract that it wraps, if any.
	Cause string `json:",omitempty"`
}

// causes are the errors that the contract names.
var causes = map[string]error{
	"not_found": engine.ErrNotFound, "no_room": engine.ErrNoRoom, "no_question": engine.ErrNoQuestion, "undecided": engine.ErrUndecided,
	"lost": engine.ErrLost, "unneeded": engine.ErrUnneeded,
	"exists": fs.ErrExist, "absent": fs.ErrNotExist, "cancelled": context.Canceled, "timeout": context.DeadlineExceeded,
}

// codes are those that an error from the other end may have.
var codes = []sandbox.Code{
	sandbox.CodeInvalid, sandbox.CodeForbidden, sandbox.CodeNotFound, sandbox.CodeConflict, sandbox.CodeNotRunning, sandbox.CodeQuotaExceeded,
	sandbox.CodeTooLarge, sandbox.CodeTimeout, sandbox.CodeCancelled, sandbox.CodeUnsupported, sandbox.CodeUnavailable, sandbox.CodeInternal,
}

const (
	// maxText bounds texts from the other end, in bytes.
	maxText = 4 << 10
	// maxRetryAfter bounds what it says about when to retry.
	maxRetryAfter = time.Hour
)

func failureOf(err error) failure {
	f := failure{Message: clean(err.Error())}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		f.Code, f.Reason, f.Message, f.RetryAfterMS = e.Code, e.Reason, clean(e.Message), e.RetryAfter.Milliseconds()
	}
	for name, cause := range causes {
		if errors.Is(err, cause) {
			f.Cause = name
			break
		}
	}
	return f
}

// error returns the error of the contract.
func (f *failure) error() error {
	cause := causes[f.Cause]
	if !slices.Contains(codes, f.Code) {
		return &nodeError{clean(f.Message), cause}
	}
	e := sandbox.Wrap(f.Code, cause, clean(f.Message))
	e.Reason = sandbox.Reason(clean(string(f.Reason)))
	e.RetryAfter = min(max(0, time.Duration(f.RetryAfterMS)*time.Millisecond), maxRetryAfter)
	return e
}

// nodeError is an error that is not for callers.
type nodeError struct {
	text  string
	cause error
}

func (e *nodeError) Error() string { return e.text }
func (e *nodeError) Unwrap() error { return e.cause }

// ErrUnanswered means that a call has failed without an answer of the node, which may have
// done what it was asked for, or do so later.
var ErrUnanswered = errors.New("the node has not answered")

// unanswered makes an error an [ErrUnanswered] with the same text.
type unanswered struct{ error }

func (u unanswered) Unwrap() error        { return u.error }
func (u unanswered) Is(target error) bool { return target == ErrUnanswered }

// isAnswer reports whether an error is what the node has answered.
func isAnswer(err error) bool {
	if _, ok := errors.AsType[*nodeError](err); ok {
		return true
	}
	_, ok := errors.AsType[*sandbox.Error](err)
	return ok
}

// clean bounds a text from the other end, and removes what does not belong into a line.
func clean(s string) string { return cleanTo(s, maxText) }

func cleanTo(s string, most int) string {
	s = strings.ToValidUTF8(s[:min(len(s), most)], "")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}
