package mcpserver

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A client that has set a level of logging gets output before the result, in sessions
// and without; other clients get none.
func TestOutputAsItComes(t *testing.T) {
	for name, tt := range map[string]struct {
		revision string
		level    mcp.LoggingLevel
		want     bool
	}{
		"session":             {"2025-11-25", "info", true},
		"session, too high":   {"2025-11-25", "error", false},
		"session, no level":   {"2025-11-25", "", false},
		"stateless":           {statelessRevision, "debug", true},
		"stateless, no level": {statelessRevision, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			w := serve(t, Config{Service: f})
			told := make(chan *mcp.LoggingMessageParams, 16)
			client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
				LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) { told <- r.Params },
			})
			cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, &mcp.ClientSessionOptions{ProtocolVersion: tt.revision})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			if cs.InitializeResult().Capabilities.Logging == nil {
				t.Error("the server does not declare log messages")
			}
			params := &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{"sandbox": "s", "shell": "hold"}, Meta: mcp.Meta{}}
			switch {
			case tt.level == "":
			case tt.revision == statelessRevision:
				params.Meta[mcp.MetaKeyLogLevel] = tt.level
			default:
				if err := cs.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: tt.level}); err != nil {
					t.Fatal(err)
				}
			}
			params.SetProgressToken("mine")
			released := make(chan struct{})
			go func() {
				defer close(released)
				if tt.want {
					select {
					case m := <-told:
						want := map[string]any{"stream": "stderr", "text": "early\n"}
						if diff := cmp.Diff(want, m.Data); diff != "" || m.Level != "info" || m.Logger != "sandbox_exec" || m.Meta["progressToken"] != "mine" {
							t.Errorf("told %+v %s", m, diff)
						}
					case <-time.After(30 * time.Second):
						t.Error("nothing was told while the command ran")
					}
				}
				f.release <- struct{}{}
			}()
			res, err := cs.CallTool(t.Context(), params)
			<-released
			if err != nil || res.IsError {
				t.Fatal(res, err)
			}
			if len(told) > 0 {
				t.Errorf("told too much: %+v", <-told)
			}
		})
	}
}
