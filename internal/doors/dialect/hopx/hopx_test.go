package hopx_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/hopx"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// first and second are the two generations. They are made once, since making a table of
// tools takes milliseconds.
var first, second = hopx.New(), hopx.NewV2()

// TestTools checks that both generations have the product's tools, in its order, with
// byte-identical schemas and nothing else, and compares with our snapshots.
func TestTools(t *testing.T) {
	for file, d := range map[string]*hopx.Dialect{"product-v1.jsonl": first, "product-v2.jsonl": second} {
		dialecttest.Snapshot(t, d, "testdata/tools-"+strings.TrimSuffix(strings.TrimPrefix(file, "product-"), ".jsonl"))
		product, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(product)), "\n")
		tools := d.Tools()
		if len(tools) != len(lines) || len(tools) != map[string]int{hopx.Name: 34, hopx.NameV2: 35}[d.Name()] {
			t.Fatalf("%s has %d tools, the product %d", d.Name(), len(tools), len(lines))
		}
		for i, line := range lines {
			var want [2]json.RawMessage
			if err := json.Unmarshal([]byte(line), &want); err != nil {
				t.Fatal(err)
			}
			def := tools[i].Def
			name, err := json.Marshal(def.Name)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(name, want[0]) || !bytes.Equal(def.InputSchema.(json.RawMessage), want[1]) {
				t.Errorf("tool %d of %s is\n%s %s, want\n%s %s", i, d.Name(), name, def.InputSchema, want[0], want[1])
			}
			if def.Annotations != nil || def.Title != "" || def.OutputSchema != nil || def.Meta != nil || def.Icons != nil || def.Description == "" || len(def.Description) > 600 {
				t.Errorf("%s has what the product has not, or lacks a short description: %+v", def.Name, def)
			}
		}
	}
}

// own names the functions in [TestReal] that test the tools without a conversation.
var own = map[string]string{
	"execute_code_background": "background", "execute_code_async": "async", "run_command_background": "background",
	"list_processes": "background", "get_system_metrics": "system", "env_get": "system",
}

// TestEveryToolIsTested checks that every tool has conversations with real sandboxes, or a
// test of its own.
func TestEveryToolIsTested(t *testing.T) {
	source, err := os.ReadFile("real_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for tool, name := range own {
		_, body, _ := strings.Cut(string(source), "\nfunc "+name+"(t *testing.T, d *covetest.Daemon) {\n")
		body, _, _ = strings.Cut(body, "\n}\n")
		if !strings.Contains(body, strconv.Quote(tool)) || !strings.Contains(string(source), fmt.Sprintf("%q: %s,", name, name)) {
			t.Errorf("there is no %s in TestReal that calls %s", name, tool)
		}
	}
	for pattern, d := range map[string]*hopx.Dialect{"testdata/[vb][1o]*/*.txtar": first, "testdata/v2/*.txtar": second} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(data)
		}
		for _, tool := range d.Tools() {
			if !strings.Contains(all.String(), "-- call "+tool.Def.Name+" --") && own[tool.Def.Name] == "" {
				t.Errorf("%s: no conversation calls %s", d.Name(), tool.Def.Name)
			}
		}
	}
}

func TestServer(t *testing.T) {
	for _, d := range []*hopx.Dialect{first, second} {
		s := d.Server("9")
		if s.Implementation.Name != "hopx" || s.Implementation.Version != "9" || len(s.Instructions) > 1400 {
			t.Errorf("%s: %+v", d.Name(), s)
		}
		for _, want := range []string{"isolated", "create_sandbox", "background", "limit", "timeout_seconds", "env_set"} {
			if !strings.Contains(s.Instructions, want) {
				t.Errorf("%s: the instructions lack %s", d.Name(), want)
			}
		}
		prompts := d.Prompts()
		if len(prompts) != 1 || prompts[0].Def.Name != "quick_code_execution" || len(prompts[0].Def.Arguments) != 0 {
			t.Fatalf("%s: prompts %+v", d.Name(), prompts)
		}
		res, err := prompts[0].Get(t.Context(), nil)
		if err != nil || len(res.Messages) != 1 || res.Messages[0].Role != "user" {
			t.Fatalf("%s: %+v, %v", d.Name(), res, err)
		}
		text := res.Messages[0].Content.(*mcp.TextContent).Text
		for _, want := range []string{"python, javascript, bash, go", "execute_code", "300"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the guide lacks %s", d.Name(), want)
			}
		}
		if len(d.Resources()) != 0 {
			t.Errorf("%s has resources", d.Name())
		}
		// The product marks no tool as read-only.
		if tools, err := dialect.Select(d, dialect.Selection{ReadOnly: true}); err != nil || len(tools) != 0 {
			t.Errorf("%s: %v, %v", d.Name(), tools, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		want [2]string
	}{
		"none":            {nil, [2]string{}},
		"ours":            {map[string]string{"HOPX_BASE_URL": "http://127.0.0.1:7070/", "HOPX_API_KEY": "hopx_live_1"}, [2]string{"http://127.0.0.1:7070", "hopx_live_1"}},
		"the product":     {map[string]string{"HOPX_BASE_URL": "https://api-eu.HOPX.dev", "HOPX_API_KEY": "k"}, [2]string{"", "k"}},
		"another":         {map[string]string{"HOPX_BASE_URL": "https://nothopx.dev"}, [2]string{"https://nothopx.dev", ""}},
		"bearer":          {map[string]string{"HOPX_BEARER_TOKEN": "b"}, [2]string{"", "b"}},
		"key and bearer":  {map[string]string{"HOPX_API_KEY": "k", "HOPX_BEARER_TOKEN": "b"}, [2]string{"", "k"}},
		"not a valid URL": {map[string]string{"HOPX_BASE_URL": "://"}, [2]string{":", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			server, key := first.Environment(func(n string) string { return tt.env[n] })
			if diff := cmp.Diff(tt.want, [2]string{server, key}); diff != "" {
				t.Error(diff)
			}
		})
	}
}
