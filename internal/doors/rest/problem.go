package rest

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// statusCancelled is the status that nginx introduced for a client that went away.
const statusCancelled = 499

// statusOf maps codes to HTTP statuses.
var statusOf = map[sandbox.Code]int{
	sandbox.CodeInvalid:         http.StatusBadRequest,
	sandbox.CodeUnauthenticated: http.StatusUnauthorized,
	sandbox.CodeForbidden:       http.StatusForbidden,
	sandbox.CodeNotFound:        http.StatusNotFound,
	sandbox.CodeConflict:        http.StatusConflict,
	sandbox.CodeNotRunning:      http.StatusConflict,
	sandbox.CodeQuotaExceeded:   http.StatusTooManyRequests,
	sandbox.CodeTooLarge:        http.StatusRequestEntityTooLarge,
	sandbox.CodeTimeout:         http.StatusGatewayTimeout,
	sandbox.CodeCancelled:       statusCancelled,
	sandbox.CodeUnsupported:     http.StatusNotImplemented,
	sandbox.CodeUnavailable:     http.StatusServiceUnavailable,
	sandbox.CodeInternal:        http.StatusInternalServerError,
}

// Problem is an error in REST: problem details of RFC 9457 with the domain's code.
type Problem struct {
	Type   string `json:"type" doc:"Always about:blank; branch on code."`
	Title  string `json:"title" doc:"The HTTP status in words."`
	Status int    `json:"status"`
	Detail string `json:"detail" doc:"One sentence that says what to do next."`
	// Code is for programs to branch on.
	Code         sandbox.Code   `json:"code" enum:"invalid,unauthenticated,forbidden,not_found,conflict,not_running,quota_exceeded,too_large,timeout,cancelled,unsupported,unavailable,internal" doc:"Stable; branch on it."`
	Reason       sandbox.Reason `json:"reason,omitempty" doc:"Says more than code where programs branch on it: program_not_found, program_not_executable, disk_full."`
	RetryAfterMS int64          `json:"retry_after_ms,omitempty" doc:"When a retry may succeed, as the header Retry-After but finer."`
}

// problemOf describes err to a caller, without its cause.
func problemOf(err error) *Problem {
	code := sandbox.CodeOf(err)
	status, known := statusOf[code]
	if !known {
		code, status = sandbox.CodeInternal, http.StatusInternalServerError
	}
	if limits.IsStalled(err) {
		status = http.StatusRequestTimeout
	}
	title := http.StatusText(status)
	if status == statusCancelled {
		title = "Client Closed Request"
	}
	return &Problem{
		Type: "about:blank", Title: title, Status: status,
		Detail: sandbox.MessageOf(err), Code: code, Reason: sandbox.ReasonOf(err), RetryAfterMS: retryAfterOf(err).Milliseconds(),
	}
}

func retryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the type of problems instead of JSON's.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders returns the headers that the status requires.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(float64(p.RetryAfterMS)/1000)), 10))
	}
	if p.Code == sandbox.CodeUnauthenticated {
		h.Set("WWW-Authenticate", `Bearer realm="cove"`)
	}
	return h
}

func (p *Problem) write(w http.ResponseWriter) {
	for name, values := range p.GetHeaders() {
		if w.Header().Get(name) == "" {
			w.Header()[name] = values
		}
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and strings only
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	// A client that knows the length does not wait for the handler's end.
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	// Fails only when the client is gone.
	_, _ = w.Write(body)
}

// WriteError answers a request with an error, for handlers and middleware outside this
// package.
func WriteError(w http.ResponseWriter, err error) { problemOf(err).write(w) }

// StatusOf returns the HTTP status of an error.
func StatusOf(err error) int { return problemOf(err).Status }

// fail returns the problem for the caller, and logs causes that the caller does not
// see.
func (h *handlers) fail(ctx context.Context, err error) *Problem {
	p := problemOf(err)
	if p.Code == sandbox.CodeInternal || p.Code == sandbox.CodeUnavailable {
		h.log.ErrorContext(ctx, "request failed", "code", p.Code, "error", detailOf(err))
	}
	return p
}

func detailOf(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Detail()
	}
	return err.Error()
}

// codeOfStatus returns the code for a refusal by the HTTP layer itself.
func codeOfStatus(status int) sandbox.Code {
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return sandbox.CodeTooLarge
	case status == http.StatusRequestTimeout:
		return sandbox.CodeTimeout
	case status < 500:
		return sandbox.CodeInvalid
	}
	return sandbox.CodeInternal
}

var humaOnce sync.Once

// setUpHuma makes huma report its own errors as [Problem] values, and match names of
// members exactly. Its settings are global; only this package uses them.
func setUpHuma() {
	humaOnce.Do(func() {
		huma.ValidateStrictCasing = true
		huma.NewError = func(status int, message string, causes ...error) huma.StatusError {
			if status == http.StatusRequestTimeout {
				return problemOf(sandbox.Wrap(sandbox.CodeTimeout, limits.ErrStalled, limits.StalledMessage))
			}
			return problemOf(sandbox.Errorf(codeOfStatus(status), "%s", refusal(message, causes)))
		}
	})
}

// refusal combines the reasons of a refused request into one sentence.
func refusal(message string, causes []error) string {
	const most = 5
	var reasons []string
	for _, cause := range causes {
		if cause == nil {
			continue
		}
		if len(reasons) == most {
			reasons = append(reasons, "and more")
			break
		}
		reason := cause.Error()
		if d, ok := cause.(huma.ErrorDetailer); ok {
			// The value is left out: it may be large, or a secret.
			detail := d.ErrorDetail()
			reason = strings.TrimPrefix(detail.Location+": "+detail.Message, ": ")
		}
		reasons = append(reasons, reason)
	}
	if len(reasons) == 0 {
		return message
	}
	return "the request is not valid: " + strings.Join(reasons, "; ")
}
