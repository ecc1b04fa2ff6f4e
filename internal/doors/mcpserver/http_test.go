package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// web is a running handler. The header X-Test-Key names the caller.
type web struct {
	t       *testing.T
	url     string
	handler *Handler
	client  *http.Client
}

func serve(t *testing.T, cfg Config) *web {
	t.Helper()
	cfg.Version = "0.0.1"
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	h, err := NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Test-Key")
		if key == "" {
			key = "k1"
		}
		caller := sandbox.Caller{KeyID: key, Team: "team", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}}
		h.ServeHTTP(w, r.WithContext(sandbox.WithCaller(r.Context(), caller)))
	}))
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	return &web{t: t, url: srv.URL, handler: h, client: client}
}

// message is a JSON-RPC message of the server.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

func (w *web) do(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// post sends a message and returns the status and the last message of the
// answer.
func (w *web) post(path, body string, headers ...string) (int, message) {
	w.t.Helper()
	res := w.do(w.t.Context(), http.MethodPost, path, body, headers...)
	defer res.Body.Close()
	return res.StatusCode, w.last(res)
}

func (w *web) last(res *http.Response) message {
	w.t.Helper()
	var m message
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			if event, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				m = message{}
				if err := json.Unmarshal([]byte(event), &m); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		return m
	}
	if json.Unmarshal(data, &m) != nil {
		return message{Method: strings.TrimSpace(string(data))}
	}
	return m
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// session begins a session of the older era and returns its headers.
func (w *web) session(path string, headers ...string) []string {
	w.t.Helper()
	res := w.do(w.t.Context(), http.MethodPost, path, initialize, headers...)
	defer res.Body.Close()
	id := res.Header.Get(headerSession)
	if m := w.last(res); res.StatusCode != http.StatusOK || id == "" || m.Error != nil {
		w.t.Fatalf("initialize: %d %+v", res.StatusCode, m)
	}
	headers = append(headers, headerSession, id, headerProtocol, "2025-11-25")
	if status, m := w.post(path, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, headers...); status != http.StatusAccepted {
		w.t.Fatalf("initialized: %d %+v", status, m)
	}
	return headers
}

func call(id int, tool, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, args)
}

// newEra is a request of the era without sessions, with its headers.
func newEra(id int, method, name, params string) (body string, headers []string) {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}`
	if params != "" {
		params += ","
	}
	headers = []string{headerProtocol, statelessRevision, "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s%s}}`, id, method, params, meta), headers
}

func newEraCall(id int, tool, args string) (string, []string) {
	return newEra(id, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, args))
}

func toolNames(t *testing.T, m message) []string {
	t.Helper()
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(m.Result, &list); err != nil {
		t.Fatalf("%v in %+v", err, m)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

func TestBothEras(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	headers := w.session("/mcp")
	_, old := w.post("/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, headers...)
	body, newHeaders := newEra(2, "tools/list", "", "")
	status, stateless := w.post("/mcp", body, newHeaders...)
	if status != http.StatusOK {
		t.Fatalf("%d %+v", status, stateless)
	}
	oldNames, newNames := toolNames(t, old), toolNames(t, stateless)
	// Only in a session does a turned-on toolset stay on.
	if diff := cmp.Diff(oldNames, append(newNames, "toolset_list", "toolset_enable")); diff != "" || len(newNames) != 18 || newNames[0] != "sandbox_create" {
		t.Errorf("lists of tools differ: %s %v", diff, newNames)
	}
	_, res := w.post("/mcp", call(3, "sandbox_exec", `{"sandbox":"s","shell":"hi"}`), headers...)
	body, newHeaders = newEraCall(3, "sandbox_exec", `{"sandbox":"s","shell":"hi"}`)
	_, res2 := w.post("/mcp", body, newHeaders...)
	for _, m := range []message{res, res2} {
		if !strings.Contains(string(m.Result), `"stdout":"hi"`) {
			t.Errorf("%+v %s", m, m.Result)
		}
	}
	// A request that carries the new era's metadata without its header.
	body, _ = newEra(2, "tools/list", "", "")
	if status, m := w.post("/mcp", body); status != http.StatusBadRequest || m.Error == nil || m.Error.Code != mcp.CodeHeaderMismatch {
		t.Errorf("%d %+v", status, m)
	}
	if status, _ := w.post("/mcp", body, headerProtocol, "1999-01-01"); status != http.StatusBadRequest {
		t.Errorf("a revision that never was: %d", status)
	}
}

// The library's own client, which negotiates.
func TestClient(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{"sandbox": "s", "shell": "hi"}})
	if err != nil || res.IsError {
		t.Fatal(res, err)
	}
	if got := cs.InitializeResult(); got.ServerInfo.Name != "cove" || !strings.Contains(got.Instructions, "sandbox_create") {
		t.Errorf("%+v", got)
	}
}

func TestCallerOfEachRequest(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f})
	headers := w.session("/mcp", "X-Test-Key", "alice")
	list := call(2, "sandbox_list", "{}")
	if status, m := w.post("/mcp", list, headers...); status != http.StatusOK {
		t.Fatal(status, m)
	}
	// Bob knows the session's id.
	stolen := append([]string{}, headers...)
	stolen[1] = "bob"
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		res := w.do(t.Context(), method, "/mcp", list, stolen...)
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s with another's session: %d", method, res.StatusCode)
		}
	}
	body, newHeaders := newEraCall(3, "sandbox_list", "{}")
	w.post("/mcp", body, append(newHeaders, "X-Test-Key", "carol")...)
	var keys []string
	for _, c := range f.seen() {
		keys = append(keys, c.KeyID)
	}
	if diff := cmp.Diff([]string{"alice", "carol"}, keys); diff != "" {
		t.Error(diff)
	}
}

func waitFor[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// abandon sends a request and goes away when ctx ends.
func (w *web) abandon(ctx context.Context, body string, headers []string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/mcp", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if res, err := w.client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}

// A client that goes away ends its call, in either era.
func TestClosedStreamCancels(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f})
	oldHeaders := w.session("/mcp")
	body, newHeaders := newEraCall(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`)
	for name, request := range map[string]struct {
		body    string
		headers []string
	}{
		"session":   {call(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`), oldHeaders},
		"stateless": {body, newHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				waitFor(t, f.started, "start")
				cancel()
			}()
			w.abandon(ctx, request.body, request.headers)
			if err := waitFor(t, f.ended, "end of the work"); !errors.Is(err, context.Canceled) {
				t.Errorf("the work ended with %v", err)
			}
		})
	}
}

func TestCancelNotification(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f})
	headers := w.session("/mcp")
	done := make(chan message, 1)
	go func() {
		_, m := w.post("/mcp", call(7, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`), headers...)
		done <- m
	}()
	waitFor(t, f.started, "start")
	w.post("/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"enough"}}`, headers...)
	if err := waitFor(t, f.ended, "end of the work"); !errors.Is(err, context.Canceled) {
		t.Errorf("the work ended with %v", err)
	}
	waitFor(t, done, "end of the call")
}

// When a client ends a session, the session's calls end too, but only if the session is
// the client's own.
func TestEndedSessionCancels(t *testing.T) {
	f := newFake()
	w := serve(t, Config{Service: f})
	headers := w.session("/mcp", "X-Test-Key", "alice")
	done := make(chan message, 1)
	go func() {
		_, m := w.post("/mcp", call(7, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`), headers...)
		done <- m
	}()
	waitFor(t, f.started, "start")
	stolen := append([]string{}, headers...)
	stolen[1] = "bob"
	elsewhere := append([]string{"Cove-Namespace", "other"}, headers...)
	for _, others := range [][]string{stolen, elsewhere} {
		if res := w.do(t.Context(), http.MethodDelete, "/mcp", "", others...); res.StatusCode != http.StatusForbidden {
			t.Errorf("another's DELETE: %s", res.Status)
		}
	}
	select {
	case err := <-f.ended:
		t.Fatalf("another's DELETE ended the work: %v", err)
	default:
	}
	if res := w.do(t.Context(), http.MethodDelete, "/mcp", "", headers...); res.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %s", res.Status)
	}
	if err := waitFor(t, f.ended, "end of the work"); !errors.Is(err, context.Canceled) {
		t.Errorf("the work ended with %v", err)
	}
	waitFor(t, done, "end of the call")
}

func TestBodies(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	headers := w.session("/mcp")
	t.Run("100 MB by length", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/mcp", &endless{left: 100_000_000})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 100_000_000
		w.expectTooLarge(req, headers)
	})
	t.Run("100 MB in chunks", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/mcp", &endless{left: 100_000_000})
		if err != nil {
			t.Fatal(err)
		}
		w.expectTooLarge(req, headers)
	})
	t.Run("a member twice", func(t *testing.T) {
		status, m := w.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_list","arguments":{"limit":1,"limit":2}}}`, headers...)
		if status != http.StatusBadRequest || m.Error == nil || !strings.Contains(m.Error.Message, `"limit" is given twice`) {
			t.Errorf("got %d %+v", status, m)
		}
	})
	t.Run("not UTF-8", func(t *testing.T) {
		status, m := w.post("/mcp", call(2, "sandbox_exec", `{"sandbox":"s","shell":"`+"\xff"+`"}`), headers...)
		if status != http.StatusBadRequest || m.Error == nil || m.Error.Code != -32700 {
			t.Errorf("%d %+v", status, m)
		}
	})
	t.Run("not JSON", func(t *testing.T) {
		for _, body := range []string{"", "{", "[]", "null", `{"jsonrpc":"2.0"}`, strings.Repeat("[", 100_000)} {
			if status, _ := w.post("/mcp", body, headers...); status != http.StatusBadRequest {
				t.Errorf("%.20q: %d", body, status)
			}
		}
	})
	t.Run("large ones are fine", func(t *testing.T) {
		size := 1 << 20 // what takes seconds under the race detector is left to "make soak"
		if needs.Soak() {
			size = 8 << 20
		}
		status, m := w.post("/mcp", call(3, "sandbox_exec", `{"sandbox":"s","shell":"x","stdin":"`+strings.Repeat("x", size)+`"}`), headers...)
		if status != http.StatusOK || m.Error != nil {
			t.Errorf("%d %+v", status, m)
		}
	})
}

// endless is a large body that takes no memory.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = 'x'
	}
	e.left -= n
	return n, nil
}

func (w *web) expectTooLarge(req *http.Request, headers []string) {
	w.t.Helper()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := w.client.Do(req)
	if err != nil {
		// The server may close the connection before all is sent.
		if errors.Is(err, io.ErrClosedPipe) || strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe") {
			return
		}
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	if m := w.last(res); res.StatusCode != http.StatusRequestEntityTooLarge || m.Error == nil || !strings.Contains(m.Error.Message, "12 MiB") {
		w.t.Errorf("%d %+v", res.StatusCode, m)
	}
}

func TestChoice(t *testing.T) {
	all, every := 18, 58
	tests := []struct {
		name    string
		cfg     Config
		path    string
		headers []string
		status  int
		tools   int
		problem string
	}{
		{"default", Config{}, "/mcp", nil, 200, all, ""},
		{"trailing slash", Config{}, "/mcp/", nil, 200, all, ""},
		{"path", Config{}, "/mcp/x/code", nil, 200, 2, ""},
		{"two toolsets", Config{}, "/mcp/x/code,core", nil, 200, 19, ""},
		{"time", Config{}, "/mcp/x/time", nil, 200, 10, ""},
		{"network", Config{}, "/mcp/x/network", nil, 200, 3, ""},
		{"all", Config{Toolsets: []string{"code"}}, "/mcp/x/all", nil, 200, every, ""},
		{"read-only", Config{}, "/mcp/readonly", nil, 200, 6, ""},
		{"both", Config{}, "/mcp/x/core/readonly", nil, 200, 6, ""},
		{"dialect", Config{}, "/mcp/native", nil, 200, all, ""},
		{"dialect and toolset", Config{}, "/mcp/native/x/code", nil, 200, 2, ""},
		{"header", Config{}, "/mcp", []string{headerToolsets, " code , "}, 200, 2, ""},
		{"read-only header", Config{}, "/mcp", []string{headerReadOnly, "true"}, 200, 6, ""},
		{"path wins", Config{}, "/mcp/x/code", []string{headerToolsets, "core"}, 200, 2, ""},
		{"flag", Config{Toolsets: []string{"code"}}, "/mcp", nil, 200, 2, ""},
		{"default and another", Config{}, "/mcp/x/default,code", nil, 200, 19, ""},
		{"all and those that change the list", Config{}, "/mcp/x/all,dynamic", nil, 200, every, ""},
		{"single tools", Config{}, "/mcp", []string{headerTools, "volume_list, network_log"}, 200, 2, ""},
		{"a toolset and a tool", Config{}, "/mcp", []string{headerToolsets, "code", headerTools, "volume_list,run_code"}, 200, 3, ""},
		{"tool flag", Config{Tools: []string{"volume_list"}}, "/mcp", nil, 200, 1, ""},
		{"path wins over tool flag", Config{Tools: []string{"volume_list"}}, "/mcp/x/code", nil, 200, 2, ""},
		{"unknown tool", Config{}, "/mcp", []string{headerTools, "volume_list,nope"}, 400, 0, `unknown tool "nope"; known are sandbox_create, sandbox_list,`},
		{"read-only flag stays", Config{ReadOnly: true}, "/mcp", []string{headerReadOnly, "false"}, 200, 6, ""},
		{"unknown toolset", Config{}, "/mcp/x/nope", nil, 400, 0, `unknown toolset "nope"; known are core, sandboxes, jobs, code, files, time, network, secrets, previews, computer, templates, volumes, dynamic, default and all`},
		{"unknown in header", Config{}, "/mcp", []string{headerToolsets, "core,nope"}, 400, 0, `unknown toolset "nope"; known are core, sandboxes, jobs, code, files, time, network, secrets, previews, computer, templates, volumes, dynamic, default and all`},
		{"bad read-only", Config{}, "/mcp", []string{headerReadOnly, "maybe"}, 404, 0, "must be true or false"},
		{"unknown path", Config{}, "/mcp/nope", nil, 404, 0, "no such path"},
		{"too deep", Config{}, "/mcp/readonly/x", nil, 404, 0, "no such path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Service = newFake()
			w := serve(t, tt.cfg)
			body, headers := newEra(1, "tools/list", "", "")
			status, m := w.post(tt.path, body, append(headers, tt.headers...)...)
			if status != tt.status {
				t.Fatalf("status %d: %+v", status, m)
			}
			if tt.problem != "" {
				if m.Error == nil || !strings.Contains(m.Error.Message, tt.problem) {
					t.Errorf("%+v", m.Error)
				}
				return
			}
			if n := len(toolNames(t, m)); n != tt.tools {
				t.Errorf("%d tools: %v", n, toolNames(t, m))
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{Toolsets: []string{"nope"}}, {Dialect: "nope"}} {
		if _, err := NewHTTP(cfg); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+v: %v", cfg, err)
		}
		if err := RunStdio(t.Context(), cfg, strings.NewReader(""), io.Discard); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestForeignHost(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	if status, _ := w.post("/mcp", initialize, "Host", "evil.example.com"); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
}

func TestErrors(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	headers := w.session("/mcp")
	tests := []struct{ name, tool, args, want string }{
		{"panic", "sandbox_exec", `{"sandbox":"s","shell":"panic"}`, "internal error; see the server's log for details (internal)"},
		{"internal", "sandbox_exec", `{"sandbox":"s","shell":"fail"}`, "internal error; see the server's log for details (internal)"},
		{"not found", "file_read", `{"sandbox":"s","path":"x"}`, "no such file; list the directory with file_list (not_found)"},
		{"unknown argument", "sandbox_list", `{"filter":"x"}`, `sandbox_list: unknown argument "filter"; known are states, metadata, name, template, limit, cursor (invalid)`},
		{"missing", "file_read", `{"sandbox":"s"}`, `file_read: "path" is missing (invalid)`},
		{"wrong type", "sandbox_list", `{"limit":"many"}`, `sandbox_list: "limit" must be an integer (invalid)`},
		{"negative", "sandbox_list", `{"limit":-1}`, `sandbox_list: "limit" must be at least 1 (invalid)`},
		{"huge", "sandbox_list", `{"limit":1e300}`, `sandbox_list: "limit" must be at most 200 (invalid)`},
		{"not in the list", "sandbox_list", `{"states":["asleep"]}`, `sandbox_list: "states[0]" must be one of creating, running, paused, stopping, killed, failed (invalid)`},
		{"not an object", "sandbox_list", `[]`, `the arguments must be one JSON object (invalid)`},
		{"neither", "sandbox_exec", `{"sandbox":"s"}`, `sandbox_exec: give either "shell" (a line) or "command" (a program and its arguments) (invalid)`},
		{"empty", "sandbox_exec", `{"sandbox":"","shell":"x"}`, `sandbox_exec: "sandbox" must not be empty (invalid)`},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, m := w.post("/mcp", call(10+i, tt.tool, tt.args), headers...)
			var res struct {
				IsError           bool
				Content           []struct{ Text string }
				StructuredContent struct {
					Error struct{ Code, Message string }
				}
			}
			if status != http.StatusOK || json.Unmarshal(m.Result, &res) != nil || !res.IsError || len(res.Content) != 1 || res.Content[0].Text != tt.want {
				t.Fatalf("%d %+v %s", status, m.Error, m.Result)
			}
			if e := res.StructuredContent.Error; tt.want != fmt.Sprintf("%s (%s)", e.Message, e.Code) {
				t.Errorf("structured: %+v", e)
			}
			if strings.Contains(string(m.Result), "hunter2") || strings.Contains(string(m.Result), "goroutine") {
				t.Errorf("an error tells too much: %s", m.Result)
			}
		})
	}
	_, m := w.post("/mcp", `{"jsonrpc":"2.0","id":99,"method":"resources/read","params":{"uri":"cove://sandbox/s/nope"}}`, headers...)
	if m.Error == nil || (m.Error.Code != -32002 && m.Error.Code != -32602) {
		t.Errorf("a resource that is not there: %+v", m.Error)
	}
	if status, m := w.post("/mcp", call(98, "no_such_tool", "{}"), headers...); status != http.StatusOK || m.Error == nil || m.Error.Code != -32602 {
		t.Errorf("a tool that is not there: %d %+v", status, m.Error)
	}
}

// An older client does not know resource links.
func TestAdapt(t *testing.T) {
	for protocol, want := range map[string]int{"2024-11-05": 1, "2025-03-26": 1, "2025-06-18": 2, "2026-07-28": 2, "": 2} {
		res := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "a"}, &mcp.ResourceLink{URI: "cove://x"}}}
		if got := len(adapt(res, protocol).Content); got != want {
			t.Errorf("%s: %d blocks", protocol, got)
		}
	}
}
