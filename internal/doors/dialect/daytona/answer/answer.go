// Package answer routes requests and writes answers in Daytona's forms.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// The parts of the product that an error can come from. Clients choose the class of an
// error by its code only if it is the toolbox's.
const (
	Control = "DAYTONA_API"
	Toolbox = "DAYTONA_DAEMON"
)

// MaxBody bounds the body of a request that is JSON, in bytes.
const MaxBody = 8 << 20

// maxShown bounds what an error quotes of a client's input, in bytes.
const maxShown = 128

// The codes of errors that clients have classes for.
const (
	FileNotFound     = "FILE_NOT_FOUND"
	FileDenied       = "FILE_ACCESS_DENIED"
	ExecutionTimeout = "PROCESS_EXECUTION_TIMEOUT"
	SessionEnded     = "SESSION_ENDED"
	CommandCompleted = "COMMAND_ALREADY_COMPLETED"
	NotImplemented   = "NOT_IMPLEMENTED"
)

// A Failure is an error with its status and code.
type Failure struct {
	Status  int
	Code    string
	Message string
}

// Error returns the message, which is for the caller.
func (f *Failure) Error() string { return f.Message }

// Fail returns an error with a status and a code.
func Fail(status int, code, format string, args ...any) error {
	return &Failure{status, code, fmt.Sprintf(format, args...)}
}

// Invalid returns the error for a request that is wrong.
func Invalid(format string, args ...any) error {
	return Fail(http.StatusBadRequest, "BAD_REQUEST", format, args...)
}

// Refused returns the error for a field that would have no effect.
func Refused(field, why string) error {
	return Invalid("%s: Cove does not serve this field of Daytona's: %s", field, why)
}

// Unserved returns the error for what Cove does not serve.
func Unserved(what string) error {
	return Fail(http.StatusNotImplemented, NotImplemented, "Cove does not serve %s; see docs/compat.md for what it serves of Daytona", what)
}

// statuses are the statuses by which clients choose the class of an error, with the
// product's code for each.
var statuses = map[sandbox.Code]struct {
	status int
	code   string
}{
	sandbox.CodeInvalid:         {http.StatusBadRequest, "BAD_REQUEST"},
	sandbox.CodeUnauthenticated: {http.StatusUnauthorized, "UNAUTHORIZED"},
	sandbox.CodeForbidden:       {http.StatusForbidden, "FORBIDDEN"},
	sandbox.CodeNotFound:        {http.StatusNotFound, "NOT_FOUND"},
	sandbox.CodeConflict:        {http.StatusConflict, "CONFLICT"},
	sandbox.CodeNotRunning:      {http.StatusConflict, "CONFLICT"},
	sandbox.CodeQuotaExceeded:   {http.StatusTooManyRequests, "TOO_MANY_REQUESTS"},
	sandbox.CodeTooLarge:        {http.StatusRequestEntityTooLarge, "PAYLOAD_TOO_LARGE"},
	sandbox.CodeTimeout:         {http.StatusRequestTimeout, "REQUEST_TIMEOUT"},
	sandbox.CodeCancelled:       {499, "CANCELLED"},
	sandbox.CodeUnsupported:     {http.StatusNotImplemented, NotImplemented},
	sandbox.CodeUnavailable:     {http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE"},
}

// Of describes an error without its cause.
func Of(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if limits.IsStalled(err) {
		return &Failure{http.StatusRequestTimeout, "REQUEST_TIMEOUT", err.Error()}
	}
	known, ok := statuses[sandbox.CodeOf(err)]
	if !ok {
		known.status, known.code = http.StatusInternalServerError, "INTERNAL_SERVER_ERROR"
	}
	return &Failure{known.status, known.code, sandbox.MessageOf(err)}
}

// Body is an error as clients read it.
type Body struct {
	StatusCode int    `json:"statusCode"`
	Message    string `json:"message"`
	Code       string `json:"code"`
	Source     string `json:"source"`
	Path       string `json:"path,omitempty"`
	Method     string `json:"method,omitempty"`
	Timestamp  string `json:"timestamp"`
}

// BodyOf describes an error that comes from a part of the product.
func BodyOf(err error, source string) Body {
	f := Of(err)
	return Body{StatusCode: f.Status, Message: f.Message, Code: f.Code, Source: source, Timestamp: time.Now().UTC().Format(time.RFC3339)}
}

// Error answers a request with an error of a part of the product.
func Error(w http.ResponseWriter, r *http.Request, source string, err error) {
	sdkdoor.SetRetryAfter(w.Header(), err)
	b := BodyOf(err, source)
	b.Path, b.Method = r.URL.Path, r.Method
	JSON(w, b.StatusCode, b)
}

// JSON writes a value with a status.
func JSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // output would grow sixfold, in memory too
	_ = enc.Encode(v)        // the client may be gone
}

// Decode reads a JSON body into v. An empty body leaves v unchanged. An unknown member is
// refused by its name.
func Decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, MaxBody, "send less")
	if err != nil {
		return err
	}
	return Parse(data, v)
}

// Parse decodes JSON into v as [Decode] does.
func Parse(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	err := sdkdoor.DecodeJSON(data, v)
	if name, ok := sdkdoor.UnknownMember(err); ok {
		return Refused(clip.Text(name, maxShown), "it is not known; leave it out")
	}
	if err == nil {
		return nil
	}
	return Fail(http.StatusBadRequest, "INVALID_REQUEST_BODY", "the body is not valid: %s", clip.Text(err.Error(), maxShown))
}

// Given reports whether a member is present and says something.
func Given(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", "[]", "false", `""`, "0":
		return false
	}
	return true
}

// Handler serves a request. Its error is the answer, if it has not answered.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Router finds the handler of a request. A request without a handler is refused with its
// method and path in the error.
type Router struct {
	mux    *http.ServeMux
	source string
	log    *slog.Logger
	routes []string
}

// NewRouter returns a router of a part of the product without routes.
func NewRouter(source string, log *slog.Logger) *Router {
	rt := &Router{mux: http.NewServeMux(), source: source, log: log}
	rt.mux.HandleFunc("/", rt.serve(func(_ http.ResponseWriter, r *http.Request) error { return Unserved(r.Method + " " + r.URL.Path) }))
	return rt
}

// Routes lists the patterns that are served.
func (rt *Router) Routes() []string { return slices.Clone(rt.routes) }

// On serves a pattern of [http.ServeMux].
func (rt *Router) On(pattern string, h Handler) {
	rt.routes = append(rt.routes, pattern)
	rt.mux.HandleFunc(pattern, rt.serve(h))
}

func (rt *Router) serve(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			rt.fail(w, r, err)
		}
	}
}

// OnUpload serves a pattern whose requests have content of any size as their body, which
// take reads. Its value is the answer.
func (rt *Router) OnUpload(pattern string, take func(r *http.Request) (status int, v any, err error)) {
	rt.routes = append(rt.routes, pattern)
	rt.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var status int
		limits.Receive(w, r, func() (v any, err error) {
			status, v, err = take(r)
			return v, err
		}, func(v any) { JSON(w, status, v) }, func(err error) { rt.fail(w, r, err) })
	})
}

func (rt *Router) fail(w http.ResponseWriter, r *http.Request, err error) {
	if sandbox.CodeOf(err) == sandbox.CodeInternal && Of(err).Status == http.StatusInternalServerError {
		rt.log.ErrorContext(r.Context(), "serve Daytona's API", "path", r.URL.Path, "error", err)
	}
	Error(w, r, rt.source, err)
}

// ServeHTTP serves a request whose path is clean.
func (rt *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !clean(r.URL.EscapedPath()) || !clean(r.URL.Path) {
		Error(w, r, rt.source, Fail(http.StatusNotFound, "NOT_FOUND", "the path is not clean; send it without empty, . and .. parts"))
		return
	}
	rt.mux.ServeHTTP(w, r)
}

// clean reports whether a path has no empty, . and .. parts; it may end with a slash.
func clean(name string) bool {
	return name == "/" || path.Clean(name) == strings.TrimSuffix(name, "/")
}
