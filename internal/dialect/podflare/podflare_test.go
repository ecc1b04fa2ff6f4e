package podflare_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/internal/dialect/podflare"
	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

func TestTools(t *testing.T) {
	dialecttest.Snapshot(t, podflare.New(), "testdata/tools")
	dialecttest.Snapshot(t, podflare.NewHosted(), "testdata/tools-hosted")
}

// users are who runs daemons for these tests.
func users() map[string]covetest.Options {
	if os.Geteuid() != 0 {
		return map[string]covetest.Options{"own user": {Dev: true}}
	}
	return map[string]covetest.Options{"root": {Dev: true}, "ordinary user": {Dev: true, UID: covetest.OrdinaryUID}}
}

// doors are the ways to a daemon, by name.
func doors(d *covetest.Daemon, name string) map[string]func() mcp.Transport {
	return map[string]func() mcp.Transport{
		"stdio": func() mcp.Transport {
			return &mcp.CommandTransport{Command: d.Command(context.Background(), "mcp", "--dialect", name)}
		},
		"http": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp/" + name} },
	}
}

// connect opens a session of the revision that has them.
func connect(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // it may have ended
	return s
}

func caller(s *mcp.ClientSession) dialecttest.Caller {
	return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
		return s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	}
}

// pythonFile is where an interpreter shows that code came from.
var pythonFile = regexp.MustCompile(`File \\*"[^"\\]*\\*", line`)

// The conversations with real sandboxes, through every door.
func TestConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			for _, surface := range []struct {
				dialect dialect.Dialect
				scripts string
			}{{podflare.New(), "testdata/session"}, {podflare.NewHosted(), "testdata/hosted"}} {
				for door, open := range doors(daemon, surface.dialect.Name()) {
					// What a door does differently is the same for every user.
					if opts.UID != 0 && (door == "http") != (surface.dialect.Name() == podflare.HostedName) {
						continue
					}
					t.Run(surface.dialect.Name()+" on "+door, func(t *testing.T) {
						dialecttest.Conversations(t, surface.dialect, surface.scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
							return caller(connect(t, open())), func(s string) string { return pythonFile.ReplaceAllString(s, "File <code>, line") }
						})
					})
				}
			}
		})
	}
}

// living returns how many sandboxes a daemon has.
func living(t *testing.T, d *covetest.Daemon) int {
	t.Helper()
	list, err := d.Client.List(context.WithoutCancel(t.Context()), sandbox.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// call calls a tool that must succeed and returns its structured result.
func call(t *testing.T, s *mcp.ClientSession, tool, args string) map[string]any {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil || res.IsError {
		t.Fatalf("%s: %v, %+v", tool, err, res)
	}
	m, _ := res.StructuredContent.(map[string]any)
	return m
}

// One session is one sandbox: the first call makes it, however many come at
// once, and it goes with its forks however the session ends.
func TestSessionIsSandbox(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, covetest.Options{Dev: true})
	stdio := func(t *testing.T, end func(t *testing.T, s *mcp.ClientSession, p *os.Process)) (*mcp.ClientSession, func()) {
		cmd := d.Command(context.Background(), "mcp", "--dialect", podflare.Name)
		s := connect(t, &mcp.CommandTransport{Command: cmd})
		return s, func() { end(t, s, cmd.Process) }
	}
	signal := func(sig os.Signal) func(*testing.T, *mcp.ClientSession, *os.Process) {
		return func(t *testing.T, _ *mcp.ClientSession, p *os.Process) {
			if err := p.Signal(sig); err != nil {
				t.Error(err)
			}
		}
	}
	closed := func(t *testing.T, s *mcp.ClientSession, _ *os.Process) {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for name, open := range map[string]func(t *testing.T) (*mcp.ClientSession, func()){
		"standard input ends": func(t *testing.T) (*mcp.ClientSession, func()) { return stdio(t, closed) },
		"SIGTERM":             func(t *testing.T) (*mcp.ClientSession, func()) { return stdio(t, signal(syscall.SIGTERM)) },
		"SIGINT":              func(t *testing.T) (*mcp.ClientSession, func()) { return stdio(t, signal(os.Interrupt)) },
		"HTTP, deleted": func(t *testing.T) (*mcp.ClientSession, func()) {
			s := connect(t, doors(d, podflare.Name)["http"]())
			return s, func() { closed(t, s, nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, end := open(t)
			if list, err := s.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 7 {
				t.Fatalf("%v, %+v; want 7 tools", err, list)
			}
			if n := living(t, d); n != 0 {
				t.Fatalf("there are %d sandboxes before the first call", n)
			}
			errs := make(chan error, 4)
			for range cap(errs) {
				go func() {
					_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_bash", Arguments: json.RawMessage(`{"code":"echo x >> /root/f"}`)})
					errs <- err
				}()
			}
			for range cap(errs) {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if n := living(t, d); n != 1 {
				t.Errorf("four calls made %d sandboxes", n)
			}
			if got := call(t, s, "run_bash", `{"code":"wc -l < /root/f"}`)["stdout"]; got != "4\n" {
				t.Errorf("four calls wrote %q lines", got)
			}
			children, _ := call(t, s, "fork", `{"n":2}`)["children"].([]any)
			if len(children) != 2 || living(t, d) != 3 {
				t.Errorf("children %v, and there are %d sandboxes", children, living(t, d))
			}
			call(t, s, "fork", fmt.Sprintf(`{"sandbox_id":%q}`, children[0]))
			end()
			if !covetest.Eventually(20*time.Second, func() bool { return living(t, d) == 0 }) {
				t.Errorf("%d sandboxes are left of the session", living(t, d))
			}
		})
	}
}

// A sandbox that has ended by itself is told of once; then the session gets a
// new one.
func TestSandboxLost(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, covetest.Options{Dev: true})
	s := connect(t, doors(d, podflare.Name)["stdio"]())
	call(t, s, "run_python", `{"code":"x = 1"}`)
	list, err := d.Client.List(t.Context(), sandbox.ListRequest{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %+v", err, list)
	}
	if _, err := d.Client.Kill(t.Context(), list.Items[0].ID); err != nil {
		t.Fatal(err)
	}
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_python", Arguments: json.RawMessage(`{"code":"x"}`)})
	if err != nil || !res.IsError || !strings.Contains(fmt.Sprint(res.StructuredContent), "state is gone") {
		t.Errorf("%v, %+v; want that the sandbox has ended", err, res)
	}
	if got := call(t, s, "run_python", `{"code":"'x' in globals()"}`)["stdout"]; got != "False\n" {
		t.Errorf("the new sandbox says %q", got)
	}
}

// The hosted surface answers a call that is the first request of a client.
func TestHostedWithoutSession(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, covetest.Options{Dev: true})
	const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_sandbox","arguments":{"template":"default"}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+"/mcp/"+podflare.HostedName, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || living(t, d) != 1 {
		t.Errorf("status %s, and there are %d sandboxes", res.Status, living(t, d))
	}
}

// A sandbox without egress reaches nothing, and says so in its record.
func TestEgress(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, covetest.Options{Dev: true})
	s := connect(t, doors(d, podflare.HostedName)["http"]())
	for egress, want := range map[string]bool{`{"egress":false}`: true, `{}`: false} {
		id, _ := call(t, s, "create_sandbox", egress)["sandbox_id"].(string)
		got, err := d.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if none := got.Network != nil && got.Network.Preset == sandbox.NetworkNone; none != want {
			t.Errorf("%s: the policy is %+v", egress, got.Network)
		}
	}
}

// A client's configuration for the product's own server, pointed at ours.
func TestConfiguredByEnvironment(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, covetest.Options{Dev: true})
	cmd := d.Command(context.Background(), "mcp", "--dialect", podflare.Name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PODFLARE_HOST=" + d.URL, "PODFLARE_API_KEY=pk_live_any"}
	s := connect(t, &mcp.CommandTransport{Command: cmd})
	call(t, s, "run_bash", `{"code":"true"}`)
	if n := living(t, d); n != 1 {
		t.Errorf("there are %d sandboxes, want the session's", n)
	}
}
