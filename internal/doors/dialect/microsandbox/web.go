package microsandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// The paths of the product's HTTP interface besides MCP's.
const (
	pathHealth = "/api/v1/health"
	pathRPC    = "/api/v1/rpc"
)

// maxBody bounds a request's body: code of the largest size, escaped.
const maxBody = 12 << 20

// memory bounds the memory of bodies: eight of the largest, of which one caller may have
// four.
var memory = limits.MemoryBudgetConfig{
	Total: 8 * maxBody, PerCaller: 4 * maxBody, MaxBody: maxBody, Wait: 10 * time.Second, ReadTimeout: 5 * time.Minute,
}

// The codes of errors outside JSON-RPC.
const (
	codeCredentials = 1001
	codeToken       = 1004
	codeInvalid     = 2001
	codeDenied      = 3001
	codeScope       = 3002
	codeInternal    = 5002
)

// The codes of JSON-RPC's own errors.
const (
	rpcInvalidRequest = -32600
	rpcUnknownMethod  = -32601
)

// front answers the product's HTTP interface.
type front struct {
	dialect.FrontConfig
	memory *limits.MemoryBudget
}

// Paths returns the paths below which the front answers, besides MCP's.
func (d *Dialect) Paths() []string { return []string{pathHealth, pathRPC} }

// Front returns the handler of HTTP requests.
func (d *Dialect) Front(cfg dialect.FrontConfig) http.Handler {
	return &front{FrontConfig: cfg, memory: limits.NewMemoryBudget(memory)}
}

// ServeHTTP answers a request to one of the front's paths or to MCP.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	clean := path.Clean(r.URL.Path)
	if clean == pathHealth {
		f.Refuse(w, r) // the body is not read
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			notAllowed(w, "GET, HEAD")
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"message": "Service is healthy"})
		return
	}
	caller, refused := f.admit(r)
	if refused != nil {
		f.Refuse(w, r)
		if refused.status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		refused.write(w)
		return
	}
	r = r.Clone(sandbox.WithCaller(r.Context(), caller))
	if clean != pathRPC {
		f.serveMCP(w, r)
		return
	}
	if r.Method != http.MethodPost {
		f.Refuse(w, r)
		notAllowed(w, http.MethodPost)
		return
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" && !strings.HasSuffix(t, "+json") {
		f.Refuse(w, r)
		http.Error(w, "Expected request with `Content-Type: application/json`", http.StatusUnsupportedMediaType)
		return
	}
	body, release, err := f.read(w, r)
	if err != nil {
		refuseBody(w, err)
		return
	}
	defer release()
	f.serveRPC(w, r, body)
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
}

// plainError is an error outside JSON-RPC.
type plainError struct {
	status  int
	message string
	code    int
}

func (e *plainError) write(w http.ResponseWriter) {
	writeJSON(w, e.status, map[string]any{"error": e.message, "code": e.code})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data := dialect.JSON(v, "")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, data) // the client may be gone
}

// admit authenticates the caller, by a key of the dialect or of the server.
func (f *front) admit(r *http.Request) (sandbox.Caller, *plainError) {
	if f.Trusted(r) {
		return sandbox.LocalCaller(), nil
	}
	key := r.Header.Get("Proxy-Authorization")
	if key == "" {
		key = r.Header.Get("Authorization")
	}
	key = strings.TrimPrefix(key, "Bearer ")
	if !strings.HasPrefix(key, keyPrefix) {
		caller, err := f.Authenticate(r.Context(), key)
		switch sandbox.CodeOf(err) {
		case "":
			return caller, nil
		case sandbox.CodeUnauthenticated:
			return caller, &plainError{http.StatusUnauthorized, "Invalid credentials", codeCredentials}
		case sandbox.CodeQuotaExceeded:
			return caller, &plainError{http.StatusTooManyRequests, sandbox.MessageOf(err), codeCredentials}
		}
		f.Log.ErrorContext(r.Context(), "look for a key", "error", err)
		return caller, &plainError{http.StatusInternalServerError, "Internal server error", codeInternal}
	}
	serverKey, err := ServerKey(f.StateDir)
	var grant claims
	if err == nil {
		grant, err = readKey(serverKey, key)
	} else if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		f.Log.ErrorContext(r.Context(), "read the key of microsandbox", "error", err)
	}
	if err != nil {
		// The server's own keys may have the same prefix.
		caller, ownErr := f.Authenticate(r.Context(), key)
		switch sandbox.CodeOf(ownErr) {
		case "":
			return caller, nil
		case sandbox.CodeQuotaExceeded:
			return caller, &plainError{http.StatusTooManyRequests, sandbox.MessageOf(ownErr), codeToken}
		}
		return sandbox.Caller{}, &plainError{http.StatusUnauthorized, "Invalid or expired token", codeToken}
	}
	return callerFor(grant), nil
}

// read reads a bounded body. Call release when the body is no longer needed.
func (f *front) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	caller, _ := sandbox.CallerOf(r.Context())
	if release, err = f.memory.Hold(r, caller.Team+"\x00"+caller.KeyID); err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = limits.CheckJSON(body)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

func refuseBody(w http.ResponseWriter, err error) {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		w.Header().Set("Connection", "close")
		http.Error(w, fmt.Sprintf("the request is over %d MiB; write large files in parts", maxBody>>20), http.StatusRequestEntityTooLarge)
		return
	}
	_, twice := errors.AsType[*limits.DuplicateError](err)
	if twice || errors.Is(err, limits.ErrNotUTF8) {
		http.Error(w, "Failed to parse the request body as JSON: "+err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case limits.IsStalled(err):
		http.Error(w, limits.StalledMessage, http.StatusRequestTimeout)
		return
	case errors.Is(err, limits.ErrBusy):
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "2")
		http.Error(w, sandbox.MessageOf(err), http.StatusServiceUnavailable)
		return
	}
	http.Error(w, "the request could not be read", http.StatusBadRequest)
}

// serveMCP passes a request on to the MCP server, if its key allows that.
func (f *front) serveMCP(w http.ResponseWriter, r *http.Request) {
	bound, namespaced := namespaceOf(r.Context())
	if !namespaced || bound == wildcard || r.Method != http.MethodPost {
		f.MCP.ServeHTTP(w, r)
		return
	}
	body, release, err := f.read(w, r)
	if err != nil {
		refuseBody(w, err)
		return
	}
	defer release()
	if refused := checkCall(body, bound); refused != nil {
		refused.write(w)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	f.MCP.ServeHTTP(w, r)
}

// checkCall refuses a tool call in a namespace that its key does not cover. The tool does
// that too; this check gives the HTTP answer.
func checkCall(body []byte, bound string) *plainError {
	var msg struct {
		Method string `json:"method"`
		Params *struct {
			Namespace *string `json:"namespace"`
			Arguments struct {
				Namespace *string `json:"namespace"`
			} `json:"arguments"`
		} `json:"params"`
	}
	err := json.Unmarshal(body, &msg)
	if err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
			return &plainError{http.StatusBadRequest, "Invalid JSON-RPC request: " + err.Error(), codeInvalid}
		}
	}
	switch {
	case msg.Method != "tools/call":
		return nil
	case err != nil:
		return checkBound(msg.Method, nil, bound)
	case msg.Params == nil:
		return errNoParams
	}
	namespace := msg.Params.Arguments.Namespace
	if namespace == nil {
		namespace = msg.Params.Namespace
	}
	return checkBound(msg.Method, namespace, bound)
}

var errNoParams = &plainError{http.StatusBadRequest, "Missing 'params' field in JSON-RPC request", codeInvalid}

func checkBound(method string, namespace *string, bound string) *plainError {
	switch {
	case namespace == nil:
		return &plainError{http.StatusBadRequest, fmt.Sprintf("Missing or invalid 'namespace' in params for method '%s'", clip.Text(method, maxShown)), codeInvalid}
	case *namespace != bound:
		return &plainError{http.StatusForbidden, errDenied.Error(), codeDenied}
	}
	return nil
}

// request is a JSON-RPC request.
type request struct {
	JSONRPC *string         `json:"jsonrpc"`
	Method  *string         `json:"method"`
	Params  json.RawMessage `json:"params"`
	ID      json.RawMessage `json:"id"`
}

// serveRPC answers a JSON-RPC request. Not every error is a JSON-RPC reply.
func (f *front) serveRPC(w http.ResponseWriter, r *http.Request, body []byte) {
	var req request
	if err := json.Unmarshal(body, &req); err != nil {
		why := err.Error()
		e, misshapen := errors.AsType[*json.UnmarshalTypeError](err)
		if misshapen {
			why = fmt.Sprintf("%s cannot be of type %s", cmp.Or(e.Field, "the request"), e.Value)
		}
		bound, namespaced := namespaceOf(r.Context())
		switch {
		case namespaced && bound != wildcard:
			(&plainError{http.StatusBadRequest, "Invalid JSON-RPC request: " + why, codeInvalid}).write(w)
		case misshapen:
			refuseShape(w, why)
		default:
			http.Error(w, "Failed to parse the request body as JSON: "+why, http.StatusBadRequest)
		}
		return
	}
	if req.JSONRPC == nil || req.Method == nil {
		missing := "method"
		if req.JSONRPC == nil {
			missing = "jsonrpc"
		}
		refuseShape(w, fmt.Sprintf("missing field `%s`", missing))
		return
	}
	if *req.JSONRPC != "2.0" {
		req.fail(w, http.StatusBadRequest, rpcInvalidRequest, "Invalid or missing jsonrpc version field")
		return
	}
	if refused := req.bounded(r.Context()); refused != nil {
		refused.write(w)
		return
	}
	for i := range methods {
		if methods[i].rpc == *req.Method {
			f.run(w, r, &req, &methods[i])
			return
		}
	}
	req.fail(w, http.StatusNotFound, rpcUnknownMethod, "Method not found: "+clip.Text(*req.Method, maxShown))
}

func refuseShape(w http.ResponseWriter, why string) {
	http.Error(w, "Failed to deserialize the JSON body into the target type: "+why, http.StatusUnprocessableEntity)
}

// bounded refuses a request in a namespace that its key does not cover.
func (req *request) bounded(ctx context.Context) *plainError {
	bound, namespaced := namespaceOf(ctx)
	if !namespaced || bound == wildcard {
		return nil
	}
	if len(req.Params) == 0 {
		return errNoParams
	}
	var params target
	if json.Unmarshal(req.Params, &params) != nil {
		params.Namespace = nil // it is not text
	}
	return checkBound(*req.Method, params.Namespace, bound)
}

// fail answers with a JSON-RPC error.
func (req *request) fail(w http.ResponseWriter, status, code int, message string) {
	req.answer(w, status, "error", map[string]any{"code": code, "message": message})
}

// answer writes a reply with the request's id, if it has one.
func (req *request) answer(w http.ResponseWriter, status int, key string, v any) {
	reply := map[string]any{"jsonrpc": "2.0", key: v}
	if len(req.ID) > 0 && string(req.ID) != "null" {
		reply["id"] = req.ID
	}
	writeJSON(w, status, reply)
}

// run runs a method.
func (f *front) run(w http.ResponseWriter, r *http.Request, req *request, m *method) {
	c := &call{lenient: true, Call: &dialect.Call{
		Service: f.Service, Args: req.Params, Session: func() *dialect.Session { return nil },
		Status: func(string) {}, Header: r.Header, Log: f.Log,
	}}
	v, err := m.invoke(r.Context(), c, req.Params)
	if err != nil {
		f.tell(r.Context(), m, err).write(w)
		return
	}
	req.answer(w, http.StatusOK, "result", v)
}

// invoke runs a method, and confines a panic to the request.
func (m *method) invoke(ctx context.Context, c *call, params json.RawMessage) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return m.run(ctx, c, params)
}

// tell returns the answer for an error of a method.
func (f *front) tell(ctx context.Context, m *method, err error) *plainError {
	message := sandbox.MessageOf(err)
	if e, ok := errors.AsType[*paramsError](err); ok {
		if m.portal && (e.missing == "sandbox" || e.missing == "namespace") {
			message += " for portal request"
		} else {
			message = "Invalid params for " + m.rpc + ": " + message
		}
	}
	switch code := sandbox.CodeOf(err); {
	case errors.Is(err, errDenied):
		return &plainError{http.StatusForbidden, message, codeDenied}
	case code == sandbox.CodeForbidden:
		return &plainError{http.StatusForbidden, message, codeScope}
	case code == sandbox.CodeInvalid, code == sandbox.CodeTooLarge:
		return &plainError{http.StatusBadRequest, message, codeInvalid}
	case code == sandbox.CodeInternal:
		f.Log.ErrorContext(ctx, "method failed", "method", m.rpc, "error", err)
	}
	return &plainError{http.StatusInternalServerError, "Internal server error: " + message, codeInternal}
}
