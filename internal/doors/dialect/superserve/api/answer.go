package api

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// kind is a status with the product's code. Clients choose the class of an error
// by the status.
type kind struct {
	status int
	code   string
}

var kinds = map[sandbox.Code]kind{
	sandbox.CodeInvalid:         {http.StatusBadRequest, "bad_request"},
	sandbox.CodeUnauthenticated: {http.StatusUnauthorized, "auth_failed"},
	sandbox.CodeForbidden:       {http.StatusForbidden, "forbidden"},
	sandbox.CodeNotFound:        {http.StatusNotFound, "not_found"},
	sandbox.CodeConflict:        {http.StatusConflict, "conflict"},
	sandbox.CodeNotRunning:      {http.StatusConflict, "conflict"},
	sandbox.CodeQuotaExceeded:   {http.StatusTooManyRequests, "rate_limited"},
	sandbox.CodeTooLarge:        {http.StatusBadRequest, "too_large"},
	sandbox.CodeTimeout:         {http.StatusGatewayTimeout, "timeout"},
	sandbox.CodeCancelled:       {499, "cancelled"},
	sandbox.CodeUnsupported:     {http.StatusBadRequest, "unsupported"},
	sandbox.CodeUnavailable:     {http.StatusBadGateway, "service_unavailable"},
}

// kindOf describes an error.
func kindOf(err error) kind {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Reason == sandbox.ReasonDiskFull {
		return kind{http.StatusInsufficientStorage, "sandbox_storage_full"}
	}
	if c, ok := errors.AsType[*coded](err); ok {
		return kind{kinds[sandbox.CodeOf(err)].status, c.code}
	}
	k, ok := kinds[sandbox.CodeOf(err)]
	switch {
	case limits.IsStalled(err):
		return kind{http.StatusRequestTimeout, "timeout"}
	case !ok:
		return kind{http.StatusInternalServerError, "internal_error"}
	}
	return k
}

// coded is an error for which the product has a code of its own.
type coded struct {
	error
	code string
}

func (e *coded) Unwrap() error { return e.error }

// quota gives an exceeded quota the product's code for it. Other errors are returned
// unchanged.
func quota(err error, code string) error {
	if sandbox.CodeOf(err) == sandbox.CodeQuotaExceeded {
		return &coded{err, code}
	}
	return err
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encode(w, v)
}

// encode writes a value as JSON to an answer whose status is already sent, or is 200.
func encode(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// writeError writes an error without its cause.
func writeError(w http.ResponseWriter, err error) {
	sdkdoor.SetRetryAfter(w.Header(), err)
	k := kindOf(err)
	fail(w, k.status, k.code, sandbox.MessageOf(err))
}

// fail writes an error in the product's form.
func fail(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]string{"code": code, "message": message}})
}
