package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// problem is an error in the format of RFC 9457.
type problem struct {
	Detail       string         `json:"detail"`
	Code         sandbox.Code   `json:"code"`
	Reason       sandbox.Reason `json:"reason"`
	RetryAfterMS int64          `json:"retry_after_ms"`
}

func (p problem) err() error { return domainError(p.Code, p.Detail, p.Reason, p.RetryAfterMS) }

// errorOfLine makes an error from the last line of a stream that failed after its
// start.
func errorOfLine(l *operation.LineError) error {
	return domainError(l.Code, l.Message, l.Reason, l.RetryAfterMS)
}

func domainError(code sandbox.Code, message string, reason sandbox.Reason, retryAfterMS int64) error {
	err := sandbox.Errorf(code, "%s", message)
	err.Reason = reason
	err.RetryAfter = time.Duration(retryAfterMS) * time.Millisecond
	return err
}

// errorOf makes an error from a response that is not a success.
func errorOf(resp *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var p problem
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") &&
		json.Unmarshal(data, &p) == nil && p.Code != "" {
		return p.err()
	}
	// Something between here and the server answered.
	err := sandbox.Errorf(codeOfStatus(resp.StatusCode), "the server answered %s, but not in Cove's format; check the URL, and proxies in between", resp.Status)
	if seconds, perr := strconv.Atoi(resp.Header.Get("Retry-After")); perr == nil && seconds > 0 {
		err.RetryAfter = time.Duration(seconds) * time.Second
	}
	return err
}

func codeOfStatus(status int) sandbox.Code {
	switch status {
	case http.StatusUnauthorized:
		return sandbox.CodeUnauthenticated
	case http.StatusForbidden:
		return sandbox.CodeForbidden
	case http.StatusNotFound:
		return sandbox.CodeNotFound
	case http.StatusRequestEntityTooLarge:
		return sandbox.CodeTooLarge
	case http.StatusTooManyRequests:
		return sandbox.CodeQuotaExceeded
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return sandbox.CodeUnavailable
	}
	if status >= 500 {
		return sandbox.CodeInternal
	}
	return sandbox.CodeInvalid
}

// connectionError makes an error for a request that got no answer, or only part of
// one. An error that the caller caused (through a context, a reader or a sink) comes
// first.
func (c *Client) connectionError(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*contentError](err); ok {
		return own.err
	}
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e
	}
	switch ctx.Err() {
	case context.Canceled:
		return sandbox.Wrap(sandbox.CodeCancelled, context.Cause(ctx), "the request was cancelled")
	case context.DeadlineExceeded:
		return sandbox.Wrap(sandbox.CodeTimeout, context.Cause(ctx), "the request took too long; try again or allow more time")
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err,
		fmt.Sprintf("cannot reach the Cove server at %s (%s); check that it is running and try again", c.where, rootCause(err)))
}

// foreign is the error for an answer that no Cove server gives; cause may be nil.
func (c *Client) foreign(cause error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, cause, "the response of "+c.where+" is not in Cove's format; check the URL")
}

// rootCause returns the innermost error's text: the outer errors repeat the URL.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
