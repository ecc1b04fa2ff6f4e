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

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/podflare"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func TestTools(t *testing.T) {
	dialecttest.Snapshot(t, podflare.New(), "testdata/tools")
	dialecttest.Snapshot(t, podflare.NewHosted(), "testdata/tools-hosted")
}

// The product's arguments, as far as documented. Only the names and the defaults are its
// own; the bounds are ours, except n's.
const (
	shared = `
run_python: code string!, SANDBOX, timeout number >=0.001 <=3600 =300
run_bash: code string!, SANDBOX, timeout number >=0.001 <=600 =300
fork: n integer >=1 <=32 =1, SANDBOX
`
	merging = `merge_into: PARENT, winner string!
upload: content_base64 string!, path string!, SANDBOX
download: path string!, SANDBOX
`
	comparing = `diff: other string!, paths string[] =["/root","/tmp"], sandbox_id string
`
	making = `create_sandbox: egress boolean =true, template string ="default"
`
	ending = `destroy_sandbox: sandbox_id string!
`
)

// TestArguments checks the arguments; on the hosted server, each call names its sandbox.
func TestArguments(t *testing.T) {
	for d, want := range map[*podflare.Dialect]string{
		podflare.New():       strings.NewReplacer("SANDBOX", "sandbox_id string", "PARENT", "parent string").Replace(shared + comparing + merging),
		podflare.NewHosted(): strings.NewReplacer("SANDBOX", "sandbox_id string!", "PARENT", "parent string!").Replace("\n" + making + shared[1:] + merging + ending),
	} {
		if diff := cmp.Diff(want, "\n"+dialecttest.Arguments(t, d)); diff != "" {
			t.Errorf("%s: the arguments differ from the product's (-want +got):\n%s", d.Name(), diff)
		}
	}
}

// revision is the newest protocol version with sessions.
const revision = "2025-11-25"

// pythonFile is where an interpreter shows that code came from.
var pythonFile = regexp.MustCompile(`File \\*"[^"\\]*\\*", line`)

func hide(s string) string { return pythonFile.ReplaceAllString(s, "File <code>, line") }

// TestRealConversations has the conversations with real sandboxes, through every door.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range dialecttest.Users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			for _, surface := range []struct {
				dialect dialect.Dialect
				scripts string
			}{{podflare.New(), "testdata/session"}, {podflare.NewHosted(), "testdata/hosted"}} {
				for door, open := range dialecttest.Doors(daemon, surface.dialect.Name()) {
					// Only "make soak" has each surface through both doors, and only for the ordinary user.
					if (opts.UID != dialecttest.Ordinary().UID || !needs.Soak()) && (door == "http") != (surface.dialect.Name() == podflare.HostedName) {
						continue
					}
					t.Run(surface.dialect.Name()+" on "+door, func(t *testing.T) {
						dialecttest.Conversations(t, surface.dialect, surface.scripts, dialecttest.Through(daemon, open, revision, hide))
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

// TestRealSessionIsSandbox checks that a session is one sandbox: the first call makes it,
// even if several arrive at once, and it ends with its forks however the session ends.
func TestRealSessionIsSandbox(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	stdio := func(t *testing.T, end func(t *testing.T, s *mcp.ClientSession, p *os.Process)) (*mcp.ClientSession, func()) {
		cmd := dialecttest.Command(d, podflare.Name)
		s := dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, revision)
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
		"SIGKILL":             func(t *testing.T) (*mcp.ClientSession, func()) { return stdio(t, signal(syscall.SIGKILL)) },
		"SIGINT":              func(t *testing.T) (*mcp.ClientSession, func()) { return stdio(t, signal(os.Interrupt)) },
		"HTTP, deleted": func(t *testing.T) (*mcp.ClientSession, func()) {
			s := dialecttest.Connect(t, dialecttest.HTTP(d, podflare.Name)(), revision)
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
			if got := dialecttest.Ask(t, s, "run_bash", `{"code":"wc -l < /root/f"}`)["stdout"]; got != "4\n" {
				t.Errorf("four calls wrote %q lines", got)
			}
			children, _ := dialecttest.Ask(t, s, "fork", `{"n":2}`)["children"].([]any)
			if len(children) != 2 || living(t, d) != 3 {
				t.Errorf("children %v, and there are %d sandboxes", children, living(t, d))
			}
			dialecttest.Ask(t, s, "fork", fmt.Sprintf(`{"sandbox_id":%q}`, children[0]))
			end()
			if !covetest.Eventually(time.Minute, func() bool { return living(t, d) == 0 }) {
				t.Errorf("%d sandboxes are left of the session", living(t, d))
			}
		})
	}
}

// TestRealSandboxLost checks that a sandbox that has ended by itself is reported once, and
// that the session then gets a new one.
func TestRealSandboxLost(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	s := dialecttest.Connect(t, dialecttest.Stdio(d, podflare.Name)(), revision)
	dialecttest.Ask(t, s, "run_python", `{"code":"x = 1"}`)
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
	if got := dialecttest.Ask(t, s, "run_python", `{"code":"'x' in globals()"}`)["stdout"]; got != "False\n" {
		t.Errorf("the new sandbox says %q", got)
	}
}

// TestRealHostedWithoutSession checks that the hosted surface answers a call that is a
// client's first request.
func TestRealHostedWithoutSession(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	res, answer := dialecttest.FirstRequest(t, d, podflare.HostedName, "create_sandbox", `{"template":"default"}`)
	if res.StatusCode != http.StatusOK || living(t, d) != 1 {
		t.Errorf("status %s, %s, and there are %d sandboxes", res.Status, answer, living(t, d))
	}
}

// TestRealEgress checks that a sandbox without egress reaches nothing, and that its record
// says so.
func TestRealEgress(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	s := dialecttest.Connect(t, dialecttest.HTTP(d, podflare.HostedName)(), revision)
	for egress, want := range map[string]bool{`{"egress":false}`: true, `{}`: false, `{"egress":true}`: false} {
		id, _ := dialecttest.Ask(t, s, "create_sandbox", egress)["sandbox_id"].(string)
		got, err := d.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if none := got.Network != nil && got.Network.Preset == sandbox.NetworkNone; none != want {
			t.Errorf("%s: the policy is %+v", egress, got.Network)
		}
	}
}

// TestRealConfiguredByEnvironment uses a client's configuration for the product's own
// server, pointed at ours.
func TestRealConfiguredByEnvironment(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Borrow(t, dialecttest.Ordinary())
	cmd := dialecttest.Command(d, podflare.Name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PODFLARE_HOST=" + d.URL, "PODFLARE_API_KEY=pk_live_any"}
	s := dialecttest.Connect(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, revision)
	dialecttest.Ask(t, s, "run_bash", `{"code":"true"}`)
	if n := living(t, d); n != 1 {
		t.Errorf("there are %d sandboxes, want the session's", n)
	}
}
