package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/sandbox"
)

// post sends JSON to a port of its own, and returns the status and the answer.
func post(t *testing.T, addr net.Addr, path, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// A port of its own speaks its dialect at /mcp, asks for keys as the product does,
// and has everything else that the main one has.
func TestDialectPorts(t *testing.T) {
	ports := map[string]net.Addr{}
	r := mustStart(t, func(cfg *config.Config) {
		cfg.DialectPorts = []string{"microsandbox=0", "podflare@hosted=127.0.0.1:0"}
	}, func(d *setup) { d.DialectReady = func(name string, addr net.Addr) { ports[name] = addr } })
	own, hosted := ports["microsandbox"], ports["podflare@hosted"]
	if own == nil || hosted == nil {
		t.Fatalf("the ports are %v", ports)
	}
	key, err := r.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	signing, err := microsandbox.MakeServerKey(r.cfg.StateDir, false)
	if err != nil {
		t.Fatal(err)
	}
	token, err := microsandbox.NewKey(signing, microsandbox.Grant{Namespace: "*"}, time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	const (
		initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
		metrics    = `{"jsonrpc":"2.0","id":1,"method":"sandbox.metrics.get","params":{"namespace":"*"}}`
	)
	for _, tt := range []struct {
		addr                  net.Addr
		path, key, body, want string
	}{
		{own, "/mcp", key.Secret, initialize, `200 {"jsonrpc":"2.0","id":1,"result":{"capabilities":{"prompts":{},"tools":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"microsandbox-server"`},
		{own, "//mcp/", token, initialize, `"microsandbox-server"`},
		{own, "/mcp/podflare", key.Secret, initialize, `"podflare"`},
		{own, "/mcp/podflare", token, initialize, `401 `},
		{own, "/mcp", "", initialize, `401 {"code":1001`},
		{own, "/api/v1/rpc", token, metrics, `200 {"id":1,"jsonrpc":"2.0","result":{"sandboxes":[]}}`},
		{own, "/api/v1/rpc", "", metrics, `401 {"code":1001`},
		{own, "/api/v1/x", key.Secret, metrics, `404 `},
		{own, "/v1/sandboxes", token, `{}`, `401 `},
		{own, "/v1/nothing", key.Secret, `{}`, `404 `},
		{hosted, "/mcp", key.Secret, initialize, `"podflare"`},
		{hosted, "/mcp", token, initialize, `401 `},
		{hosted, "/mcp/native", key.Secret, initialize, `"cove"`},
		{r.tcp, "/mcp", key.Secret, initialize, `"cove"`},
		{r.tcp, "/mcp", token, initialize, `401 `},
		{r.tcp, "/mcp/microsandbox", token, initialize, `"microsandbox-server"`},
		{r.tcp, "//api/v1/rpc", token, metrics, `200 `},
	} {
		status, body := post(t, tt.addr, tt.path, tt.key, tt.body)
		if got := fmt.Sprint(status, " ", body); !strings.Contains(got, tt.want) {
			t.Errorf("%s with key %.8s: got %.300s, want %s", tt.path, tt.key, got, tt.want)
		}
	}
	if resp, body := r.request(t, http.MethodGet, "/api/v1/health", nil, ""); resp.StatusCode != http.StatusOK || body != `{"message":"Service is healthy"}` {
		t.Errorf("health: %s, %s", resp.Status, body)
	}
	if resp, _ := r.request(t, http.MethodGet, "/api/v1/health", map[string]string{"Host": "evil.example"}, ""); resp.StatusCode != http.StatusForbidden {
		t.Errorf("by another name: %s", resp.Status)
	}
}

// What cannot be served is said at the start.
func TestDialectPortsRefused(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, tt := range map[string]struct {
		port string
		want sandbox.Code
		says string
	}{
		"unknown":               {"nope=0", sandbox.CodeInvalid, "known are native"},
		"taken":                 {"podflare=" + taken.Addr().String(), sandbox.CodeUnavailable, "--dialect-port"},
		"to others without key": {"podflare=0.0.0.0:0", sandbox.CodeForbidden, "cove key create"},
	} {
		_, err := start(t, func(cfg *config.Config) { cfg.DialectPorts = []string{tt.port} })
		if sandbox.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Superserve's clients meet on HTTP what the product's server says, at its own
// paths on a port of its own and at ours everywhere.
func TestSuperserveHTTP(t *testing.T) {
	var own net.Addr
	r := mustStart(t, func(cfg *config.Config) { cfg.DialectPorts = []string{"superserve=127.0.0.1:0"} },
		func(d *setup) { d.DialectReady = func(_ string, addr net.Addr) { own = addr } })
	key, err := r.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	const (
		list      = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
		call      = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":1},"name":"sandbox_list","arguments":{}}}`
		goes      = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
		no        = `401 application/json {"error":{"code":-32001,"message":"`
		method    = `405 application/json {"error":{"code":-32000,"message":"Method not allowed."},"id":null,"jsonrpc":"2.0"}`
		listed    = `200 application/json {"jsonrpc":"2.0","id":1,"result":`
		called    = `200 application/json {"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"(no sandboxes)"}]`
		tooLarge  = `413 application/json {"error":{"code":-32002,"message":"the request is over 12 MiB`
		healthy   = `200 application/json {"status":"ok"}`
		notJSON   = `400 application/json {"error":{"code":-32700,"message":"malformed payload`
		wrongType = `415 application/json {"error":{"code":-32000,"message":"Content-Type must be`
		wrongTime = `400 application/json {"error":{"code":-32000,"message":"Bad Request: Unsupported protocol version`
	)
	const bearer = "Authorization: Bearer "
	for _, tt := range []struct {
		addr         net.Addr
		method, path string
		headers      []string
		body, want   string
	}{
		{own, "GET", "/health", nil, "", healthy},
		{own, "POST", "/health", nil, "{}", `405 `},
		{own, "POST", "/", nil, list, no},
		{own, "POST", "/", []string{bearer + "ss_live_other"}, list, no},
		{own, "POST", "/", []string{"Authorization: bearer   " + key.Secret + " "}, list, listed},
		{own, "POST", "/", []string{"X-API-Key: " + key.Secret}, list, listed},
		{own, "POST", "/mcp", []string{bearer + key.Secret}, call, called},
		{own, "POST", "/", []string{bearer + key.Secret, "Accept: application/json"}, call, called},
		{own, "POST", "/", []string{bearer + key.Secret, "Mcp-Protocol-Version: 2025-03-26"}, "[" + list + "]", `200 application/json [{"jsonrpc":"2.0","id":1,`},
		{own, "POST", "/", []string{bearer + key.Secret}, goes, `202  `},
		{own, "GET", "/", nil, "", method},
		{own, "DELETE", "/mcp", nil, "", method},
		{own, "OPTIONS", "/", []string{bearer + key.Secret}, "", method},
		{own, "POST", "/", []string{bearer + key.Secret}, "no JSON", notJSON},
		{own, "POST", "/", []string{bearer + key.Secret, "Content-Type: text/plain"}, list, wrongType},
		{own, "POST", "/", []string{bearer + key.Secret, "Mcp-Protocol-Version: 1999-01-01"}, list, wrongTime},
		{own, "POST", "/", []string{bearer + key.Secret, "Expect: 100-continue"}, strings.Repeat(" ", 12<<20+1), tooLarge},
		{own, "POST", "/", []string{bearer + key.Secret, "Transfer-Encoding: chunked"}, strings.Repeat(" ", 12<<20+1), tooLarge},
		{own, "GET", "/nothing", []string{bearer + key.Secret}, "", `404 `},
		{own, "POST", "/mcp/native", nil, list, `401 `},
		{r.tcp, "POST", "/mcp/superserve", []string{bearer + key.Secret}, call, called},
		{r.tcp, "POST", "/mcp/superserve", nil, list, no},
		{r.tcp, "GET", "/mcp/superserve/readonly", nil, "", method},
		{r.tcp, "GET", "/health", []string{bearer + key.Secret}, "", `404 `},
		{r.tcp, "POST", "/", []string{bearer + key.Secret}, list, `404 `},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+tt.addr.String()+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		for _, line := range tt.headers {
			name, value, _ := strings.Cut(line, ": ")
			if req.Header.Set(name, value); name == "Transfer-Encoding" {
				req.ContentLength = -1
			}
		}
		resp, err := (&http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 30 * time.Second}).RoundTrip(req)
		if err != nil {
			t.Errorf("%s %s: %v", tt.method, tt.path, err)
			continue
		}
		data, _ := io.ReadAll(resp.Body) // what has come is looked at
		resp.Body.Close()
		got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type"), " ", string(data))
		if !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s %s %v: got %.300s, want %s", tt.method, tt.path, tt.headers, got, tt.want)
		}
		if challenge := resp.Header.Get("WWW-Authenticate"); tt.want == no && challenge != `Bearer realm="superserve-mcp"` {
			t.Errorf("%s %s: the challenge is %s", tt.method, tt.path, challenge)
		}
		if allow := resp.Header.Get("Allow"); tt.want == method && allow != "POST" {
			t.Errorf("%s %s: allows %q", tt.method, tt.path, allow)
		}
		if resp.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s %s: has a session", tt.method, tt.path)
		}
	}
}
