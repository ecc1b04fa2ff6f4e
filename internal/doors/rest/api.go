// Package rest is Cove's REST interface: a thin door on [sandbox.Service]. A
// handler decodes a request, calls one verb and encodes its result; the service
// checks rights, limits and quotas. The server, outside this package, puts the
// caller into the request's context.
//
// Errors are problem details (RFC 9457) with the domain's code in the member
// "code". Everything in a request is either enforced or refused: unknown members
// and query parameters are errors.
//
// The OpenAPI description, api/openapi.yaml, is generated from the handlers.
package rest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Config is what the interface needs. Service is required.
type Config struct {
	// Service does the work.
	Service sandbox.Service
	// Log receives errors with the cause that callers do not see. Nil discards them.
	Log *slog.Logger
	// Version is what GET /v1/version answers, such as "1.2.3".
	Version string
	// Denied is called with the id of each operation that was refused because the
	// caller lacks the scope; it may be nil. The service does not see these requests.
	Denied func(ctx context.Context, operation string)
	// Requests stores repeatable requests with their answers. If it is nil, a
	// repeated request runs again.
	Requests limits.Requests
	// Memory bounds the memory of requests under way; nil is [DefaultMemory].
	Memory *limits.MemoryBudgetConfig
}

// handlers holds what all handlers share.
type handlers struct {
	svc     sandbox.Service
	log     *slog.Logger
	version string
	// onDenied is [Config.Denied].
	onDenied func(ctx context.Context, operation string)
	repeats  *repeats
}

// New returns the handler of /v1/ and /healthz. It is safe for concurrent use
// and expects the caller's identity in the context ([sandbox.WithCaller]), except
// for operations for which [Open] returns true.
func New(cfg Config) http.Handler {
	mux, _ := build(cfg)
	serveDocument(mux)
	memory := DefaultMemory
	if cfg.Memory != nil {
		memory = *cfg.Memory
	}
	return &router{mux: mux, log: logOf(cfg), version: cfg.Version, memory: limits.NewMemoryBudget(memory)}
}

// Open reports whether a request is answered without credentials.
func Open(r *http.Request) bool {
	return r.URL.Path == operation.GetHealth.Path || r.URL.Path == operation.GetVersion.Path
}

func logOf(cfg Config) *slog.Logger { return cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)) }

func build(cfg Config) (*http.ServeMux, huma.API) {
	h := &handlers{svc: cfg.Service, log: logOf(cfg), version: cfg.Version, onDenied: cfg.Denied, repeats: newRepeats(cfg.Requests)}
	setUpHuma()
	mux := http.NewServeMux()
	a := humago.New(mux, humaConfig())
	// In requests, a SecretValue is a string.
	a.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[sandbox.SecretValue](), reflect.TypeFor[string]())
	a.UseMiddleware(h.guard, h.once)
	h.register(a)
	return mux, a
}

// DefaultMemory bounds the memory for bodies that are read as a whole, unless
// [Config.Memory] is set.
var DefaultMemory = limits.MemoryBudgetConfig{
	Total: 256 << 20, PerCaller: 128 << 20, MaxBody: operation.MaxEditBody, Wait: 10 * time.Second, ReadTimeout: 5 * time.Minute,
}

// router does the checks for every request, and answers requests that no handler takes.
type router struct {
	mux    *http.ServeMux
	log    *slog.Logger
	memory *limits.MemoryBudget
	// version is the header Cove-Version of each answer.
	version string
}

func (s *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.recover(r)
	if s.version != "" {
		w.Header().Set("Cove-Version", s.version)
	}
	if err := checkQuery(r.URL); err != nil {
		WriteError(w, err)
		return
	}
	handler, pattern := s.mux.Handler(r)
	if pattern == "" {
		answerUnrouted(w, r, handler)
		return
	}
	if !Streams(r) {
		r = r.WithContext(r.Context())
		release, err := s.memory.Hold(r, callerOf(r))
		if err != nil {
			w.Header().Set("Connection", "close") // so that nobody waits for the body
			WriteError(w, err)
			return
		}
		defer release()
	}
	s.mux.ServeHTTP(w, r)
}

// recover turns a panic, which is a defect or a client that went away during the
// answer, into a broken connection and, for a defect, a log message.
func (s *router) recover(r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler && r.Context().Err() == nil {
		s.log.ErrorContext(r.Context(), "handler panicked", "method", r.Method, "path", r.URL.Path,
			"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}

// repeatable are the query parameters that may be given more than once, by path.
var repeatable = map[string][]string{"/v1/sandboxes": {"state", "metadata"}, "/v1/events": {"kind"}}

// checkQuery refuses parameters that would otherwise be silently ignored.
func checkQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeInvalid, err, "the query of the URL is malformed; percent-encode its values")
	}
	for name, values := range query {
		if len(values) > 1 && !slices.Contains(repeatable[u.Path], name) {
			return sandbox.Errorf(sandbox.CodeInvalid, "query parameter %q is given %d times; give it once", name, len(values))
		}
	}
	return nil
}

// answerUnrouted answers with a problem where the mux would answer in plain text.
func answerUnrouted(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	rec := &statusRecorder{header: http.Header{}}
	handler.ServeHTTP(rec, r)
	if rec.status == http.StatusMethodNotAllowed {
		allow := rec.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p := problemOf(sandbox.Errorf(sandbox.CodeInvalid, "%s does not take %s; use %s", r.URL.Path, r.Method, allow))
		p.Status, p.Title = http.StatusMethodNotAllowed, http.StatusText(http.StatusMethodNotAllowed)
		p.write(w)
		return
	}
	WriteError(w, sandbox.Errorf(sandbox.CodeNotFound, "no such path %s; see /v1/openapi.yaml", r.URL.Path))
}

type statusRecorder struct {
	header http.Header
	status int
}

func (s *statusRecorder) Header() http.Header         { return s.header }
func (s *statusRecorder) Write(p []byte) (int, error) { return len(p), nil }
func (s *statusRecorder) WriteHeader(status int)      { s.status = status }

// callerOf returns the key of the caller's share of memory.
func callerOf(r *http.Request) string {
	c, _ := sandbox.CallerOf(r.Context())
	return c.Team + "\x00" + c.KeyID
}

// Streams reports whether the body of a request is content of any size that is passed
// on as it arrives.
func Streams(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, contentPath) || r.Method == http.MethodPost && r.URL.Path == operation.UploadArchive.Path
}
