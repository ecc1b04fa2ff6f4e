package miosa_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/miosa"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// strange are values that arguments do not expect, and some that they do.
var strange = []string{
	`null`, `true`, `0`, `-1`, `1`, `1.5`, `1e400`, `-0`, `9007199254740993`, `1e18`, `""`, `" "`, `"\u0000"`, `"\ud800"`, `"../../etc"`, `"/"`,
	`"/../.."`, `"//x"`, "\"\u202e🙂 \\u200b\\r\\n\"", `"$(id)"`, `"sbx-"`, `"snap-"`, `"prv-1"`, `"job-1"`, `"%s%n"`, `[]`, `[1]`, `{}`, `{"":""}`,
	`{"a":{"b":[null]}}`, `"` + strings.Repeat("ä", 5000) + `"`, `"` + strings.Repeat("a/", 3000) + `"`, strings.Repeat("[", 500) + strings.Repeat("]", 500),
}

// TestStrangeArguments checks that any argument value, under any name, gives a result or a
// caller's error, short and with an id.
func TestStrangeArguments(t *testing.T) {
	svc := local.New(t)
	direct := dialecttest.Direct(t, miosa.New(), svc)
	ask := func(tool, args string) *mcp.CallToolResult {
		t.Helper()
		res, err := direct(sandbox.WithCaller(t.Context(), sandbox.LocalCaller()), tool, json.RawMessage(args))
		if err != nil {
			t.Fatalf("%s %.200s: %v", tool, args, err)
		}
		return res
	}
	judge := func(tool, args string) {
		t.Helper()
		res := ask(tool, args)
		if !res.IsError {
			return
		}
		text := res.Content[0].(*mcp.TextContent).Text
		if len(text) > 1000 || !strings.HasPrefix(text, "Error: ") || strings.ContainsAny(text, "\x00\x1b\n") || strings.Contains(text, "INTERNAL_ERROR") {
			t.Errorf("%s %.200s: %.2000q", tool, args, text)
		}
	}
	readsOnly := map[string]bool{"file_read": true, "file_list": true}
	// usual are the values of the other arguments.
	usual := map[string]string{
		"path": `"/tmp"`, "content": `"x"`, "from": `"/tmp/none"`, "to": `"/tmp/none-2"`, "command": `"true"`, "job_id": `"job-1"`, "port": `80`,
		"preview_id": `"prv-1"`, "snapshot_id": `"none"`, "action": `"key"`, "key": `"a"`, "persistent": `false`,
	}
	ctx := sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
	for _, tool := range miosa.New().Tools() {
		list, err := svc.List(ctx, sandbox.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			if _, err := svc.Kill(ctx, s.ID); err != nil {
				t.Fatal(err)
			}
		}
		if res := ask("sandbox_create", `{"persistent":false}`); res.IsError {
			t.Fatalf("%+v", res.Content[0])
		}
		for _, whole := range append(strange, ``, `{`, "\xff", `{"sandbox_id":"\xff"}`) {
			if tool.Def.Name != "sandbox_create" {
				judge(tool.Def.Name, whole)
			}
		}
		data, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var schema struct {
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(data, &schema); err != nil {
			t.Fatal(err)
		}
		names := []string{"id", "timeoutMs", "dir", "amount", "snapshot", "unknown"}
		for name := range schema.Properties {
			names = append(names, name)
		}
		for _, name := range names {
			for i, value := range strange {
				// Under the race detector all pairs take half a minute: "make soak" has them. Here
				// each tool gets every value, and each argument some.
				if !needs.Soak() && i%4 != len(name)%4 {
					continue
				}
				// Sandboxes in memory can change the machine's own files.
				if name == "path" && !readsOnly[tool.Def.Name] || name == "to" || name == "from" || name == "persistent" {
					continue
				}
				var args []string
				for other, v := range usual {
					if other != name && schema.Properties[other] != nil && (readsOnly[tool.Def.Name] || other != "path") {
						args = append(args, fmt.Sprintf("%q:%s", other, v))
					}
				}
				judge(tool.Def.Name, "{"+strings.Join(append(args, fmt.Sprintf("%q:%s", name, value)), ",")+"}")
			}
		}
	}
}

// TestManyAtOnce checks that concurrent calls of many sessions share nothing but the
// sandboxes.
func TestManyAtOnce(t *testing.T) {
	svc := local.New(t)
	var wg sync.WaitGroup
	for i := range 8 {
		direct := dialecttest.Direct(t, miosa.New(), svc)
		wg.Go(func() {
			ctx := sandbox.WithCaller(context.WithoutCancel(t.Context()), sandbox.LocalCaller())
			ask := func(tool, args string) map[string]any {
				res, err := direct(ctx, tool, json.RawMessage(args))
				if err != nil || res.IsError {
					t.Errorf("%s %s: %v, %+v", tool, args, err, res)
					return nil
				}
				var out map[string]any
				if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &out); err != nil {
					t.Error(err)
				}
				return out
			}
			ask("sandbox_create", `{"name":"all the same","persistent":false}`)
			var calls sync.WaitGroup
			for j := range 8 {
				calls.Go(func() {
					want := fmt.Sprintf("%d-%d\n", i, j)
					for _, tool := range []string{"sandbox_exec", "sandbox_exec_stream"} {
						if got := ask(tool, fmt.Sprintf(`{"command":"echo %d-%d"}`, i, j)); got["stdout"] != want {
							t.Errorf("session %d, call %d: %v", i, j, got)
						}
					}
					job := ask("sandbox_exec_background", `{"command":"true"}`)
					ask("sandbox_job_status", fmt.Sprintf(`{"job_id":%q}`, job["job_id"]))
				})
			}
			calls.Wait()
			ask("sandbox_destroy", `{}`)
		})
	}
	wg.Wait()
}
