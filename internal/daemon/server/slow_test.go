package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// dial connects to an address of a daemon and sends something.
func dial(t *testing.T, network, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// keyed starts a daemon with a key, and returns the header that has it.
func keyed(t *testing.T, change func(*setup)) (d *running, ctx context.Context, header string) {
	t.Helper()
	d = mustStart(t, func(c *config.Config) { c.DialectPorts = []string{"microsandbox=127.0.0.1:0"} }, change)
	key, err := d.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}})
	if err != nil {
		t.Fatal(err)
	}
	return d, t.Context(), "Authorization: Bearer " + key.Secret + "\r\n"
}

// Attack: bodies that stop on their way, at each of the doors. The server's own
// user may send content from a pipe that stands still.
func TestStalledBodiesEndAtAllDoors(t *testing.T) {
	var own net.Addr
	d, ctx, key := keyed(t, func(d *setup) {
		d.MinBodyRate = limits.MinBodyRate{Bytes: 1 << 30, Per: 100 * time.Millisecond}
		d.DialectReady = func(_ string, a net.Addr) { own = a }
	})
	sb, err := d.client(t).Create(ctx, sandbox.CreateRequest{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ address, request string }{
		"REST":         {d.tcp.String(), "POST /v1/sandboxes"},
		"content":      {d.tcp.String(), "PUT /v1/sandboxes/" + sb.ID + "/files/content?path=half"},
		"MCP":          {d.tcp.String(), "POST /mcp"},
		"a dialect":    {d.tcp.String(), "POST /mcp/hopx"},
		"microsandbox": {own.String(), "POST /api/v1/rpc"},
		"its MCP":      {own.String(), "POST /mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := "application/json"
			if name == "content" {
				kind = "application/octet-stream"
			}
			conn := dial(t, "tcp", c.address, c.request+" HTTP/1.1\r\nHost: localhost\r\n"+key+"Content-Type: "+kind+"\r\nContent-Length: 1000\r\n\r\n{")
			answer, err := io.ReadAll(conn)
			if os.IsTimeout(err) || !strings.HasPrefix(string(answer), "HTTP/1.1 408") || !strings.Contains(string(answer), limits.StalledMessage) {
				t.Errorf("answered %q, %v", answer, err)
			}
		})
	}
	conn := dial(t, "unix", d.cfg.SocketPath(), "PUT /v1/sandboxes/"+sb.ID+"/files/content?path=whole HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\n12")
	time.Sleep(300 * time.Millisecond) // longer than others have
	if _, err := io.WriteString(conn, "345"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("content of the server's own user: %s", res.Status)
	}
	// The agent removes what it has when it learns that an upload has ended.
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		files, err := d.client(t).ListFiles(ctx, sb.ID, sandbox.ListFilesRequest{Path: "."})
		return err == nil && len(files.Items) == 1 && files.Items[0].Name == "whole"
	}) {
		t.Error("something is left of an upload")
	}
}

// Attack: a stranger's body is read before it is known that they are one.
func TestKeysComeBeforeBodies(t *testing.T) {
	var own net.Addr
	d := mustStart(t, func(c *config.Config) { c.DialectPorts = []string{"microsandbox=127.0.0.1:0"} },
		func(d *setup) { d.DialectReady = func(_ string, a net.Addr) { own = a } })
	for path, address := range map[string]net.Addr{"/v1/sandboxes": d.tcp, "/mcp": d.tcp, "/mcp/hopx": d.tcp, "/api/v1/rpc": own} {
		conn := dial(t, "tcp", address.String(), "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
		if answer, err := io.ReadAll(conn); os.IsTimeout(err) || !strings.HasPrefix(string(answer), "HTTP/1.1 401") {
			t.Errorf("%s: %.40q, %v; want 401 and no word of 100", path, answer, err)
		}
	}
}

// Attack: more connections than there may be. The socket is not among them.
func TestConnectionsAreBounded(t *testing.T) {
	d := mustStart(t, nil, func(d *setup) { d.Connections = 2 })
	one, two := dial(t, "tcp", d.tcp.String(), ""), dial(t, "tcp", d.tcp.String(), "")
	three := dial(t, "tcp", d.tcp.String(), "")
	if n, err := three.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		t.Errorf("one too many: %d, %v", n, err)
	}
	if _, err := d.client(t).List(t.Context(), sandbox.ListRequest{}); err != nil {
		t.Errorf("by the socket: %v", err)
	}
	_, _ = one.Close(), two.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		conn := dial(t, "tcp", d.tcp.String(), "")
		_, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if answer, _ := io.ReadAll(conn); err == nil && strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			return
		}
		if time.Now().After(end) {
			t.Fatal("places that were left are not free")
		}
	}
}

// Attack: a key with streams without end. Other keys have room.
func TestStreamsOfAKeyAreBounded(t *testing.T) {
	d, ctx, key := keyed(t, func(d *setup) { d.RequestsPerKey = 2 })
	sb, err := d.client(t).Create(ctx, sandbox.CreateRequest{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(strings.TrimPrefix(key, "Authorization: "))
	header := map[string]string{"Authorization": secret}
	for range 2 {
		conn, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://%s/v1/sandboxes/%s/terminal", d.tcp, sb.ID), &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {secret}}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseNow()
	}
	for _, path := range []string{"/v1/sandboxes", "/mcp"} {
		if res, body := d.request(t, http.MethodGet, path, header, ""); res.StatusCode != http.StatusTooManyRequests || !strings.Contains(body, "quota_exceeded") || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s %s", path, res.Status, body)
		}
	}
	other, err := d.client(t).CreateKey(ctx, sandbox.CreateKeyRequest{Name: "o", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}})
	if err != nil {
		t.Fatal(err)
	}
	if res, body := d.request(t, http.MethodGet, "/v1/sandboxes", map[string]string{"Authorization": "Bearer " + other.Secret}, ""); res.StatusCode != http.StatusOK {
		t.Errorf("another key: %s %s", res.Status, body)
	}
}
