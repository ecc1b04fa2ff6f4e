package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/servertest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a daemon.
type running struct {
	cfg  config.Config
	tcp  net.Addr
	stop context.CancelFunc
	done chan error
}

// setup is how a daemon is made.
type setup struct {
	server.Deps
	server.Bounds
}

// start starts a daemon, and waits until it answers or has failed.
func start(t *testing.T, change func(*config.Config), deps ...func(*setup)) (*running, error) {
	t.Helper()
	cfg := config.Default(func(string) string { return "" })
	cfg.StateDir = t.TempDir()
	sqlitetest.New(t, filepath.Join(cfg.StateDir, "cove.db"))
	cfg.Listen = "127.0.0.1:0"
	cfg.DrainTimeout = 2 * time.Second
	if change != nil {
		change(&cfg)
	}
	ready := make(chan net.Addr, 1)
	d := setup{server.Deps{
		Assembly: servertest.Assembly(), Version: "1.2.3",
		Log:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Ready: func(tcp net.Addr) { ready <- tcp },
	}, server.DefaultBounds}
	for _, f := range deps {
		f(&d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cfg: cfg, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- server.NewBounded(cfg, d.Deps, d.Bounds).Run(ctx) }()
	select {
	case r.tcp = <-ready:
		t.Cleanup(func() { r.end(t) })
		return r, nil
	case err := <-r.done:
		cancel()
		return nil, err
	}
}

func mustStart(t *testing.T, change func(*config.Config), deps ...func(*setup)) *running {
	t.Helper()
	r, err := start(t, change, deps...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// end stops the daemon; it may be called again.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case err, open := <-r.done:
		if open && err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if open {
			close(r.done)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the daemon does not end")
	}
}

func (r *running) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{UnixSocket: r.cfg.SocketPath()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// request makes one request by TCP.
func (r *running) request(t *testing.T, method, path string, header map[string]string, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.tcp.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(data)
}

func TestDoors(t *testing.T) {
	r := mustStart(t, nil)
	c := r.client(t)
	if v, err := c.Version(t.Context()); err != nil || v != "1.2.3" {
		t.Errorf("version %q, %v", v, err)
	}
	key, err := c.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	bearer := "Bearer " + key.Secret
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	mcp := map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
	with := func(more map[string]string, also map[string]string) map[string]string {
		out := map[string]string{}
		for _, m := range []map[string]string{more, also} {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}
	for _, q := range []struct {
		name, method, path string
		header             map[string]string
		body               string
		status             int
		says               string
	}{
		{"health", "GET", "/healthz", nil, "", 200, `"ok"`},
		{"version", "GET", "/v1/version", nil, "", 200, "1.2.3"},
		{"REST without a key", "GET", "/v1/sandboxes", nil, "", 401, "unauthenticated"},
		{"REST with a wrong key", "GET", "/v1/sandboxes", map[string]string{"Authorization": "Bearer cove_X"}, "", 401, "not known"},
		{"REST with a key", "GET", "/v1/sandboxes", map[string]string{"Authorization": bearer}, "", 200, `"items":[]`},
		{"REST in admin's matters", "GET", "/v1/keys", map[string]string{"Authorization": bearer}, "", 403, "admin"},
		{"MCP without a key", "POST", "/mcp", mcp, initialize, 401, "unauthenticated"},
		{"MCP with a key", "POST", "/mcp", with(mcp, map[string]string{"Authorization": bearer}), initialize, 200, "serverInfo"},
		{"by a name of elsewhere", "GET", "/v1/version", map[string]string{"Host": "evil.example"}, "", 403, "host name"},
		{"from a page of elsewhere", "GET", "/v1/sandboxes", map[string]string{"Authorization": bearer, "Origin": "https://evil.example"}, "", 403, "web pages"},
		{"nowhere", "GET", "/", map[string]string{"Authorization": bearer}, "", 404, "no such path"},
		{"nowhere without a key", "GET", "/", nil, "", 401, "unauthenticated"},
	} {
		resp, body := r.request(t, q.method, q.path, q.header, q.body)
		if resp.StatusCode != q.status || !strings.Contains(body, q.says) {
			t.Errorf("%s: got %s %.200s, want %d that says %q", q.name, resp.Status, body, q.status, q.says)
		}
		if resp.StatusCode == 401 && !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate %q", q.name, resp.Header.Get("WWW-Authenticate"))
		}
		if resp.StatusCode >= 400 && !json.Valid([]byte(body)) {
			t.Errorf("%s: answered %q", q.name, body)
		}
	}
}

func TestDevMode(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.Dev = true })
	for _, q := range []struct {
		header map[string]string
		status int
	}{
		{nil, 200},
		{map[string]string{"Host": "localhost"}, 200},
		{map[string]string{"Origin": "http://" + r.tcp.String()}, 200},
		{map[string]string{"Origin": "http://localhost:3000"}, 403},
		{map[string]string{"Host": "rebound.example"}, 403},
		{map[string]string{"Origin": "https://evil.example"}, 403},
		{map[string]string{"Origin": "null"}, 403},
	} {
		if resp, body := r.request(t, "GET", "/v1/keys", q.header, ""); resp.StatusCode != q.status {
			t.Errorf("%v: got %s %s, want %d", q.header, resp.Status, body, q.status)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.AllowedHosts = []string{"cove.example"} })
	for host, want := range map[string]int{"cove.example": 200, "localhost": 200, "other.example": 403} {
		if resp, _ := r.request(t, "GET", "/v1/version", map[string]string{"Host": host}, ""); resp.StatusCode != want {
			t.Errorf("host %s: %s, want %d", host, resp.Status, want)
		}
	}
}

func TestExposureNeedsAKey(t *testing.T) {
	dir := t.TempDir()
	open := func(c *config.Config) { c.StateDir, c.Listen = dir, "0.0.0.0:0" }
	if _, err := start(t, open); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Fatalf("without a key: %v", err)
	}
	local := mustStart(t, func(c *config.Config) { c.StateDir, c.Listen = dir, config.Off })
	if local.tcp != nil {
		t.Errorf("listens on %s", local.tcp)
	}
	key, err := local.client(t).CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	local.end(t)
	exposed := mustStart(t, open)
	if resp, _ := exposed.request(t, "GET", "/v1/sandboxes", map[string]string{"Host": "cove.example"}, ""); resp.StatusCode != 401 {
		t.Errorf("without a key: %s", resp.Status)
	}
	if _, err := exposed.client(t).RevokeKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	exposed.end(t)
	if _, err := start(t, open); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("with a revoked key: %v", err)
	}
}

func TestOneDaemonPerStateDirectory(t *testing.T) {
	first := mustStart(t, nil)
	same := func(c *config.Config) { c.StateDir = first.cfg.StateDir }
	if _, err := start(t, same); sandbox.CodeOf(err) != sandbox.CodeConflict || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a second daemon: %v", err)
	}
	if err := first.client(t).Ping(t.Context()); err != nil {
		t.Errorf("the first after that: %v", err)
	}
	// One that may wait takes over.
	second := make(chan error, 1)
	go func() {
		r, err := start(t, same, func(d *setup) { d.LockWait = 20 * time.Second })
		if err == nil {
			err = r.client(t).Ping(context.Background())
		}
		second <- err
	}()
	first.end(t)
	if err := <-second; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
}

func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	r := mustStart(t, func(c *config.Config) { c.StateDir = dir })
	for path, want := range map[string]os.FileMode{dir: 0o700, r.cfg.SocketPath(): 0o600, filepath.Join(dir, "cove.db"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", path, info.Mode().Perm(), want)
		}
	}
	r.end(t)
	if _, err := os.Stat(r.cfg.SocketPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the end: %v", err)
	}
}

func TestSocketIsTakenCarefully(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, func(c *config.Config) { c.Socket = file }); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "x" {
		t.Errorf("the file holds %q, %v", data, err)
	}
	// A socket that a killed daemon left behind is replaced.
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	r := mustStart(t, func(c *config.Config) { c.Socket = left })
	if err := r.client(t).Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStopWaitsForCalls(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.DrainTimeout = 20 * time.Second })
	c := r.client(t)
	if _, err := c.Create(t.Context(), sandbox.CreateRequest{Name: "work"}); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "go")
	job, err := c.Exec(t.Context(), "work", sandbox.ExecRequest{Shell: "echo up; while ! test -e " + fifo + "; do sleep 0.01; done; echo done"}, func(ev sandbox.JobEvent) error {
		if strings.Contains(string(ev.Data), "up") {
			r.stop()
			return os.WriteFile(fifo, nil, 0o600)
		}
		return nil
	})
	if err != nil || job.ExitCode != 0 || job.StdoutBytes != 8 {
		t.Errorf("job %+v, %v", job, err)
	}
	r.end(t)
}

func TestStopCutsCallsThatTakeTooLong(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.DrainTimeout = 50 * time.Millisecond })
	c := r.client(t)
	if _, err := c.Create(t.Context(), sandbox.CreateRequest{Name: "work"}); err != nil {
		t.Fatal(err)
	}
	term, err := c.OpenTerminal(t.Context(), "work", sandbox.ExecRequest{Shell: "exec sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	watching := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		watching <- c.WatchFiles(context.Background(), "work", sandbox.WatchRequest{Path: "."}, func(sandbox.WatchEvent) error {
			close(ready)
			return nil
		})
	}()
	<-ready
	r.end(t)
	if err := <-watching; err != nil && sandbox.CodeOf(err) == "" {
		t.Errorf("the watch ended with %v", err)
	}
	if _, err := term.Run(nil); err == nil {
		t.Error("the terminal ended as if its command had")
	}
}

func TestIdleExit(t *testing.T) {
	r := mustStart(t, func(c *config.Config) { c.IdleExit = 150 * time.Millisecond }, func(d *setup) { d.OnDemand = true })
	select {
	case err := <-r.done:
		t.Fatalf("ended before who has started it could ask: %v", err)
	case <-time.After(400 * time.Millisecond):
	}
	c := r.client(t)
	sb, err := c.Create(t.Context(), sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.done:
		t.Fatalf("ended with a sandbox: %v", err)
	case <-time.After(400 * time.Millisecond):
	}
	if _, err := c.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
		close(r.done)
	case <-time.After(time.Minute):
		t.Error("does not end")
	}
}

func TestFailedStartClosesWhatWasOpened(t *testing.T) {
	dir := t.TempDir()
	broken := errors.New("no engine here")
	_, err := start(t, func(c *config.Config) { c.StateDir = dir }, func(d *setup) {
		d.Assembly.Engine = func(context.Context, string, *config.Config, *slog.Logger) (engine.Engine, error) { return nil, broken }
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	// The lock is free and the store is closed.
	mustStart(t, func(c *config.Config) { c.StateDir = dir })
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := start(t, func(c *config.Config) { c.Listen = taken.Addr().String() }); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("with a taken address: %v", err)
	}
}

// Somebody without a key who announces a body and never sends it must not hold
// a connection.
func TestBodiesOfStrangersAreNotWaitedFor(t *testing.T) {
	d := mustStart(t, nil)
	for _, request := range []string{
		"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"POST /v1/sandboxes HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
	} {
		t.Run(strings.Fields(request)[1], func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", d.tcp.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
				t.Errorf("answered %q, %v; want an answer and the connection's end", answer, err)
			}
		})
	}
}

// The owner of a directory can replace what is in it, so root must not take
// that of another user.
func TestStateDirectoryOfSomeoneElse(t *testing.T) {
	needs.Root(t)
	dir := t.TempDir()
	if err := os.Chown(dir, 54321, 54321); err != nil {
		t.Fatal(err)
	}
	_, err := start(t, func(c *config.Config) { c.StateDir = dir })
	if err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("start: %v; want a refusal", err)
	}
}
