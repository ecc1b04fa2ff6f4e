package mcpserver

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// follower is a client that notes when its list of tools has changed.
type follower struct {
	*mcp.ClientSession
	t       *testing.T
	changed chan struct{}
}

func follow(t *testing.T, transport mcp.Transport, revision string) *follower {
	t.Helper()
	f := &follower{t: t, changed: make(chan struct{}, 16)}
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { f.changed <- struct{}{} },
	})
	cs, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() }) // the server may have ended it
	f.ClientSession = cs
	return f
}

func (f *follower) names() []string {
	f.t.Helper()
	list, err := f.ListTools(f.t.Context(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// call returns the text of a result, and whether it is an error.
func (f *follower) call(tool string, args map[string]any) (string, bool) {
	f.t.Helper()
	res, err := f.CallTool(f.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return err.Error(), true
	}
	return res.Content[0].(*mcp.TextContent).Text, res.IsError
}

func (f *follower) hears() {
	f.t.Helper()
	select {
	case <-f.changed:
	case <-time.After(30 * time.Second):
		f.t.Fatal("the client was not told that its list has changed")
	}
}

// enables turns on toolsets, and checks that they are on and that the client is
// notified.
func (f *follower) enables() {
	f.t.Helper()
	if text, failed := f.call("network_log", map[string]any{"sandbox": "s"}); !failed || !strings.Contains(text, `tool "network_log" is off: turn on toolset network with toolset_enable`) {
		f.t.Errorf("a tool that is off: %s", text)
	}
	if text, failed := f.call("toolset_list", nil); failed || !strings.Contains(text, "network (off): ") || !strings.Contains(text, "core (on): ") {
		f.t.Error(text)
	}
	if text, failed := f.call("toolset_enable", map[string]any{"toolsets": []string{"network", "nope"}}); !failed || !strings.Contains(text, `unknown toolset "nope"; known are core,`) {
		f.t.Errorf("an unknown toolset: %s", text)
	}
	before := f.names()
	if text, failed := f.call("toolset_enable", map[string]any{"toolsets": []string{"network"}}); failed || !strings.HasPrefix(text, "New tools: network_get network_set network_log\n") {
		f.t.Error(text)
	}
	f.hears()
	if after := f.names(); len(after) != len(before)+3 || !slices.Contains(after, "network_log") || after[0] != "sandbox_create" {
		f.t.Errorf("%v", after)
	}
	if text, failed := f.call("toolset_list", nil); failed || !strings.Contains(text, "network (on): ") {
		f.t.Error(text)
	}
	if text, failed := f.call("toolset_enable", map[string]any{"toolsets": []string{"network"}}); failed || !strings.Contains(text, "on already") {
		f.t.Error(text)
	}
	if text, _ := f.call("network_log", nil); !strings.Contains(text, `network_log: "sandbox" is missing`) {
		f.t.Errorf("a tool that is on now: %s", text)
	}
}

// Over HTTP, a turned-on toolset is on only for that session, and only that session is
// notified.
func TestEnableOverHTTP(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	open := func() *follower {
		return follow(t, &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, "2025-11-25")
	}
	one, other := open(), open()
	before := other.names()
	one.enables()
	if after := other.names(); !slices.Equal(before, after) {
		t.Errorf("another session's list: %v", after)
	}
	other.call("toolset_enable", map[string]any{"toolsets": []string{"volumes"}})
	other.hears()
	if n := len(one.changed) + len(other.changed); n > 0 {
		t.Errorf("%d more notifications", n)
	}
}

func TestEnableOnStdio(t *testing.T) {
	for _, revision := range []string{"2025-11-25", statelessRevision} {
		t.Run(revision, func(t *testing.T) {
			in, toServer := io.Pipe()
			fromServer, out := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- RunStdio(t.Context(), Config{Service: newFake()}, in, out) }()
			f := follow(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, revision)
			f.enables()
			_ = f.Close()
			_ = toServer.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a session, with sets that were chosen, and read-only, the list of tools
// stays what the owner has made it, and errors say who can change it.
func TestFixedTools(t *testing.T) {
	for _, tt := range []struct {
		name     string
		cfg      Config
		path     string
		revision string
		tool     string
		want     string
	}{
		{"stateless", Config{}, "/mcp", statelessRevision, "network_log", `tool "network_log" is off: it is in toolset network, which the owner of the client turns on with --toolsets (COVE_TOOLSETS), or over HTTP with the header X-Cove-Toolsets`},
		{"stateless, list", Config{}, "/mcp", statelessRevision, "toolset_enable", `tool "toolset_enable" is off: the list of tools is fixed here`},
		{"stateless, only these", Config{}, "/mcp/x/dynamic", statelessRevision, "toolset_enable", "the list of tools is fixed here"},
		{"chosen", Config{}, "/mcp/x/core", "2025-11-25", "toolset_enable", "the list of tools is fixed here"},
		{"chosen by flag", Config{Toolsets: []string{"core"}}, "/mcp", "2025-11-25", "file_move", "it is in toolset files, which the owner"},
		{"of two toolsets", Config{}, "/mcp/x/volumes", "2025-11-25", "run_code", "it is in toolset core or code, which the owner"},
		{"read-only", Config{ReadOnly: true}, "/mcp", "2025-11-25", "network_set", `tool "network_set" is off: this connection is read-only`},
		{"none", Config{}, "/mcp", "2025-11-25", "nope", `unknown tool "nope"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Service = newFake()
			w := serve(t, tt.cfg)
			f := follow(t, &mcp.StreamableClientTransport{Endpoint: w.url + tt.path, HTTPClient: w.client}, tt.revision)
			if text, failed := f.call(tt.tool, nil); !failed || !strings.Contains(text, tt.want) {
				t.Errorf("%s", text)
			}
		})
	}
}

// A read-only session can turn on only tools that change nothing.
func TestEnableReadOnly(t *testing.T) {
	w := serve(t, Config{Service: newFake(), ReadOnly: true})
	f := follow(t, &mcp.StreamableClientTransport{Endpoint: w.url + "/mcp", HTTPClient: w.client}, "2025-11-25")
	if text, failed := f.call("toolset_enable", map[string]any{"toolsets": []string{"network"}}); failed || !strings.HasPrefix(text, "New tools: network_get network_log\n") {
		t.Error(text)
	}
	if names := f.names(); slices.Contains(names, "network_set") {
		t.Errorf("%v", names)
	}
}

// Arbitrary new selections do not take memory permanently.
func TestServersAreBounded(t *testing.T) {
	w := serve(t, Config{Service: newFake()})
	w.handler.mu.Lock()
	for i := range maxServers {
		w.handler.servers[strings.Repeat("x", i+1)] = mcp.NewServer(&mcp.Implementation{Name: "x"}, nil)
	}
	n := len(w.handler.servers)
	w.handler.mu.Unlock()
	headers := w.session("/mcp", headerTools, "sandbox_list,volume_list")
	if _, m := w.post("/mcp", call(2, "sandbox_list", "{}"), headers...); m.Error != nil {
		t.Errorf("%+v", m.Error)
	}
	w.handler.mu.Lock()
	defer w.handler.mu.Unlock()
	if len(w.handler.servers) != n {
		t.Errorf("%d servers, %d before", len(w.handler.servers), n)
	}
}
