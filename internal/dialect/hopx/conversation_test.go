package hopx_test

import (
	"context"
	"encoding/json"
	"regexp"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

// differs is what is never the same: durations, process ids, the machine.
var differs = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`("(?:execution_time|duration|pid|uptime)": )[0-9.]+`), `$1<n>`},
	{regexp.MustCompile(`("uptime": )"[0-9hms.]+"`), `$1"<n>"`},
	{regexp.MustCompile(`Architecture: \w+`), `Architecture: <arch>`},
	{regexp.MustCompile(`("arch": )"\w+"`), `$1"<arch>"`},
	{regexp.MustCompile(`("size": )\d+(,\s+"is_directory": true)`), `$1<n>$2`},
	// What it says on a machine that is slow.
	{regexp.MustCompile(`Matplotlib is building the font cache; this may take a moment\.\\*n`), ``},
	// The last line of df.
	{regexp.MustCompile(`Disk:\\n[^"]*%[^"]*"`), `Disk:\n<disk>"`},
	{regexp.MustCompile(`File \\*"[^"\\]*\\*", line`), `File <code>, line`},
}

func hide(s string) string {
	for _, d := range differs {
		s = d.pattern.ReplaceAllString(s, d.shown)
	}
	return s
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

func connect(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
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

// conversations runs the scripts of a generation by one door.
func conversations(t *testing.T, daemon *covetest.Daemon, d dialect.Dialect, scripts, door string) {
	open := doors(daemon, d.Name())[door]
	dialecttest.Conversations(t, d, scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
		t.Cleanup(func() { killAll(t, daemon) })
		return caller(connect(t, open())), hide
	})
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
