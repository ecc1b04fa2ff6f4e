package microsandbox_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/sandbox"
)

// exchanges runs each script of a directory against a server. The files of a script come in
// pairs: "post <path>" or "get <path>" has the request's headers, on lines that begin with
// ">", and its body; "reply" has the expected response.
func exchanges(t *testing.T, dir, url string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no exchanges in %s: %v", dir, err)
	}
	update := flag.Lookup("update").Value.String() == "true"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			script, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out := &txtar.Archive{Comment: script.Comment}
			for i, f := range script.Files {
				if f.Name == "reply" {
					continue
				}
				got := exchange(t, url, f)
				out.Files = append(out.Files, f, txtar.File{Name: "reply", Data: got})
				var want []byte
				if i+1 < len(script.Files) && script.Files[i+1].Name == "reply" {
					want = script.Files[i+1].Data
				}
				if diff := cmp.Diff(string(want), string(got)); diff != "" && !update {
					t.Errorf("%s\n%s(-want +got):\n%s", f.Name, f.Data, diff)
				}
			}
			if update {
				if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func exchange(t *testing.T, url string, f txtar.File) []byte {
	t.Helper()
	method, path, _ := strings.Cut(f.Name, " ")
	header := http.Header{}
	body := string(f.Data)
	for strings.HasPrefix(body, "> ") {
		line, rest, _ := strings.Cut(body, "\n")
		name, value, _ := strings.Cut(line[2:], ": ")
		header.Add(name, value)
		body = rest
	}
	res, data := send(t, strings.ToUpper(method), url+path, header, strings.TrimSuffix(body, "\n"))
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d %s\n%s\n", res.StatusCode, res.Header.Get("Content-Type"), strings.TrimSuffix(data, "\n"))
	return []byte(hide(b.String()))
}

func send(t *testing.T, method, url string, header http.Header, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(data)
}

// harness is a server without sandboxes that knows one key, "cove_key".
type harness struct {
	url, dir string
	trusted  bool
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return harnessOf(t, local.New(t))
}

func harnessOf(t *testing.T, svc sandbox.Service) *harness {
	t.Helper()
	w := &harness{dir: t.TempDir()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	mcp, err := mcpserver.NewHTTP(mcpserver.Config{Service: svc, Log: log, HostChecked: true, Dialect: microsandbox.Name})
	if err != nil {
		t.Fatal(err)
	}
	front := microsandbox.New().Front(dialect.FrontConfig{
		Service: svc, MCP: mcp, Log: log, StateDir: w.dir,
		Trusted: func(*http.Request) bool { return w.trusted },
		Authenticate: func(_ context.Context, key string) (sandbox.Caller, error) {
			switch key {
			case "cove_key":
				return sandbox.Caller{KeyID: "key-1", Team: "t", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}, nil
			case "broken":
				return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeInternal, "the disk is on fire")
			}
			return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "who is this?")
		},
		Refuse: func(http.ResponseWriter, *http.Request) {},
	})
	srv := httptest.NewServer(front)
	t.Cleanup(func() {
		srv.Close()
		if err := mcp.Close(); err != nil {
			t.Error(err)
		}
	})
	w.url = srv.URL
	return w
}

func TestRefusals(t *testing.T) {
	w := newHarness(t)
	w.trusted = true
	exchanges(t, "testdata/rpc/local", w.url)
}

const (
	metrics  = `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get","params":{"namespace":%q}}`
	toolCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_get_metrics","arguments":{"namespace":%q}}}`
)

// TestKeys checks which keys are accepted where, and the errors for the others.
func TestKeys(t *testing.T) {
	w := newHarness(t)
	now := time.Now()
	keyFor := func(namespace string, issued, expires time.Time) string {
		signing, err := microsandbox.MakeServerKey(w.dir, false)
		if err != nil {
			t.Fatal(err)
		}
		key, err := microsandbox.NewKey(signing, microsandbox.Grant{Namespace: namespace}, issued, expires)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	all := keyFor("*", now, now.Add(time.Hour))
	one := keyFor("research", now, now.Add(time.Hour))
	signed := strings.Split(one, ".")
	const (
		credentials = `401 {"code":1001,"error":"Invalid credentials"}`
		token       = `401 {"code":1004,"error":"Invalid or expired token"}`
		denied      = `403 {"code":3001,"error":"Access denied"}`
		empty       = `200 {"id":1,"jsonrpc":"2.0","result":{"sandboxes":[]}}`
		missing     = `400 {"code":2001,"error":"Namespace directory 'research' does not exist"}`
		missingMCP  = `Error: Get metrics failed: Validation error: Namespace directory 'research' does not exist`
	)
	rpc := func(namespace string) string { return fmt.Sprintf(metrics, namespace) }
	tool := func(namespace string) string { return fmt.Sprintf(toolCall, namespace) }
	for name, tt := range map[string]struct {
		path, body, header, want string
	}{
		"nothing":                   {"/api/v1/rpc", rpc("*"), "", credentials},
		"another prefix":            {"/api/v1/rpc", rpc("*"), "Bearer xyz", credentials},
		"lower case":                {"/api/v1/rpc", rpc("*"), "bearer " + all, credentials},
		"the server's own":          {"/api/v1/rpc", rpc("*"), "Bearer cove_key", empty},
		"the server's is broken":    {"/api/v1/rpc", rpc("*"), "Bearer broken", `500 {"code":5002,"error":"Internal server error"}`},
		"all":                       {"/api/v1/rpc", rpc("*"), "Bearer " + all, empty},
		"bare":                      {"/api/v1/rpc", rpc("*"), all, empty},
		"expired in the leeway":     {"/api/v1/rpc", rpc("*"), keyFor("*", now, now.Add(-10*time.Second)), empty},
		"expired":                   {"/api/v1/rpc", rpc("*"), keyFor("*", now, now.Add(-2*time.Minute)), token},
		"no token":                  {"/api/v1/rpc", rpc("*"), "Bearer msb_", token},
		"another signature":         {"/api/v1/rpc", rpc("*"), all[:strings.LastIndexByte(all, '.')] + "." + signed[2], token},
		"no signature":              {"/api/v1/rpc", rpc("*"), "msb_eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + strings.Split(all, ".")[1] + ".", token},
		"one":                       {"/api/v1/rpc", rpc("research"), "Bearer " + one, missing},
		"one asks for another":      {"/api/v1/rpc", rpc("default"), "Bearer " + one, denied},
		"one asks for all":          {"/api/v1/rpc", rpc("*"), "Bearer " + one, denied},
		"one asks twice":            {"/api/v1/rpc", `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get","params":{"namespace":"research","Namespace":"*"}}`, one, denied},
		"one without namespace":     {"/api/v1/rpc", `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get","params":{}}`, one, `400 {"code":2001,"error":"Missing or invalid 'namespace' in params for method 'sandbox.metrics.get'"}`},
		"one without text":          {"/api/v1/rpc", `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get","params":{"namespace":1}}`, one, `400 {"code":2001,"error":"Missing or invalid 'namespace' in params for method 'sandbox.metrics.get'"}`},
		"one without params":        {"/api/v1/rpc", `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get"}`, one, `400 {"code":2001,"error":"Missing 'params' field in JSON-RPC request"}`},
		"one without JSON":          {"/api/v1/rpc", `{`, one, `400 {"code":2001,"error":"Invalid JSON-RPC request: unexpected end of JSON input"}`},
		"one with a list":           {"/api/v1/rpc", "[" + rpc("*") + "]", one, `400 {"code":2001,"error":"Invalid JSON-RPC request: the request cannot be of type array"}`},
		"one with a wrong method":   {"/api/v1/rpc", `{"jsonrpc":"2.0","method":1}`, one, `400 {"code":2001,"error":"Invalid JSON-RPC request: method cannot be of type number"}`},
		"no text":                   {"/api/v1/rpc", `{"jsonrpc":"2.0","method":"x","id":"` + "\xff" + `"}`, all, `400 Failed to parse the request body as JSON: the text is not valid UTF-8`},
		"health":                    {"/api/v1/health", "", "", `405 Method Not Allowed`},
		"MCP, nothing":              {"/mcp", tool("*"), "", credentials},
		"MCP, all":                  {"/mcp", tool("*"), "Bearer " + all, `"sandboxes\": []`},
		"MCP, one":                  {"/mcp", tool("research"), "Bearer " + one, missingMCP},
		"MCP, one asks for another": {"/mcp/", tool("default"), "Bearer " + one, denied},
		"MCP, one asks twice":       {"/mcp", strings.Replace(tool("research"), `{"namespace"`, `{"Namespace":"research","namespace":"*","x"`, 1), one, denied},
		"MCP, misplaced":            {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_get_metrics","namespace":"research","arguments":{"namespace":"default"}}}`, one, denied},
		"MCP, without text":         {"/mcp", strings.Replace(tool("x"), `"x"`, "1", 1), one, `400 {"code":2001,"error":"Missing or invalid 'namespace' in params for method 'tools/call'"}`},
		"MCP, a batch":              {"/mcp", "[" + tool("*") + "]", one, ""},
		"MCP, without params":       {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, one, `400 {"code":2001,"error":"Missing 'params' field in JSON-RPC request"}`},
		"MCP, lists are free":       {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, one, `"create_node_sandbox"`},
		"MCP, unknown tool":         {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{}}}`, all, `"code":-32603,"message":"MCP method error: Resource not found: Tool 'x' not found"`},
		"MCP, unknown prompt":       {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"x"}}`, all, `"code":-32603,"message":"MCP method error: Resource not found: Prompt 'x' not found"`},
		"MCP, unknown method":       {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"x/y"}`, all, `200 {"error":{"code":-32601,`},
		"MCP, unknown notification": {"/mcp", `{"jsonrpc":"2.0","method":"notifications/x"}`, all, `202 `},
		"MCP, ping":                 {"/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, all, `200 {"jsonrpc":"2.0","id":1,"result":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"Content-Type": {"application/json"}}
			if tt.header != "" {
				header.Set("Authorization", tt.header)
			}
			res, body := send(t, http.MethodPost, w.url+tt.path, header, tt.body)
			got := fmt.Sprint(res.StatusCode, " ", body)
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if name == "MCP, a batch" && strings.Contains(got, `"sandboxes\"`) {
				t.Errorf("got what the key is not for: %s", got)
			}
		})
	}
	t.Run("the other header wins", func(t *testing.T) {
		header := http.Header{"Content-Type": {"application/json"}, "Proxy-Authorization": {"Bearer " + all}, "Authorization": {"Bearer x"}}
		if res, body := send(t, http.MethodPost, w.url+"/api/v1/rpc", header, rpc("*")); res.StatusCode != http.StatusOK {
			t.Error(res.Status, body)
		}
	})
	t.Run("reset", func(t *testing.T) {
		if _, err := microsandbox.MakeServerKey(w.dir, true); err != nil {
			t.Fatal(err)
		}
		header := http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + all}}
		if res, body := send(t, http.MethodPost, w.url+"/api/v1/rpc", header, rpc("*")); res.StatusCode != http.StatusUnauthorized {
			t.Error(res.Status, body)
		}
	})
}

// slow is a service whose listings wait.
type slow struct {
	sandbox.Service
	listing chan struct{}
	done    chan struct{}
}

func (s *slow) List(ctx context.Context, _ sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	s.listing <- struct{}{}
	<-s.done
	return &sandbox.List[sandbox.Sandbox]{}, nil
}

func (s *slow) ListStats(context.Context, sandbox.StatsRequest) (*sandbox.List[sandbox.SandboxStats], error) {
	return &sandbox.List[sandbox.SandboxStats]{}, nil
}

// hurried is a service with one sandbox, which records how long code may take.
type hurried struct {
	sandbox.Service
	times []int64
}

func (s *hurried) Get(context.Context, string) (*sandbox.Sandbox, error) {
	return &sandbox.Sandbox{ID: "sbx-1", Name: "a", Namespace: "default", State: sandbox.StateRunning}, nil
}

func (s *hurried) RunCode(_ context.Context, _ string, req sandbox.RunCodeRequest, _ sandbox.CodeSink) (*sandbox.CodeResult, error) {
	s.times = append(s.times, req.TimeoutMS)
	return &sandbox.CodeResult{}, nil
}

// TestCodeTimeoutLimit checks that code without a timeout may run for an hour, which is also
// the maximum.
func TestCodeTimeoutLimit(t *testing.T) {
	svc := &hurried{Service: local.New(t)}
	w := harnessOf(t, svc)
	w.trusted = true
	for _, timeout := range []string{"", `,"timeout":7`, `,"timeout":7200`} {
		body := `{"jsonrpc":"2.0","id":1,"method":"sandbox.repl.run","params":{"sandbox":"a","namespace":"default","language":"python","code":"1"` + timeout + `}}`
		if res, data := send(t, http.MethodPost, w.url+"/api/v1/rpc", http.Header{"Content-Type": {"application/json"}}, body); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %s", timeout, res.Status, data)
		}
	}
	if want := []int64{3_600_000, 7000, 3_600_000}; !cmp.Equal(svc.times, want) {
		t.Errorf("the times are %v ms, want %v", svc.times, want)
	}
}

// TestSlowCallsLeaveMemory checks that slow calls without a Content-Length leave memory for
// others.
func TestSlowCallsLeaveMemory(t *testing.T) {
	svc := &slow{Service: local.New(t), listing: make(chan struct{}), done: make(chan struct{})}
	w := harnessOf(t, svc)
	w.trusted = true
	const calls = 12
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(svc.done)
	for path, body := range map[string]string{"/api/v1/rpc": fmt.Sprintf(metrics, "*"), "/mcp": fmt.Sprintf(toolCall, "*")} {
		for range calls {
			wg.Go(func() {
				// A reader of unknown length.
				req, err := http.NewRequest(http.MethodPost, w.url+path, io.MultiReader(strings.NewReader(body)))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header = http.Header{"Content-Type": {"application/json"}}
				res, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Error(path, res.Status)
				}
			})
		}
		for i := range calls {
			select {
			case <-svc.listing:
			case <-time.After(time.Minute):
				t.Fatalf("%s: %d of %d calls run at once", path, i, calls)
			}
		}
	}
}

// TestProductsKey checks a key that the product's server has made, with that server's key.
func TestProductsKey(t *testing.T) {
	w := newHarness(t)
	if err := os.WriteFile(filepath.Join(w.dir, microsandbox.KeyFile), []byte("0123456789abcdefghijABCDEFGHIJ01\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// {"alg":"HS256","typ":"JWT"}.{"exp":4102444800,"iat":1750000000,"namespace":"*"}
	const key = "msb_eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjQxMDI0NDQ4MDAsImlhdCI6MTc1MDAwMDAwMCwibmFtZXNwYWNlIjoiKiJ9.4gNQ4PH0rV6hzh3F3Vf6cMmE06r2NNNMlGzeOOgJNSE"
	header := http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + key}}
	if res, body := send(t, http.MethodPost, w.url+"/api/v1/rpc", header, fmt.Sprintf(metrics, "*")); res.StatusCode != http.StatusOK {
		t.Error(res.Status, body)
	}
}

func TestParseExpiry(t *testing.T) {
	const day = 24 * time.Hour
	for s, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "5m": 5 * time.Minute, "24h": day, "7": 7 * time.Hour, "2d": 2 * day, "3w": 21 * day, "3mo": 90 * day, "1y": 365 * day,
		"": 0, "0h": 0, "-1h": 0, "h": 0, "1x": 0, "1.5h": 0, "101y": 0, "99999999999": 0, "1 h": 0,
	} {
		got, err := microsandbox.ParseExpiry(s)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q is %v, %v; want %v", s, got, err, want)
		}
	}
}

// TestServerKeyFile checks that only its owner can read the key file.
func TestServerKeyFile(t *testing.T) {
	dir := t.TempDir()
	key, err := microsandbox.MakeServerKey(dir, false)
	if err != nil || !regexp.MustCompile(`^[A-Za-z0-9]{32}$`).Match(key) {
		t.Fatalf("%q, %v", key, err)
	}
	if again, err := microsandbox.MakeServerKey(dir, false); err != nil || !bytes.Equal(again, key) {
		t.Errorf("made again: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, microsandbox.KeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, microsandbox.KeyFile), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := microsandbox.ServerKey(dir); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a short key: %v", err)
	}
}
