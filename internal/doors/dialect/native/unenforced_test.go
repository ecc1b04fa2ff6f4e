package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// weak is a service on a machine that enforces no memory limit.
type weak struct{ sandbox.Service }

func (weak) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return &sandbox.Sandbox{ID: "sbx-1", State: sandbox.StateRunning, Resources: req.Resources, Unenforced: []string{"memory"}}, nil
}

func (weak) Get(context.Context, string) (*sandbox.Sandbox, error) {
	return weak{}.Create(context.Background(), sandbox.CreateRequest{})
}

// Unenforced limits are reported to callers who set limits or request all of a sandbox,
// and not again with each sandbox.
func TestUnenforcedIsToldToWhoAsks(t *testing.T) {
	for _, tt := range []struct {
		tool dialect.Tool
		args string
		want bool
	}{
		{named("sandbox_create"), `{}`, false},
		{named("sandbox_create"), `{"memory_mib":512}`, true},
		{named("sandbox_create"), `{"mounts":[{"tmpfs":true,"target":"/scratch"}]}`, true},
		{named("sandbox_get"), `{"sandbox":"sbx-1"}`, true},
	} {
		c := &dialect.Call{Service: weak{}, Args: json.RawMessage(tt.args), Status: func(string) {}, Log: slog.New(slog.DiscardHandler)}
		res, err := dialect.Invoke(t.Context(), New(), tt.tool, c)
		if err != nil || res.IsError {
			t.Fatal(err, res)
		}
		text := res.Content[0].(*mcp.TextContent).Text
		if strings.Contains(text, "Not enforced on this machine: memory.") != tt.want {
			t.Errorf("%s %s says %q", tt.tool.Def.Name, tt.args, text)
		}
	}
}
