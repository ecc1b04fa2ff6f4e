// Package answer writes answers in E2B's forms.
package answer

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// statuses are the statuses by which clients choose the class of an error. Clients have
// no classes for timeouts and unsupported requests.
var statuses = map[sandbox.Code]int{
	sandbox.CodeInvalid:         http.StatusBadRequest,
	sandbox.CodeUnauthenticated: http.StatusUnauthorized,
	sandbox.CodeForbidden:       http.StatusForbidden,
	sandbox.CodeNotFound:        http.StatusNotFound,
	sandbox.CodeConflict:        http.StatusConflict,
	sandbox.CodeNotRunning:      http.StatusConflict,
	sandbox.CodeQuotaExceeded:   http.StatusTooManyRequests,
	sandbox.CodeTooLarge:        http.StatusRequestEntityTooLarge,
	sandbox.CodeTimeout:         http.StatusGatewayTimeout,
	sandbox.CodeCancelled:       499,
	sandbox.CodeUnsupported:     http.StatusNotImplemented,
	sandbox.CodeUnavailable:     http.StatusServiceUnavailable,
}

// Failure is an error in E2B's form. Clients use Code, which repeats the status.
type Failure struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

// Of describes an error of the service, without its cause.
func Of(err error) Failure {
	status, ok := statuses[sandbox.CodeOf(err)]
	switch {
	case limits.IsStalled(err):
		status = http.StatusRequestTimeout
	case !ok:
		status = http.StatusInternalServerError
	}
	return Failure{Code: status, Message: sandbox.MessageOf(err)}
}

// JSON writes a value with a status.
func JSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// Error writes an error.
func Error(w http.ResponseWriter, err error) {
	sdkdoor.SetRetryAfter(w.Header(), err)
	f := Of(err)
	JSON(w, f.Code, f)
}

// Fail writes an error that does not come from the service.
func Fail(w http.ResponseWriter, status int, message string) {
	JSON(w, status, Failure{Code: status, Message: message})
}

// Volume writes an error of a volume's content, whose code is a word.
func Volume(w http.ResponseWriter, status int, message string) {
	code := strings.ToLower(strings.ReplaceAll(http.StatusText(status), " ", "_"))
	JSON(w, status, map[string]string{"code": code, "message": message})
}

// Plain writes a text, as the product's gateway does before it knows the sandbox.
func Plain(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(message)) // the client may be gone
}

// Gone writes that a sandbox does not exist or does not run, in the form of the
// product's gateway. It writes other errors unchanged.
func Gone(w http.ResponseWriter, id string, err error) {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeNotRunning:
	default:
		Error(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	JSON(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found", "code": http.StatusBadGateway})
}
