package hopx

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown bounds what an answer quotes of a client's input, in bytes.
const maxShown = 256

// failure is the answer that the product's API would have given to a request.
type failure struct {
	status int
	// code is the product's; codes of agents are in upper case.
	code string
	// agent is set for an agent's answer, as opposed to the control plane's.
	agent   bool
	url     string
	path    string // of a file
	sandbox string // as the client named it
	key     string // the argument that named it, "sandbox_id" if empty
	err     error
	// doing completes "Failed to …", and more are additional keys, in v0.2.
	doing string
	more  []pair
	// exact is a body that both generations return unchanged.
	exact any
}

func (e *failure) Error() string { return e.err.Error() }
func (e *failure) Unwrap() error { return e.err }

// message returns the text for clients.
func (e *failure) message() string { return sandbox.MessageOf(e.err) }

// statuses maps error codes of the service to the product's statuses and codes.
var statuses = map[sandbox.Code]struct {
	status  int
	control string
	agent   string
}{
	sandbox.CodeInvalid:         {http.StatusBadRequest, "invalid_request", "INVALID_REQUEST"},
	sandbox.CodeUnauthenticated: {http.StatusUnauthorized, "unauthorized", "TOKEN_INVALID"},
	sandbox.CodeForbidden:       {http.StatusForbidden, "forbidden", "PERMISSION_DENIED"},
	sandbox.CodeNotFound:        {http.StatusNotFound, "not_found", "NOT_FOUND"},
	sandbox.CodeConflict:        {http.StatusConflict, "conflict", "CONFLICT"},
	sandbox.CodeNotRunning:      {http.StatusConflict, "sandbox_stopped", "SANDBOX_STOPPED"},
	sandbox.CodeQuotaExceeded:   {http.StatusTooManyRequests, "rate_limit_exceeded", "RATE_LIMIT_EXCEEDED"},
	sandbox.CodeTooLarge:        {http.StatusRequestEntityTooLarge, "too_large", "TOO_LARGE"},
	sandbox.CodeTimeout:         {http.StatusRequestTimeout, "execution_timeout", "EXECUTION_TIMEOUT"},
	sandbox.CodeCancelled:       {499, "cancelled", "CANCELLED"},
	sandbox.CodeUnsupported:     {http.StatusNotImplemented, "not_supported", "NOT_SUPPORTED"},
	sandbox.CodeUnavailable:     {http.StatusServiceUnavailable, "service_unavailable", "SERVICE_UNAVAILABLE"},
	sandbox.CodeInternal:        {http.StatusInternalServerError, "internal_server_error", "INTERNAL_ERROR"},
}

// failed turns an error of the service into a failure. A failure is returned unchanged.
func failed(agent bool, url string, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	s, ok := statuses[sandbox.CodeOf(err)]
	if !ok {
		s = statuses[sandbox.CodeInternal]
	}
	f := &failure{status: s.status, code: s.control, agent: agent, url: url, err: err}
	if agent {
		f.code = s.agent
	}
	return f
}

// control returns a failure of the control plane. kind is the kind of thing that is
// missing, such as "template".
func control(url, kind string, err error) error {
	f := failed(false, url, err)
	if f.code == "not_found" {
		f.code = kind + "_not_found"
	}
	return f
}

// v1 returns the failure as v0.1 shows it: the message of its HTTP client, and the answer's
// body.
func (e *failure) v1() any {
	if e.exact != nil {
		return e.exact
	}
	side := "Client"
	if e.status >= http.StatusInternalServerError {
		side = "Server"
	}
	return object(
		pair{"status_code", e.status},
		pair{"error", fmt.Sprintf("%s error '%d %s' for url '%s'", side, e.status, cmp.Or(http.StatusText(e.status), "Client Closed Request"), clip.Text(e.url, maxShown))},
		pair{"body", e.body()},
	)
}

// body returns the answer's body. The error of an agent is a string, that of the control
// plane an object.
func (e *failure) body() any {
	msg := e.message()
	if !e.agent {
		details := object()
		if wait := retryAfter(e.err); wait > 0 {
			details = object(pair{"retry_after_seconds", wait})
		}
		return object(
			pair{"error", object(pair{"message", msg}, pair{"code", e.code}, pair{"details", details})},
			pair{"message", msg}, pair{"code", e.code})
	}
	pairs := []pair{{"error", msg}, {"message", msg}, {"code", e.code}}
	if e.path != "" {
		pairs = append(pairs, pair{"path", clip.Text(e.path, maxShown)})
	}
	return object(append(pairs, pair{"timestamp", dialect.Stamp(time.Now())})...)
}

func retryAfter(err error) int64 { return dialect.Detail(err).RetryAfterSeconds }

// v2 returns the failure as v0.2 shows it.
func (e *failure) v2() any {
	msg := e.message()
	switch {
	case e.exact != nil:
		return e.exact
	case strings.EqualFold(e.code, "sandbox_not_found"):
		return object(append([]pair{{"error", "Sandbox not found"}, {cmp.Or(e.key, "sandbox_id"), clip.Text(e.sandbox, maxShown)}}, e.more...)...)
	case e.code == "FILE_NOT_FOUND":
		return object(pair{"error", "File not found"}, pair{"path", clip.Text(e.path, maxShown)})
	}
	return object(append([]pair{{"error", "Failed to " + cmp.Or(e.doing, "do that")}, {"exception", msg}}, e.more...)...)
}

// Failure shows an error as the product does: a failure of its API is a normal result that
// contains an error. Invalid arguments and an unreachable server are protocol errors.
func (d *Dialect) Failure(err error) *mcp.CallToolResult {
	if e, ok := errors.AsType[*dialect.CallError](err); ok && e.Arguments {
		problem := strings.TrimPrefix(sandbox.MessageOf(e.Err), e.Tool+": ")
		return dialect.ErrorText(fmt.Sprintf("Error executing tool %s: 1 validation error for %sArguments\n%s", e.Tool, e.Tool, problem), nil)
	}
	if e, ok := errors.AsType[*dialect.CallError](err); ok && sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		if f, ok := errors.AsType[*failure](err); !ok || f.exact == nil {
			return dialect.ErrorText(fmt.Sprintf("Error executing tool %s: %s", e.Tool, sandbox.MessageOf(err)), nil)
		}
	}
	return answer(d.failure(failed(false, "", err)))
}
