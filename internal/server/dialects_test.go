package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/config"
	"github.com/cove-sh/cove/internal/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/server"
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
	}, func(d *server.Deps) { d.DialectReady = func(name string, addr net.Addr) { ports[name] = addr } })
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
	token, err := microsandbox.NewKey(signing, "*", time.Now(), time.Now().Add(time.Hour))
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
