package microsandbox_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/internal/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
	"github.com/cove-sh/cove/test/mcp/local"
)

var (
	// usage is what is never the same.
	usage = regexp.MustCompile(`("(?:cpu|memory|disk)_usage": ?)[0-9][0-9.e+-]*`)
	// listing is a line of ls -l, place where an interpreter shows that code came from.
	listing = regexp.MustCompile(`"(?:[d-][rwxst-]{9}.? |total )[^"]*"`)
	place   = regexp.MustCompile(`File \\*"[^"\\]*\\*", line|<cell \d+>|\bat .*?:\d+:\d+`)
)

func hide(s string) string {
	s = usage.ReplaceAllString(s, "$1<n>")
	s = listing.ReplaceAllString(s, `"<ls>"`)
	return place.ReplaceAllString(s, "<place>")
}

// What no sandbox is needed for.
func TestConversations(t *testing.T) {
	d := microsandbox.New()
	dialecttest.Conversations(t, d, "testdata/local", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		svc := local.New(t)
		direct := dialecttest.Direct(t, d, svc)
		return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
			return direct(sandbox.WithCaller(ctx, sandbox.LocalCaller()), tool, args)
		}, svc.Normalize
	})
}

// users are who runs daemons for these tests.
func users() map[string]covetest.Options {
	args := []string{"--dialect-port", microsandbox.Name + "=0", "--mcp-handover", "1s"}
	if os.Geteuid() != 0 {
		return map[string]covetest.Options{"own user": {Dev: true, Args: args}}
	}
	return map[string]covetest.Options{"root": {Dev: true, Args: args}, "ordinary user": {Dev: true, Args: args, UID: covetest.OrdinaryUID}}
}

// ownPort finds where a daemon says that it speaks the dialect.
var ownPort = regexp.MustCompile(`listening on (http://\S+) \(microsandbox\)`)

func ownURL(t *testing.T, d *covetest.Daemon) string {
	t.Helper()
	m := ownPort.FindStringSubmatch(d.Output())
	if m == nil {
		t.Fatalf("the daemon does not say where it speaks the dialect:\n%s", d.Output())
	}
	return m[1]
}

// doors are the ways to a daemon, by name.
func doors(t *testing.T, d *covetest.Daemon) map[string]func() mcp.Transport {
	own := ownURL(t, d)
	return map[string]func() mcp.Transport{
		"stdio": func() mcp.Transport {
			return &mcp.CommandTransport{Command: d.Command(context.Background(), "mcp", "--dialect", microsandbox.Name, "--mcp-handover", "1s")}
		},
		"own port": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: own + "/mcp"} },
	}
}

func connect(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2024-11-05"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // it may have ended
	return s
}

// The conversations with real sandboxes: MCP through both doors, and JSON-RPC.
// What a door does differently is the same for every user and every tool.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			open := doors(t, daemon)
			converse := func(door, scripts string) {
				t.Run(door+" "+filepath.Base(scripts), func(t *testing.T) {
					dialecttest.Conversations(t, microsandbox.New(), scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
						t.Cleanup(func() { killAll(t, daemon) })
						s := connect(t, open[door]())
						return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
							return s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
						}, hide
					})
				})
			}
			if opts.UID != 0 || len(users()) == 1 {
				converse("stdio", "testdata/real/guide")
			}
			if opts.UID != 0 {
				return
			}
			converse("own port", "testdata/real/guide")
			converse("own port", "testdata/real/life")
			t.Run("JSON-RPC", func(t *testing.T) {
				t.Cleanup(func() { killAll(t, daemon) })
				exchanges(t, "testdata/rpc/real", ownURL(t, daemon))
			})
		})
	}
}

// killAll makes a daemon look new to the next script.
func killAll(t *testing.T, d *covetest.Daemon) {
	ctx := context.WithoutCancel(t.Context())
	list, err := d.Client.List(ctx, sandbox.ListRequest{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, s := range list.Items {
		if _, err := d.Client.Kill(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
}
