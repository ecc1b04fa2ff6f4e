package microsandbox_test

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

var (
	// usage matches figures that are never the same.
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

// TestConversations has the conversations that need no sandbox.
func TestConversations(t *testing.T) {
	d := microsandbox.New()
	dialecttest.Conversations(t, d, "testdata/local", dialecttest.InMemory(d))
}

// users are the users that run daemons for these tests.
func users() map[string]covetest.Options {
	return dialecttest.Users("--dialect-port", microsandbox.Name+"=0")
}

// ownPort finds the address at which a daemon serves the dialect.
var ownPort = regexp.MustCompile(`listening on (http://\S+) \(microsandbox\)`)

func ownURL(t *testing.T, d *covetest.Daemon) string {
	t.Helper()
	m := ownPort.FindStringSubmatch(d.Output())
	if m == nil {
		t.Fatalf("the daemon does not say where it speaks the dialect:\n%s", d.Output())
	}
	return m[1]
}

// doors returns the transports to a daemon, by name. A hasty server follows commands that
// run for longer than a second.
func doors(t *testing.T, d *covetest.Daemon) map[string]dialecttest.Door {
	own := ownURL(t, d)
	return map[string]dialecttest.Door{
		"hasty":    dialecttest.InProcess(t, d, mcpserver.Config{Dialect: microsandbox.Name, DetachAfter: time.Second}),
		"stdio":    dialecttest.Stdio(d, microsandbox.Name),
		"own port": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: own + "/mcp"} },
	}
}

// revision is the protocol version of the product's clients.
const revision = "2024-11-05"

// TestRealConversations has the conversations with real sandboxes: MCP through both doors,
// and JSON-RPC. The differences between doors are the same for root and for every tool.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	for user, opts := range users() {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			daemon := covetest.Borrow(t, opts)
			open := doors(t, daemon)
			converse := func(door, scripts string) {
				t.Run(door+" "+filepath.Base(scripts), func(t *testing.T) {
					dialecttest.Conversations(t, microsandbox.New(), scripts, dialecttest.Through(daemon, open[door], revision, hide))
				})
			}
			converse("own port", "testdata/real/guide")
			if opts.UID != dialecttest.Ordinary().UID {
				return
			}
			if needs.Soak() {
				converse("stdio", "testdata/real/guide")
			}
			converse("own port", "testdata/real/life")
			converse("hasty", "testdata/real/hasty")
			t.Run("JSON-RPC", func(t *testing.T) {
				t.Cleanup(func() { dialecttest.KillAll(t, daemon) })
				exchanges(t, "testdata/rpc/real", ownURL(t, daemon))
			})
		})
	}
}
