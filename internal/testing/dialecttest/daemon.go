package dialecttest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Ordinary returns the options of a daemon of an ordinary user's that asks for no
// key.
func Ordinary(args ...string) covetest.Options {
	opts := covetest.Options{Dev: true, Args: args}
	if os.Geteuid() == 0 {
		opts.UID = covetest.OrdinaryUID
	}
	return opts
}

// Users are who runs daemons, by name, with the options of a daemon each that
// asks for no key: an ordinary user and, in "make soak", root.
func Users(args ...string) map[string]covetest.Options {
	users := map[string]covetest.Options{"ordinary user": Ordinary(args...)}
	if os.Geteuid() == 0 && needs.Soak() {
		users["root"] = covetest.Options{Dev: true, Args: args}
	}
	return users
}

// Door is a way to a dialect of a daemon. Each call opens it anew.
type Door func() mcp.Transport

// Stdio is "cove mcp" with further arguments.
func Stdio(d *covetest.Daemon, dialect string, args ...string) Door {
	return func() mcp.Transport {
		return &mcp.CommandTransport{Command: Command(d, dialect, args...)}
	}
}

// Command is the command of [Stdio], for tests that change its environment.
func Command(d *covetest.Daemon, dialect string, args ...string) *exec.Cmd {
	return d.Command(context.Background(), append([]string{"mcp", "--dialect", dialect}, args...)...)
}

// InProcess is what "cove mcp" does on a daemon, done in the test's process: with
// a configuration whose Service and Log are left out.
func InProcess(t testing.TB, d *covetest.Daemon, cfg mcpserver.Config) Door {
	cfg.Service, cfg.Log = d.Client, slog.New(slog.NewTextHandler(t.Output(), nil))
	return func() mcp.Transport {
		in, clientOut := io.Pipe()
		clientIn, out := io.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := mcpserver.RunStdio(context.WithoutCancel(t.Context()), cfg, in, out); err != nil {
				t.Error(err)
			}
			_ = out.Close()
		}()
		t.Cleanup(func() {
			_ = clientOut.Close()
			<-served
		})
		return &mcp.IOTransport{Reader: clientIn, Writer: clientOut}
	}
}

// HTTP is the URL of a dialect.
func HTTP(d *covetest.Daemon, dialect string) Door {
	return func() mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp/" + dialect}
	}
}

// Doors are [Stdio] and [HTTP], by the names stdio and http.
func Doors(d *covetest.Daemon, dialect string) map[string]Door {
	return map[string]Door{"stdio": Stdio(d, dialect), "http": HTTP(d, dialect)}
}

// Connect opens a session of a revision of the protocol, which ends with the
// test.
func Connect(t testing.TB, transport mcp.Transport, revision string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // it may have ended
	return s
}

// Over is a [Caller] over a session.
func Over(s *mcp.ClientSession) Caller {
	return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
		return s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	}
}

// Ask calls a tool that must succeed and returns its structured result, or the
// object that its text is where the result has only that.
func Ask(t testing.TB, s *mcp.ClientSession, tool, args string) map[string]any {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil || res.IsError {
		t.Fatalf("%s %.200s: %v, %+v", tool, args, err, res)
	}
	if m, ok := res.StructuredContent.(map[string]any); ok || len(res.Content) == 0 {
		return m
	}
	var m map[string]any
	if text, ok := res.Content[0].(*mcp.TextContent); ok {
		_ = json.Unmarshal([]byte(text.Text), &m) // a text of another kind is nobody's object
	}
	return m
}

// InMemory connects [Conversations] with a service whose sandboxes are in
// memory, a new one for each script.
func InMemory(d dialect.Dialect) func(t *testing.T) (Caller, func(string) string) {
	return func(t *testing.T) (Caller, func(string) string) {
		svc := local.New(t)
		direct := Direct(t, d, svc)
		return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
			return direct(sandbox.WithCaller(ctx, sandbox.LocalCaller()), tool, args)
		}, svc.Normalize
	}
}

// Through connects [Conversations] with a daemon through a door. No script sees
// sandboxes of another.
func Through(d *covetest.Daemon, door Door, revision string, hide func(string) string) func(t *testing.T) (Caller, func(string) string) {
	return func(t *testing.T) (Caller, func(string) string) {
		t.Cleanup(func() { KillAll(t, d) })
		return Over(Connect(t, door(), revision)), hide
	}
}

// KillAll kills a daemon's sandboxes, after which it looks new.
func KillAll(t testing.TB, d *covetest.Daemon) {
	t.Helper()
	if err := d.KillAll(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// FirstRequest calls a tool over HTTP with the first request of a client, which
// has begun no session. It returns the answer and its body.
func FirstRequest(t testing.TB, d *covetest.Daemon, dialect, tool, args string) (*http.Response, string) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+"/mcp/"+dialect, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, answer, err := do(http.DefaultClient, req)
	if err != nil {
		t.Fatal(err)
	}
	return res, answer
}

// Visit gets a URL of a preview as a browser on this machine does, for which its
// name leads to the daemon. It returns the answer's status and its body.
func Visit(t testing.TB, d *covetest.Daemon, link string) (status int, body string, err error) {
	t.Helper()
	server, err := url.Parse(d.URL)
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	if err != nil {
		return 0, "", err
	}
	res, body, err := do(&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Host)
	}}}, req)
	if err != nil {
		return 0, "", err
	}
	return res.StatusCode, body, nil
}

func do(client *http.Client, req *http.Request) (*http.Response, string, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}
