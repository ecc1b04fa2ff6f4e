package native_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/internal/dialect/native"
	"github.com/cove-sh/cove/sandbox"
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

// Every tool but those that change the list is in a toolset of its subject, and
// core has those that it names.
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
	page, err := os.ReadFile("../../../docs/tools.md")
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

// The input schemas have a property for every field of the domain's requests,
// so that what can be asked of the service can be asked here.
func TestRequestsAreComplete(t *testing.T) {
	tools := make(map[string]map[string]bool)
	for _, tool := range native.New().Tools() {
		data, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Properties           map[string]any `json:"properties"`
			AdditionalProperties any            `json:"additionalProperties"`
		}
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		if s.AdditionalProperties != false {
			t.Errorf("%s: the schema is open", tool.Def.Name)
		}
		props := make(map[string]bool)
		for name := range s.Properties {
			props[name] = true
		}
		tools[tool.Def.Name] = props
	}
	for tool, request := range map[string]any{
		"sandbox_create": sandbox.CreateRequest{}, "sandbox_update": sandbox.UpdateRequest{}, "sandbox_list": sandbox.ListRequest{},
		"file_read": sandbox.ReadFileRequest{}, "file_write": sandbox.WriteFileRequest{}, "file_edit": sandbox.EditFileRequest{},
		"file_list": sandbox.ListFilesRequest{}, "file_move": sandbox.MoveFileRequest{}, "sandbox_exec": sandbox.ExecRequest{},
		"sandbox_resume": sandbox.ResumeRequest{}, "sandbox_fork": sandbox.ForkRequest{}, "sandbox_diff": sandbox.DiffRequest{}, "sandbox_merge": sandbox.MergeRequest{},
		"run_code": sandbox.RunCodeRequest{}, "sandbox_env": sandbox.SetEnvRequest{}, "sandbox_try": sandbox.TryRequest{}, "snapshot_create": sandbox.CreateSnapshotRequest{}, "snapshot_list": sandbox.ListSnapshotsRequest{}, "snapshot_restore": sandbox.RestoreRequest{},
		"network_set": sandbox.NetworkPolicy{}, "network_log": sandbox.NetworkLogRequest{}, "preview_create": sandbox.CreatePreviewRequest{}, "preview_link": sandbox.PreviewLinkRequest{},
		"template_build": sandbox.TemplateSpec{},
	} {
		for _, field := range fields(reflect.TypeOf(request)) {
			// These need a connection of their own; the REST API has them.
			if slices.Contains([]string{"open_stdin", "terminal", "handover_ms", "keep_bytes"}, field) {
				continue
			}
			if field == "namespace" { // the client's configuration says it
				continue
			}
			if tool == "sandbox_exec" && field == "code" { // run_code has it
				continue
			}
			if !tools[tool][field] {
				t.Errorf("%s lacks %s", tool, field)
			}
		}
	}
}

// What a command of a try can be given is given for all of them.
func TestTryIsComplete(t *testing.T) {
	for _, tool := range native.New().Tools() {
		if tool.Def.Name != "sandbox_try" {
			continue
		}
		schema, err := json.Marshal(tool.Def.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range fields(reflect.TypeFor[sandbox.TryCommand]()) {
			// Each line is a shell's; a command may be written as one.
			if field != "command" && field != "shell" && !strings.Contains(string(schema), `"`+field+`":`) {
				t.Errorf("sandbox_try lacks %s", field)
			}
		}
	}
}

func fields(typ reflect.Type) []string {
	var out []string
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous, name == "resources":
			out = append(out, fields(f.Type)...)
		default:
			out = append(out, name)
		}
	}
	return out
}
