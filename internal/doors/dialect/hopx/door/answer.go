package door

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Bounds of a request's body, in bytes: an agent's carries files of 8 MiB in base64.
const (
	maxControlBody = 4 << 20
	maxAgentBody   = 12 << 20
)

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// request reads a request whose body is JSON.
func (x *exchange) request() (*hopx.Request, error) {
	most := int64(maxControlBody)
	if x.at.sandbox != "" {
		most = maxAgentBody
	}
	data, err := sdkdoor.ReadBody(x.w, x.r, most, "send files to POST /files/upload")
	if err != nil {
		return nil, err
	}
	if err := limits.CheckJSON(data); err != nil {
		return nil, invalid("the body is not valid: %v", err)
	}
	return &hopx.Request{
		Method: x.r.Method, Path: x.at.path, Query: x.r.URL.Query(), Body: bytes.TrimSpace(data),
		JSON: strings.Contains(x.r.Header.Get("Accept"), "application/json"),
	}, nil
}

// answer writes an answer.
func (x *exchange) answer(a *hopx.Answer) {
	switch {
	case a.Type != "":
		x.w.Header().Set("Content-Type", a.Type)
		x.w.Header().Set("X-Content-Type-Options", "nosniff")
		x.w.WriteHeader(a.Status)
		_, _ = x.w.Write(a.Data) // the client may be gone
	case a.Value == nil:
		x.w.WriteHeader(a.Status)
	default:
		x.json(a.Status, a.Value)
	}
}

func (x *exchange) json(status int, v any) {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	enc := json.NewEncoder(x.w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client may be gone
}

// fail writes an error in the product's form.
func (x *exchange) fail(err error) {
	sdkdoor.SetRetryAfter(x.w.Header(), err)
	status, body := hopx.Describe(err, x.at.sandbox != "", x.id)
	if limits.IsStalled(err) {
		status = http.StatusRequestTimeout
	}
	if status == http.StatusInternalServerError {
		x.d.cfg.Log.ErrorContext(x.r.Context(), "serve HOPX's API", "path", x.r.URL.Path, "request", x.id, "error", err)
	}
	x.json(status, body)
}
