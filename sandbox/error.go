package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code classifies an [Error]. Codes are stable: clients may branch on them.
type Code string

// The codes of errors.
const (
	CodeInvalid         Code = "invalid"         // the request is wrong; do not retry it unchanged
	CodeUnauthenticated Code = "unauthenticated" // no valid key was given
	CodeForbidden       Code = "forbidden"       // the key lacks a scope
	CodeNotFound        Code = "not_found"       // no such thing, or not the caller's
	CodeConflict        Code = "conflict"        // a name is taken, or the thing changed meanwhile
	CodeNotRunning      Code = "not_running"     // the sandbox is not in a state to do this
	CodeQuotaExceeded   Code = "quota_exceeded"  // a limit of the team or server is reached; retry later
	CodeTooLarge        Code = "too_large"       // input or result is over a limit
	CodeTimeout         Code = "timeout"         // it took longer than allowed
	CodeCancelled       Code = "cancelled"       // the caller went away
	CodeUnsupported     Code = "unsupported"     // this server or machine cannot do it
	CodeUnavailable     Code = "unavailable"     // a part of Cove does not answer; retry
	CodeInternal        Code = "internal"        // a defect of Cove; details are in its log
)

// Reason is more specific than a [Code], for programs to branch on. Most errors have
// none. Reasons are stable.
type Reason string

// The reasons of errors.
const (
	ReasonProgramNotFound      Reason = "program_not_found"      // the sandbox has no such program
	ReasonProgramNotExecutable Reason = "program_not_executable" // the file is there and cannot be run
	ReasonDiskFull             Reason = "disk_full"              // the sandbox's disk has no room
)

// Error is an error of the domain. Message is one sentence for the caller that
// says what to do next; the cause, if any, is for logs only.
type Error struct {
	Code    Code
	Message string
	Reason  Reason
	// RetryAfter, if positive, says how long to wait before a retry may succeed.
	RetryAfter time.Duration
	cause      error
}

// Errorf makes an [Error] whose message is formatted. A %w verb keeps its
// operand as the cause and prints it as %v does.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Wrap makes an [Error] with a message for the caller and a cause that only
// logs see.
func Wrap(code Code, cause error, message string) *Error {
	return &Error{Code: code, Message: message, cause: cause}
}

// Error returns the message without its cause: it is safe to show.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Detail returns the message with its cause, for logs.
func (e *Error) Detail() string {
	if e.cause == nil {
		return e.Message
	}
	return e.Message + ": " + e.cause.Error()
}

// CodeOf returns the code of err: that of an [Error] in its chain, timeout and
// cancelled for the errors of package context, "" for nil, and otherwise
// internal.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	switch {
	case errors.Is(err, context.Canceled):
		return CodeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	}
	return CodeInternal
}

// ReasonOf returns the reason of an [Error] in err's chain, or "".
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// MessageOf returns what a caller may be told about err. An error that is not an
// [Error] is described by its code only, since its text may contain anything.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	switch CodeOf(err) {
	case "":
		return ""
	case CodeCancelled:
		return "the request was cancelled"
	case CodeTimeout:
		return "the request took too long; try again or allow more time"
	}
	return "internal error; see the server's log for details"
}
