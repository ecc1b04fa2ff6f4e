package cloud

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown bounds what an error quotes of a client's input, in bytes.
const maxShown = 128

// kind is a status with the product's code. Clients choose the class of an error by the
// code first, and then by the status.
type kind struct {
	status int
	code   string
}

var kinds = map[sandbox.Code]kind{
	sandbox.CodeInvalid:         {http.StatusBadRequest, "invalid_request"},
	sandbox.CodeUnauthenticated: {http.StatusUnauthorized, "invalid_api_key"},
	sandbox.CodeForbidden:       {http.StatusForbidden, "forbidden"},
	sandbox.CodeNotFound:        {http.StatusNotFound, "not_found"},
	sandbox.CodeConflict:        {http.StatusConflict, "conflict"},
	sandbox.CodeNotRunning:      {http.StatusConflict, "sandbox_not_running"},
	sandbox.CodeQuotaExceeded:   {http.StatusTooManyRequests, "quota_exceeded"},
	sandbox.CodeTooLarge:        {http.StatusRequestEntityTooLarge, "too_large"},
	sandbox.CodeTimeout:         {http.StatusGatewayTimeout, "timeout"},
	sandbox.CodeCancelled:       {499, "cancelled"},
	sandbox.CodeUnsupported:     {http.StatusBadRequest, "invalid_sandbox_config"},
	sandbox.CodeUnavailable:     {http.StatusServiceUnavailable, "unavailable"},
}

// coded is an error for which the product has a code of its own.
type coded struct {
	error
	code string
}

// Unwrap returns Cove's error.
func (e *coded) Unwrap() error { return e.error }

func kindOf(err error) kind {
	k, ok := kinds[sandbox.CodeOf(err)]
	switch {
	case limits.IsStalled(err):
		return kind{http.StatusRequestTimeout, "timeout"}
	case !ok:
		return kind{http.StatusInternalServerError, "internal_error"}
	}
	if c, ok := errors.AsType[*coded](err); ok {
		k.code = c.code
	}
	return k
}

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// refused returns the error for a field of a sandbox's description that Cove does not
// enforce.
func refused(field, why string) error {
	return &coded{sandbox.Errorf(sandbox.CodeInvalid, "%s: %s", field, why), "invalid_sandbox_config"}
}

func errNoSandbox(name string) error {
	return &coded{sandbox.Errorf(sandbox.CodeNotFound, "sandbox %q not found", clip.Text(name, maxShown)), "sandbox_not_found"}
}

func errNoVolume(name string) error {
	return &coded{sandbox.Errorf(sandbox.CodeNotFound, "volume %q not found", clip.Text(name, maxShown)), "volume_not_found"}
}

// aboutName gives a conflict in the creation of a sandbox the code by which clients
// recognize one.
func aboutName(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return &coded{err, "name_already_exists"}
	}
	return err
}

// writeJSON answers with a value. The product's status for success is always 200.
func writeJSON(w http.ResponseWriter, v any) { writeStatus(w, http.StatusOK, v) }

func writeStatus(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
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
	writeStatus(w, status, map[string]any{"error": map[string]any{"code": code, "message": message, "details": nil}})
}
