package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// The headers of the protocol, and ours to choose tools.
const (
	headerProtocol = "Mcp-Protocol-Version"
	headerSession  = "Mcp-Session-Id"
	headerName     = "Mcp-Name"
	headerToolsets = "X-Cove-Toolsets"
	headerTools    = "X-Cove-Tools"
	headerReadOnly = "X-Cove-Read-Only"
)

// statelessRevision is the first revision of the protocol without sessions.
const statelessRevision = "2026-07-28"

// Handler serves MCP over Streamable HTTP. Mount it at /mcp and /mcp/:
//
//	/mcp                          the default dialect and tools
//	/mcp/<dialect>                another dialect
//	/mcp/readonly                 only tools that change nothing
//	/mcp/x/<toolset>,<toolset>    these toolsets, or "all"
//	/mcp/x/<toolsets>/readonly    both
//
// The headers X-Cove-Toolsets, X-Cove-Tools (single tools, in addition to any
// toolsets) and X-Cove-Read-Only choose in the same way; the path takes precedence.
// Requests with and without sessions can be mixed. A session can turn on further
// toolsets for itself; clients without sessions have only what they chose.
type Handler struct {
	cfg       Config
	dialects  map[string]*sessions
	stateful  http.Handler
	stateless http.Handler
	plain     http.Handler // stateless, and answers with JSON only
	memory    *limits.MemoryBudget
	limit     *sessionLimit
	tasks     *tasks
	watches   *watches
	parking   *parking

	mu      sync.Mutex
	servers map[string]*mcp.Server // guarded by mu
}

// NewHTTP returns a handler. The context of its requests carries the caller
// ([sandbox.WithCaller]); without one, services refuse the work.
func NewHTTP(cfg Config) (*Handler, error) {
	cfg = cfg.withDefaults()
	h := &Handler{
		cfg:      cfg,
		dialects: make(map[string]*sessions),
		memory:   limits.NewMemoryBudget(*cfg.Memory),
		servers:  make(map[string]*mcp.Server),
		tasks:    newTasks(),
		watches:  newWatches(cfg.MaxSessionsPerKey, 0),
		parking:  newParking(),
	}
	for _, d := range all.Dialects() {
		h.dialects[d.Name()] = newSessions(true)
	}
	h.limit = newSessionLimit(cfg)
	if _, err := h.server(cfg.Dialect, cfg.selection()); err != nil {
		return nil, err
	}
	opts := mcp.StreamableHTTPOptions{
		SessionTimeout:               cfg.SessionIdle,
		DisableLocalhostProtection:   cfg.HostChecked,
		MaxRequestBodyBytes:          maxMessage,
		PropagateRequestCancellation: true,
	}
	h.stateful = identify(mcp.NewStreamableHTTPHandler(serverOf, &opts))
	opts.Stateless = true
	h.stateless = identify(mcp.NewStreamableHTTPHandler(serverOf, &opts))
	opts.JSONResponse = true
	h.plain = identify(mcp.NewStreamableHTTPHandler(serverOf, &opts))
	return h, nil
}

type serverKey struct{}

func serverOf(r *http.Request) *mcp.Server {
	s, _ := r.Context().Value(serverKey{}).(*mcp.Server)
	return s
}

// maxServers bounds the cached servers: clients may choose any number of selections.
// Beyond it a server is built for each request or session.
const maxServers = 512

// server returns the server of a dialect and selection.
func (h *Handler) server(name string, sel dialect.Selection) (*mcp.Server, error) {
	d, err := all.Find(name)
	if err != nil {
		return nil, err
	}
	if sel, err = dialect.Normalize(d, sel); err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s %+v", d.Name(), sel)
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.servers[key]; ok {
		return s, nil
	}
	b := &builder{cfg: h.cfg, dialect: d, sessions: h.dialects[d.Name()], tasks: h.tasks, watches: h.watches, parking: h.parking, join: h.join}
	s, err := b.build(sel)
	if err != nil {
		return nil, err
	}
	if len(h.servers) < maxServers {
		h.servers[key] = s
	}
	return s, nil
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, sel, err := h.choice(r)
	if err != nil {
		refuse(w, http.StatusNotFound, jsonrpc.CodeInvalidRequest, sandbox.MessageOf(err))
		return
	}
	if r, err = inNamespace(r.Clone(r.Context()), name); err != nil {
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, sandbox.MessageOf(err))
		return
	}
	var body []byte
	if r.Method == http.MethodPost {
		var release func()
		if body, release, err = h.readBody(w, r); err != nil {
			refuseBody(w, err)
			return
		}
		defer release()
		r.Body = io.NopCloser(bytes.NewReader(body))
		var answered func()
		w, answered = expectUnknown(w, body)
		defer answered()
	}
	if refuseMismatch(w, r, body) {
		return
	}
	plain := declares(name, dialect.PlainJSON.PlainJSON)
	sel.Fixed = plain || sessionless(r, body) || declares(name, dialect.Sessionless.Sessionless)
	server, err := h.server(name, sel)
	if err != nil {
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, sandbox.MessageOf(err))
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), serverKey{}, server))
	switch {
	case plain:
		r.Header.Set("Accept", "application/json, text/event-stream")
		h.plain.ServeHTTP(w, r)
	case sel.Fixed:
		h.stateless.ServeHTTP(w, r)
	default:
		h.serveSession(w, r, server)
	}
}

// choice returns the dialect and the tools that a request chooses.
func (h *Handler) choice(r *http.Request) (name string, sel dialect.Selection, err error) {
	name, sel = h.cfg.Dialect, h.cfg.selection()
	if own := OwnDialect(r.Context()); own != "" {
		name, sel.Toolsets, sel.Tools = own, nil, nil // chosen for another dialect
	}
	if sets, tools := r.Header.Get(headerToolsets), r.Header.Get(headerTools); sets != "" || tools != "" {
		sel.Toolsets, sel.Tools = dialect.ParseToolsets(sets), dialect.ParseToolsets(tools)
	}
	switch v := strings.ToLower(r.Header.Get(headerReadOnly)); v {
	case "", "false", "0":
	case "true", "1":
		sel.ReadOnly = true
	default:
		return "", sel, sandbox.Errorf(sandbox.CodeInvalid, "header %s must be true or false", headerReadOnly)
	}
	path := strings.Trim(strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/mcp"), "/")
	if path == "" {
		return name, sel, nil
	}
	segments := strings.Split(path, "/")
	if _, ok := h.dialects[segments[0]]; ok {
		if segments[0] != name {
			sel.Toolsets, sel.Tools = nil, nil // chosen for another dialect
		}
		name, segments = segments[0], segments[1:]
	}
	if len(segments) >= 2 && segments[0] == "x" {
		sel.Toolsets, sel.Tools, segments = dialect.ParseToolsets(segments[1]), nil, segments[2:]
	}
	if len(segments) == 1 && segments[0] == "readonly" {
		sel.ReadOnly, segments = true, nil
	}
	if len(segments) > 0 {
		return "", sel, sandbox.Errorf(sandbox.CodeNotFound, "no such path; MCP is at /mcp, /mcp/<dialect>, /mcp/x/<toolsets> and /mcp/readonly")
	}
	return name, sel, nil
}

// readBody reads a bounded body. The caller calls release when it no longer needs it.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if r.ContentLength > maxMessage {
		return nil, nil, &http.MaxBytesError{Limit: maxMessage}
	}
	if release, err = h.memory.Hold(r, userOf(r.Context())); err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err == nil {
		err = limits.CheckJSON(body)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

// notUTF8 is the error message for a message that is not text.
const notUTF8 = "the message is not valid UTF-8; send binary data as base64"

func refuseBody(w http.ResponseWriter, err error) {
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	_, duplicate := errors.AsType[*limits.DuplicateError](err)
	switch {
	case tooLarge:
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusRequestEntityTooLarge, jsonrpc.CodeInvalidRequest,
			fmt.Sprintf("the request is over %d MiB; write large files in parts", maxMessage>>20))
	case errors.Is(err, limits.ErrNotUTF8):
		refuse(w, http.StatusBadRequest, jsonrpc.CodeParseError, notUTF8)
	case duplicate:
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, err.Error())
	case limits.IsStalled(err):
		refuse(w, http.StatusRequestTimeout, jsonrpc.CodeInvalidRequest, limits.StalledMessage)
	case errors.Is(err, limits.ErrBusy):
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "2")
		refuse(w, http.StatusServiceUnavailable, jsonrpc.CodeInternalError, sandbox.MessageOf(err))
	default:
		refuse(w, http.StatusBadRequest, jsonrpc.CodeInvalidRequest, "the request could not be read")
	}
}

// refuse answers a request that no server sees.
func refuse(w http.ResponseWriter, status int, code int64, message string) {
	refuseID(w, nil, status, code, message)
}

// refuseID answers a request whose id is known.
func refuseID(w http.ResponseWriter, id json.RawMessage, status int, code int64, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error of writing means that the client has gone.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": message},
	})
}

// sessionless reports whether a request is of a revision without sessions. Its header
// names the revision; a request without the header but with such a revision's metadata
// counts too, so that it gets the error that names the missing header.
func sessionless(r *http.Request, body []byte) bool {
	if v := r.Header.Get(headerProtocol); v != "" {
		return v >= statelessRevision
	}
	return r.Header.Get(headerSession) == "" && bytes.Contains(body, []byte(`"`+mcp.MetaKeyProtocolVersion+`"`))
}

// declares reports whether a dialect implements the interface of a method, and the
// method returns true.
func declares[I any](name string, method func(I) bool) bool {
	d, err := all.Find(name)
	if err != nil {
		return false
	}
	v, ok := d.(I)
	return ok && method(v)
}

type dialectKey struct{}

// WithDialect returns a context for requests whose default is that dialect, such as
// requests to the dialect's own port.
func WithDialect(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, dialectKey{}, name)
}

// OwnDialect returns the dialect of [WithDialect], or "".
func OwnDialect(ctx context.Context) string {
	name, _ := ctx.Value(dialectKey{}).(string)
	return name
}

// Dialect returns the name of the dialect that a request to the handler chooses.
func (h *Handler) Dialect(r *http.Request) string {
	name, _, err := h.choice(r)
	if err != nil {
		return ""
	}
	return name
}

func (h *Handler) serveSession(w http.ResponseWriter, r *http.Request, server *mcp.Server) {
	if id := r.Header.Get(headerSession); id != "" {
		defer h.limit.use(id)()
		if r.Method == http.MethodDelete {
			// The library would wait for the calls that still run.
			h.limit.cancelCalls(id, ownerOf(r.Context()))
		}
		if r.Method == http.MethodGet && h.limit.owns(id, ownerOf(r.Context())) {
			// Changes are reported on this stream. The caller's key is checked again for
			// as long as the stream lasts.
			defer h.watches.open(r.Context(), id)()
		}
		h.stateful.ServeHTTP(w, r)
		return
	}
	if r.Method != http.MethodPost {
		h.stateful.ServeHTTP(w, r)
		return
	}
	admitted, ok := h.limit.admit(userOf(r.Context()), ownerOf(r.Context()))
	if !ok {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, jsonrpc.CodeInternalError, "too many sessions are in use; retry later")
		return
	}
	register := sync.OnceFunc(func() { admitted(server, w.Header().Get(headerSession)) })
	defer register()
	h.stateful.ServeHTTP(&beforeAnswer{w, register}, r)
}

// beforeAnswer calls first before it sends any part of an answer: a client that has
// read what it needs may send its next request before the handler has returned.
type beforeAnswer struct {
	http.ResponseWriter
	first func()
}

// Unwrap is for [http.ResponseController].
func (b *beforeAnswer) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *beforeAnswer) WriteHeader(status int) {
	b.first()
	b.ResponseWriter.WriteHeader(status)
}

func (b *beforeAnswer) Write(p []byte) (int, error) {
	b.first()
	return b.ResponseWriter.Write(p)
}

// Close ends all tasks, parked calls and sessions and returns when they have been cleaned
// up.
func (h *Handler) Close() error {
	h.tasks.close()
	h.parking.close()
	servers := h.limit.servers()
	h.mu.Lock()
	for _, s := range h.servers {
		servers[s] = true
	}
	h.mu.Unlock()
	var wg sync.WaitGroup
	for s := range servers {
		for ss := range s.Sessions() {
			wg.Go(func() { _ = ss.Close() }) // ended either way
		}
	}
	wg.Wait()
	for _, s := range h.dialects {
		s.wait()
	}
	return nil
}

// The library gives all requests of a session the context of the request that started
// the session. What belongs to one request is passed as its token info, to which the
// library also binds sessions.
const (
	extraCaller  = "caller"
	extraContext = "context"
)

func userOf(ctx context.Context) string {
	c, ok := sandbox.CallerOf(ctx)
	if !ok {
		return "anonymous"
	}
	return c.Team + "\x00" + c.KeyID
}

// ownerOf names who may continue a session: the user who started it, in the same
// namespace.
func ownerOf(ctx context.Context) string {
	return userOf(ctx) + "\x00" + namespaceOf(ctx)
}

// identify gives a request the token info of its caller.
func identify(next http.Handler) http.Handler {
	verify := func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		caller, _ := sandbox.CallerOf(r.Context())
		return &auth.TokenInfo{
			UserID: ownerOf(r.Context()),
			Extra:  map[string]any{extraCaller: caller, extraContext: r.Context()},
		}, nil
	}
	withInfo := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A placeholder: no tool needs to see the real token.
		r.Header.Set("Authorization", "Bearer checked")
		r.Header.Del("X-Api-Key")
		withInfo.ServeHTTP(w, r)
	})
}

// join is [builder.join] for HTTP. The result of a call can only be sent to the
// request that made it, so a closed stream cancels the call in all revisions, and so
// does the end of its session.
func (h *Handler) join(ctx context.Context, req mcp.Request) (context.Context, context.CancelFunc) {
	var caller sandbox.Caller
	var request context.Context
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		caller, _ = extra.TokenInfo.Extra[extraCaller].(sandbox.Caller)
		request, _ = extra.TokenInfo.Extra[extraContext].(context.Context)
	}
	ctx, cancel := context.WithCancel(sandbox.WithCaller(ctx, caller))
	_, calls := req.GetParams().(*mcp.CallToolParamsRaw)
	_, listens := req.GetParams().(*mcp.SubscriptionsListenParams)
	if !calls && !listens || request == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(request, cancel)
	forget := func() {}
	if session := req.GetSession(); session != nil && session.ID() != "" {
		forget = h.limit.track(session.ID(), cancel)
	}
	return ctx, func() { forget(); stop(); cancel() }
}
