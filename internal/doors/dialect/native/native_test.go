package native_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/native"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

func TestTools(t *testing.T) {
	d := native.New()
	dialecttest.Rules(t, d)
	dialecttest.Snapshot(t, d, "testdata/tools")
	tools, err := dialect.Select(d, dialect.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if len(tools) > 20 {
		t.Errorf("%d tools by default; models choose best among few, and clients take 40 to 128 of all servers together", len(tools))
	}
	// Models read names, descriptions and input schemas with every request.
	size := 0
	for _, tool := range tools {
		schema, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		size += len(tool.Def.Name) + len(tool.Def.Description) + len(schema)
	}
	if size > 4*5000 {
		t.Errorf("the default tools take %d bytes, about %d tokens", size, size/4)
	}
}

// Every tool, except those that change the list, is in the toolset of its subject, and
// core has the tools that it names.
func TestToolsets(t *testing.T) {
	d := native.New()
	known, _ := d.Toolsets()
	all, err := dialect.Select(d, dialect.Selection{Toolsets: []string{dialect.AllToolsets}})
	if err != nil {
		t.Fatal(err)
	}
	core := 0
	for _, tool := range d.Tools() {
		if !slices.Contains(known, tool.Toolset) || tool.Toolset == "core" {
			t.Errorf("%s is in toolset %q", tool.Def.Name, tool.Toolset)
		}
		if tool.In("core") {
			core++
		}
		in := slices.ContainsFunc(all, func(a dialect.Tool) bool { return a.Def.Name == tool.Def.Name })
		if in == (tool.Toolset == d.DynamicToolset()) {
			t.Errorf("%s among all: %v", tool.Def.Name, in)
		}
	}
	if core != 18 {
		t.Errorf("core has %d tools", core)
	}
	page, err := os.ReadFile("../../../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range known {
		row := "| `" + set + "` |"
		for _, tool := range d.Tools() {
			if tool.In(set) {
				row += " `" + tool.Def.Name + "`"
			}
		}
		if !strings.Contains(string(page), row+" |\n") {
			t.Errorf("docs/tools.md lacks %s |", row)
		}
	}
}

// The prompts name only tools that are on by default.
func TestPromptsNameCore(t *testing.T) {
	d := native.New()
	for _, p := range d.Prompts() {
		args := make(map[string]string)
		for _, a := range p.Def.Arguments {
			args[a.Name] = "x"
		}
		res, err := p.Get(t.Context(), args)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := res.Messages[0].Content.(*mcp.TextContent)
		for _, tool := range d.Tools() {
			if !tool.In("core") && strings.Contains(text.Text, tool.Def.Name) {
				t.Errorf("%s names %s", p.Def.Name, tool.Def.Name)
			}
		}
	}
}

// Arguments that a tool does not have are refused.
func TestArgumentsAreClosed(t *testing.T) {
	for _, tool := range native.New().Tools() {
		data, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			AdditionalProperties any `json:"additionalProperties"`
		}
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		if s.AdditionalProperties != false {
			t.Errorf("%s: the schema is open", tool.Def.Name)
		}
	}
}
