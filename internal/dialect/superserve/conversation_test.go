package superserve_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/internal/dialect/superserve"
	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
	"github.com/cove-sh/cove/test/mcp/local"
)

// differs is what is never the same: sizes of directories, and of zip files,
// which have times in them.
var differs = regexp.MustCompile(`("content": )"UEs[A-Za-z0-9+/=]*"`)

func hide(s string) string {
	return differs.ReplaceAllString(s, `$1"<zip>"`)
}

// The conversations that need no machine of their own, over the service whose
// sandboxes are in memory.
func TestConversations(t *testing.T) {
	d := superserve.New()
	dialecttest.Conversations(t, d, "testdata/memory", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		svc := local.New(t)
		direct := dialecttest.Direct(t, d, svc)
		return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
			return direct(sandbox.WithCaller(ctx, sandbox.LocalCaller()), tool, args)
		}, svc.Normalize
	})
}

// users are who runs daemons for these tests.
func users() map[string]covetest.Options {
	if os.Geteuid() != 0 {
		return map[string]covetest.Options{"own user": {Dev: true}}
	}
	return map[string]covetest.Options{"root": {Dev: true}, "ordinary user": {Dev: true, UID: covetest.OrdinaryUID}}
}

// doors are the ways to a daemon, by name.
func doors(d *covetest.Daemon) map[string]func() mcp.Transport {
	return map[string]func() mcp.Transport{
		"stdio": func() mcp.Transport {
			return &mcp.CommandTransport{Command: d.Command(context.Background(), "mcp", "--dialect", superserve.Name)}
		},
		"http": func() mcp.Transport {
			return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp/" + superserve.Name}
		},
	}
}

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

// The conversations with real sandboxes, by both doors and for both kinds of
// users, one of each crosswise.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			for door, open := range doors(daemon) {
				if opts.UID != 0 && door == "http" {
					continue // what a door does differently is the same for every user
				}
				for _, scripts := range []string{"testdata/memory", "testdata/real"} {
					t.Run(door+" "+filepath.Base(scripts), func(t *testing.T) {
						dialecttest.Conversations(t, superserve.New(), scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
							t.Cleanup(func() { killAll(t, daemon) })
							return caller(connect(t, open())), hide
						})
					})
				}
			}
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
