package microsandbox_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

// table is the product's table: each tool with its arguments, their types, and ! where
// one is required.
const table = `
sandbox_start: config object, namespace string!, sandbox string!
sandbox_start.config: cpus integer, envs array of string, image string [microsandbox/python microsandbox/node], memory integer, ports array of string, volumes array of string
sandbox_stop: namespace string!, sandbox string!
sandbox_run_code: code string!, language string!, namespace string!, sandbox string!
sandbox_run_command: args array of string, command string!, namespace string!, sandbox string!
sandbox_get_metrics: namespace string!, sandbox string
`

type schema struct {
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Enum        []string          `json:"enum"`
	Items       *schema           `json:"items"`
	Properties  map[string]schema `json:"properties"`
	Required    []string          `json:"required"`
}

func (s *schema) line(b *strings.Builder, name string) {
	var args []string
	for arg, p := range s.Properties {
		text := arg + " " + p.Type
		if p.Items != nil {
			text += " of " + p.Items.Type
		}
		if p.Enum != nil {
			text += " [" + strings.Join(p.Enum, " ") + "]"
		}
		if slices.Contains(s.Required, arg) {
			text += "!"
		}
		args = append(args, text)
	}
	slices.Sort(args)
	b.WriteString(name + ": " + strings.Join(args, ", ") + "\n")
	if config, ok := s.Properties["config"]; ok {
		config.line(b, name+".config")
	}
}

func TestTools(t *testing.T) {
	d := microsandbox.New()
	dialecttest.Snapshot(t, d, "testdata/tools")
	var got strings.Builder
	got.WriteByte('\n')
	for _, tool := range d.Tools() {
		data, err := json.Marshal(tool.Def)
		if err != nil {
			t.Fatal(err)
		}
		var def map[string]json.RawMessage
		var s schema
		if err := json.Unmarshal(data, &def); err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(strings.NewReader(string(def["inputSchema"])))
		dec.DisallowUnknownFields() // no default, no title, nothing closed
		if err := dec.Decode(&s); err != nil {
			t.Errorf("%s: %v", tool.Def.Name, err)
		}
		s.line(&got, tool.Def.Name)
		for name, p := range s.Properties {
			if p.Description == "" {
				t.Errorf("%s: %s has no description", tool.Def.Name, name)
			}
		}
		if len(def) != 3 {
			t.Errorf("%s has more than a name, a description and a schema: %s", tool.Def.Name, data)
		}
	}
	if diff := cmp.Diff(table, got.String()); diff != "" {
		t.Errorf("the tools differ from the product's (-want +got):\n%s", diff)
	}
}

func TestPrompts(t *testing.T) {
	for _, p := range microsandbox.New().Prompts() {
		python := p.Def.Name == "create_python_sandbox"
		if !python && p.Def.Name != "create_node_sandbox" {
			t.Errorf("%s is none of the product's", p.Def.Name)
		}
		var args []string
		for _, a := range p.Def.Arguments {
			args = append(args, a.Name)
			if !a.Required {
				t.Errorf("%s: %s is not required", p.Def.Name, a.Name)
			}
		}
		if diff := cmp.Diff([]string{"sandbox_name", "namespace"}, args); diff != "" {
			t.Error(diff)
		}
		description, image, name := "Create a Node.js development sandbox", "microsandbox/node", "node-sandbox"
		if python {
			description, image, name = "Create a Python development sandbox", "microsandbox/python", "python-sandbox"
		}
		for _, given := range []map[string]string{nil, {"sandbox_name": "mine", "namespace": "research"}} {
			res, err := p.Get(t.Context(), given)
			if err != nil || len(res.Messages) != 1 || res.Messages[0].Role != "user" || res.Description != description {
				t.Fatalf("%v, %+v", err, res)
			}
			text := res.Messages[0].Content.(*mcp.TextContent).Text
			wants := []string{"sandbox_start", image, "512 MiB", "/workspace", name, "default"}
			if given != nil {
				wants = []string{"'mine'", "'research'"}
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("%s lacks %s: %s", p.Def.Name, want, text)
				}
			}
		}
	}
}

func TestServer(t *testing.T) {
	d := microsandbox.New()
	s := d.Server("1.2.3")
	if s.Implementation.Name != "microsandbox-server" || s.Implementation.Version != "1.2.3" || s.Instructions != "" {
		t.Errorf("%+v", s)
	}
	server, key := d.Environment(func(name string) string {
		return map[string]string{"MSB_SERVER_URL": "http://127.0.0.1:5555/", "MSB_API_KEY": "k"}[name]
	})
	if server != "http://127.0.0.1:5555" || key != "k" {
		t.Errorf("%q, %q", server, key)
	}
}
