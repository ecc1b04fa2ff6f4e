package superserve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The product's paths on a port of its own. On other ports, MCP is at the same path as for
// every dialect.
const (
	pathMCP    = "/"
	pathHealth = "/health"
)

// The codes of errors outside tools.
const (
	codeRefused      = -32000
	codeUnauthorized = -32001
	codeTooLarge     = -32002
	codeInternal     = -32603
	codeNotJSON      = -32700
)

// front is the handler of HTTP requests. It passes those that it accepts on to the MCP
// server.
type front struct{ dialect.FrontConfig }

// Paths returns none: there are no paths besides that of MCP.
func (d *Dialect) Paths() []string { return nil }

// PortPaths returns the product's paths.
func (d *Dialect) PortPaths() []string { return []string{pathMCP, pathHealth} }

// Front returns the handler of HTTP requests.
func (d *Dialect) Front(cfg dialect.FrontConfig) http.Handler { return &front{cfg} }

// ServeHTTP answers a request to MCP or to one of the paths of a port.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path.Clean("/"+r.URL.Path) == pathHealth {
		f.Refuse(w, r) // the body is not read
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			notAllowed(w, "GET, HEAD")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}`)) // the client may be gone
		return
	}
	if r.Method != http.MethodPost {
		f.Refuse(w, r)
		notAllowed(w, http.MethodPost)
		return
	}
	caller, err := f.admit(r)
	if err != nil {
		f.Refuse(w, r)
		switch sandbox.CodeOf(err) {
		case sandbox.CodeQuotaExceeded:
			fail(w, http.StatusTooManyRequests, codeRefused, sandbox.MessageOf(err))
		case sandbox.CodeUnauthenticated:
			w.Header().Set("WWW-Authenticate", `Bearer realm="superserve-mcp"`)
			fail(w, http.StatusUnauthorized, codeUnauthorized, sandbox.MessageOf(err))
		default:
			f.Log.ErrorContext(r.Context(), "authenticate a key", "error", err)
			fail(w, http.StatusInternalServerError, codeInternal, "Internal server error.")
		}
		return
	}
	own := &refusals{ResponseWriter: w}
	defer own.finish()
	f.MCP.ServeHTTP(own, r.Clone(sandbox.WithCaller(r.Context(), caller)))
}

// admit authenticates the caller.
func (f *front) admit(r *http.Request) (sandbox.Caller, error) {
	if f.Trusted(r) {
		return sandbox.LocalCaller(), nil
	}
	key, err := auth.BearerToken(r.Header)
	if err != nil {
		return sandbox.Caller{}, err
	}
	return f.Authenticate(r.Context(), key)
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	fail(w, http.StatusMethodNotAllowed, codeRefused, "Method not allowed.")
}

// fail answers with a JSON-RPC error without a request id.
func fail(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"jsonrpc": "2.0", "error": map[string]any{"code": code, "message": message}, "id": nil,
	}) // the client may be gone
}

// refusals replaces refusals of the MCP server by the product's errors: some are plain
// text, and the one for a body that is too large has a different code.
type refusals struct {
	http.ResponseWriter
	status int // held back, or 0
	text   bytes.Buffer
}

// maxRefusal bounds the kept part of a refusal, in bytes.
const maxRefusal = 4 << 10

// Unwrap supports [http.ResponseController].
func (w *refusals) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader holds back a refusal.
func (w *refusals) WriteHeader(status int) {
	switch {
	case w.status != 0:
	case status == http.StatusRequestEntityTooLarge, status >= 400 && strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain"):
		w.status = status
	default:
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (w *refusals) Write(p []byte) (int, error) {
	if w.status == 0 {
		return w.ResponseWriter.Write(p)
	}
	w.text.Write(p[:min(len(p), maxRefusal-w.text.Len())])
	return len(p), nil
}

// finish writes the refusal that was held back.
func (w *refusals) finish() {
	if w.status == 0 {
		return
	}
	message, code := strings.TrimSpace(w.text.String()), codeRefused
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(w.text.Bytes(), &body) == nil && body.Error.Message != "" {
		message = body.Error.Message
	}
	switch {
	case w.status == http.StatusRequestEntityTooLarge:
		code = codeTooLarge
	case strings.HasPrefix(message, "malformed payload"):
		code = codeNotJSON
	}
	h := w.Header()
	h.Del("X-Content-Type-Options")
	h.Del("Content-Length")
	fail(w.ResponseWriter, w.status, code, message)
}
