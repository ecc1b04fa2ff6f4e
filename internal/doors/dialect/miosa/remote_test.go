package miosa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/sandbox"
)

// testScopes checks that a key may do what its scopes allow, to its team's sandboxes.
func testScopes(t *testing.T, w *harness) {
	owner := w.open(t)
	id, _ := dialecttest.Ask(t, owner, "sandbox_create", `{"name":"owned"}`)["id"].(string)
	dialecttest.Ask(t, owner, "file_write", `{"path":"/tmp/f","content":"x"}`)
	of := func(in map[string]any) string {
		in["sandbox_id"] = id
		return args(t, in)
	}
	reads := map[string]string{
		"sandbox_get": of(map[string]any{}), "sandbox_list": `{}`, "file_read": of(map[string]any{"path": "/tmp/f"}),
		"file_list": of(map[string]any{}), "preview_list": of(map[string]any{}), "snapshot_list": of(map[string]any{}),
	}
	writes := map[string]string{
		"sandbox_create": `{}`, "sandbox_stop": of(map[string]any{}), "sandbox_resume": of(map[string]any{}), "sandbox_destroy": of(map[string]any{}),
		"sandbox_exec": of(map[string]any{"command": "true"}), "sandbox_exec_stream": of(map[string]any{"command": "true"}),
		"sandbox_exec_background": of(map[string]any{"command": "true"}), "preview_create": of(map[string]any{"port": 80}),
		"snapshot_create": of(map[string]any{}),
	}
	changes := map[string]string{
		"file_write": of(map[string]any{"path": "/tmp/f", "content": "y"}), "file_delete": of(map[string]any{"path": "/tmp/f"}),
		"file_move": of(map[string]any{"from": "/tmp/f", "to": "/tmp/g"}),
	}
	forbidden := func(s *mcp.ClientSession, tools map[string]string, scope string) {
		t.Helper()
		for tool, in := range tools {
			text := refused(t, s, tool, in)
			if !strings.HasPrefix(text, "Error: 403 Unauthorized: ") || !strings.Contains(text, scope) || !strings.Contains(text, "(403 insufficient_scope, ") {
				t.Errorf("%s: %s; want that the scope %s lacks", tool, text, scope)
			}
		}
	}
	reader := dialecttest.Connect(t, w.http(w.key(t, sandbox.DefaultTeam, sandbox.ScopeSandboxesRead)), revision)
	for tool, in := range reads {
		dialecttest.Ask(t, reader, tool, in)
	}
	forbidden(reader, writes, "sandboxes:write")
	forbidden(reader, changes, "files:write")
	writer := dialecttest.Connect(t, w.http(w.key(t, sandbox.DefaultTeam, sandbox.ScopeSandboxesWrite)), revision)
	forbidden(writer, changes, "files:write")
	forbidden(dialecttest.Connect(t, w.http(w.key(t, sandbox.DefaultTeam, sandbox.ScopeFilesWrite)), revision), reads, "sandboxes:read")

	stranger := dialecttest.Connect(t, w.http(w.key(t, "strangers", seedScopes...)), revision)
	for _, tools := range []map[string]string{reads, writes, changes} {
		for tool, in := range tools {
			if !strings.Contains(in, id) {
				continue
			}
			if text := refused(t, stranger, tool, in); !strings.Contains(text, "(404 NOT_FOUND, ") {
				t.Errorf("%s of another team's: %s", tool, text)
			}
		}
	}
	if got := dialecttest.Ask(t, stranger, "sandbox_list", `{}`); got["total"] != 0.0 {
		t.Errorf("a stranger sees %v", got)
	}
	if got := dialecttest.Ask(t, owner, "file_read", `{"path":"/tmp/f"}`); got["content"] != "x" {
		t.Errorf("afterwards the file is %v", got)
	}
	for _, key := range []string{"", "msk_u_wrong"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/mcp/"+miosa.Name, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the key %q: %s", key, res.Status)
		}
	}
	dialecttest.Ask(t, owner, "sandbox_destroy", `{}`)
}

// testSessions checks that each session has its own active sandbox, and a client without
// sessions has none.
func testSessions(t *testing.T, w *harness) {
	one, two := w.open(t), w.open(t)
	first := dialecttest.Ask(t, one, "sandbox_create", `{}`)["id"]
	if text := refused(t, two, "sandbox_get", `{}`); !strings.Contains(text, "no active sandbox") {
		t.Errorf("in another session: %s", text)
	}
	second := dialecttest.Ask(t, two, "sandbox_create", `{}`)["id"]
	if got := dialecttest.Ask(t, one, "sandbox_get", `{}`)["id"]; got != first || got == second {
		t.Errorf("of %v and %v, the active one is %v", first, second, got)
	}
	// Using another sandbox by its id does not make it the active one.
	dialecttest.Ask(t, one, "sandbox_exec", args(t, map[string]any{"sandbox_id": second, "command": "true"}))
	if got := dialecttest.Ask(t, one, "sandbox_get", `{}`)["id"]; got != first {
		t.Errorf("the active one is %v, want %v", got, first)
	}

	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), w.http(w.key(t, sandbox.DefaultTeam, seedScopes...)), &mcp.ClientSessionOptions{ProtocolVersion: "2026-07-28"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	third := dialecttest.Ask(t, s, "sandbox_create", `{}`)["id"]
	if text := refused(t, s, "sandbox_exec", `{"command":"true"}`); !strings.Contains(text, "sandbox_id is required") || !strings.Contains(text, "no session") {
		t.Errorf("without sessions: %s", text)
	}
	if got := dialecttest.Ask(t, s, "sandbox_exec", args(t, map[string]any{"sandbox_id": third, "command": "echo by its id"})); got["stdout"] != "by its id\n" {
		t.Errorf("without sessions: %v", got)
	}
	dialecttest.KillAll(t, w.Daemon)
}

// testStream checks that lines are sent as progress while the command runs, and that all of
// them are in the result.
func testStream(t *testing.T, w *harness) {
	var mu sync.Mutex
	var told []string
	first := make(chan struct{}, 1000)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, req.Params.Message)
			if strings.Contains(req.Params.Message, "live") {
				first <- struct{}{}
			}
		},
	})
	key := w.key(t, sandbox.DefaultTeam, seedScopes...)
	s, err := client.Connect(t.Context(), w.http(key), &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	id, _ := dialecttest.Ask(t, s, "sandbox_create", `{}`)["id"].(string)
	// The command ends once this test has seen one of its lines.
	go func() {
		<-first
		_, _ = w.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/tmp/go"}, strings.NewReader("x"))
	}()
	params := &mcp.CallToolParams{Name: "sandbox_exec_stream", Arguments: json.RawMessage(`{"timeout":300,"command":"echo live; echo 'ünï' >&2; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo last"}`)}
	params.SetProgressToken("lines")
	res, err := s.CallTool(t.Context(), params)
	if err != nil || res.IsError {
		t.Fatalf("%v, %+v", err, res)
	}
	out := res.StructuredContent.(map[string]any)
	if events := fmt.Sprint(out["events"]); out["stdout"] != "live\nlast\n" || out["stderr"] != "ünï\n" || !strings.Contains(events, "map[exit_code:0 type:exit]]") || !strings.Contains(events, "map[line:last type:stdout]") {
		t.Errorf("the result is %v", out)
	}
	if !covetest.Eventually(patience, func() bool {
		mu.Lock()
		defer mu.Unlock()
		all := strings.Join(told, "\n")
		return strings.Contains(all, `{"line":"live","type":"stdout"}`) && strings.Contains(all, `{"line":"ünï","type":"stderr"}`) && strings.Contains(all, `{"line":"last","type":"stdout"}`)
	}) {
		t.Errorf("told were %q", told)
	}
	// A flood is neither reported in full nor kept, only counted.
	params = &mcp.CallToolParams{Name: "sandbox_exec_stream", Arguments: json.RawMessage(`{"timeout":300,"command":"seq 300000; head -c 3000000 /dev/zero; seq 5"}`)}
	params.SetProgressToken("flood")
	if res, err = s.CallTool(t.Context(), params); err != nil || res.IsError {
		t.Fatalf("%v, %+v", err, res)
	}
	out = res.StructuredContent.(map[string]any)
	data, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	stdout, _ := out["stdout"].(string)
	events, _ := out["events"].([]any)
	if !strings.HasPrefix(stdout, "1\n2\n") || !strings.HasSuffix(stdout, "\n4\n5\n") || out["stdout_bytes"] != 1988895.0+3000000+10 || len(events) > 5000 || len(data) > 2<<20 {
		t.Errorf("of a flood there are %d bytes in %d events, stdout_bytes %v, %.20q to %.20q", len(data), len(events), out["stdout_bytes"], stdout, stdout[max(0, len(stdout)-20):])
	}
	dialecttest.KillAll(t, w.Daemon)
}

// testCancel checks that a cancelled call ends what it has started, in each tool that
// waits.
func testCancel(t *testing.T, w *harness) {
	s := w.open(t)
	id, _ := dialecttest.Ask(t, s, "sandbox_create", `{}`)["id"].(string)
	for i, c := range []struct{ tool, more string }{
		{"sandbox_exec", ""}, {"sandbox_exec", `,"timeout":300`}, {"sandbox_exec_stream", ""}, {"sandbox_exec_stream", `,"timeout":300`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(fmt.Sprintf(`{"command":"touch /tmp/begun-%d; exec sleep 1%d000"%s}`, i, i, c.more))})
			ended <- err
		}()
		if !covetest.Eventually(patience, func() bool {
			_, err := w.Client.StatFile(t.Context(), id, fmt.Sprintf("/tmp/begun-%d", i))
			return err == nil
		}) {
			t.Fatal("the command does not begin")
		}
		cancel()
		if err := <-ended; err == nil {
			t.Errorf("%s%s: a cancelled call succeeds", c.tool, c.more)
		}
	}
	if !covetest.Eventually(patience, func() bool {
		list, err := w.Client.ListProcesses(t.Context(), id, sandbox.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if p.Name == "sleep" {
				return false
			}
		}
		return true
	}) {
		t.Error("what cancelled calls have started keeps running")
	}
	dialecttest.KillAll(t, w.Daemon)
}
