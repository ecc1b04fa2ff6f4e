package mcp

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// What clients have in addition to tools, on stdio and over HTTP with sessions and
// without: sandboxes and their files, completion, prompts.
func TestBesidesTools(t *testing.T) {
	d := daemon(t, covetest.Options{Dev: true})
	box, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.WriteFile(t.Context(), box.ID, sandbox.WriteFileRequest{Path: "dir/ü file", MakeParents: true}, strings.NewReader("kept\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Create(t.Context(), sandbox.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, o := range doors(d) {
		t.Run(o.name, func(t *testing.T) {
			s := o.open(t).ClientSession
			t.Run("resources", func(t *testing.T) { testResources(t, s, box) })
			t.Run("completion", func(t *testing.T) { testCompletion(t, s, box) })
			t.Run("prompts", func(t *testing.T) { testPrompts(t, s) })
		})
	}
}

// A client finds the sandboxes and walks through their files.
func testResources(t *testing.T, s *mcp.ClientSession, box *sandbox.Sandbox) {
	read := func(uri string, v any) string {
		t.Helper()
		res, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		if v != nil {
			if err := json.Unmarshal([]byte(res.Contents[0].Text), v); err != nil {
				t.Fatal(err)
			}
		}
		return res.Contents[0].Text
	}
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 4 {
		t.Fatalf("%+v, %v; want two of each sandbox", list, err)
	}
	of := func(suffix string) string {
		t.Helper()
		i := slices.IndexFunc(list.Resources, func(r *mcp.Resource) bool {
			return strings.HasPrefix(r.URI, "cove://sandbox/"+box.ID) && strings.HasSuffix(r.URI, suffix)
		})
		if i < 0 {
			t.Fatalf("no resource ends in %s", suffix)
		}
		return list.Resources[i].URI
	}
	var one struct{ ID, Name string }
	if read(of(box.ID), &one); one.ID != box.ID || one.Name != "box" {
		t.Errorf("%+v", one)
	}
	var dir struct {
		Files []struct{ URI, Path, Type string }
	}
	if read(of("/"), &dir); len(dir.Files) != 1 || dir.Files[0].Type != "directory" {
		t.Fatalf("%+v", dir)
	}
	inner := dir.Files[0].URI
	if read(inner, &dir); len(dir.Files) != 1 {
		t.Fatalf("%+v", dir)
	}
	if got := read(dir.Files[0].URI, nil); got != "kept\n" {
		t.Errorf("%q", got)
	}
	if read(strings.TrimSuffix(inner, "/"), &dir); len(dir.Files) != 1 {
		t.Errorf("without a slash: %+v", dir)
	}
	read("cove://sandbox/box", &one) // a name, as everywhere
	for _, uri := range []string{"cove://sandbox/sbx-nope", "cove://sandbox/box/nope/"} {
		if _, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s is there", uri)
		}
	}
	if _, err := s.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: "nonsense"}); err == nil || !strings.Contains(err.Error(), "cursor") {
		t.Errorf("a bad cursor: %v", err)
	}
}

func testCompletion(t *testing.T, s *mcp.ClientSession, box *sandbox.Sandbox) {
	complete := func(ref mcp.CompleteReference, name, value string, known map[string]string) []string {
		t.Helper()
		res, err := s.Complete(t.Context(), &mcp.CompleteParams{
			Ref: &ref, Argument: mcp.CompleteParamsArgument{Name: name, Value: value}, Context: &mcp.CompleteContext{Arguments: known},
		})
		if err != nil {
			t.Fatal(err)
		}
		return res.Completion.Values
	}
	file := mcp.CompleteReference{Type: "ref/resource", URI: "cove://sandbox/{sandbox}{+path}"}
	if got := complete(file, "sandbox", "b", nil); !slices.Equal(got, []string{"box"}) {
		t.Errorf("names: %v", got)
	}
	if got := complete(file, "sandbox", "sbx-", nil); len(got) != 2 || !slices.Contains(got, box.ID) {
		t.Errorf("ids: %v", got)
	}
	in := map[string]string{"sandbox": "box"}
	if diff := cmp.Diff([]string{box.WorkDir + "/dir/"}, complete(file, "path", box.WorkDir+"/d", in)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{box.WorkDir + "/dir/ü file"}, complete(file, "path", box.WorkDir+"/dir/", in)); diff != "" {
		t.Error(diff)
	}
	prompt := mcp.CompleteReference{Type: "ref/prompt", Name: "try_several_ways"}
	if got := complete(prompt, "sandbox", "box", nil); !slices.Equal(got, []string{"box"}) {
		t.Errorf("of a prompt: %v", got)
	}
	if got := complete(mcp.CompleteReference{Type: "ref/prompt", Name: "run_in_sandbox"}, "template", "ho", nil); !slices.Equal(got, []string{"host"}) {
		t.Errorf("templates: %v", got)
	}
	for _, none := range [][]string{
		complete(file, "path", "/nope/", in), complete(file, "path", "/", map[string]string{"sandbox": "nope"}),
		complete(prompt, "task", "x", nil), complete(file, "sandbox", "nope", nil), complete(file, "path", "x", nil),
	} {
		if len(none) > 0 {
			t.Errorf("completed to %v", none)
		}
	}
}

// The prompts contain their arguments, and name tools that are offered.
func testPrompts(t *testing.T, s *mcp.ClientSession) {
	list, err := s.ListPrompts(t.Context(), nil)
	if err != nil || len(list.Prompts) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Prompts {
		args := make(map[string]string)
		for _, a := range p.Arguments {
			args[a.Name] = "the " + a.Name + " given"
		}
		res, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name, Arguments: args})
		if err != nil || len(res.Messages) != 1 {
			t.Fatalf("%s: %+v, %v", p.Name, res, err)
		}
		text := res.Messages[0].Content.(*mcp.TextContent).Text
		for _, a := range args {
			if !strings.Contains(text, a) {
				t.Errorf("%s does not tell %s", p.Name, a)
			}
		}
		for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
			named := strings.HasPrefix(word, "sandbox_") || strings.HasPrefix(word, "file_") || strings.HasPrefix(word, "job_") || strings.HasPrefix(word, "snapshot_")
			if named && !slices.ContainsFunc(tools.Tools, func(tool *mcp.Tool) bool { return tool.Name == word }) {
				t.Errorf("%s names %s, which is not offered", p.Name, word)
			}
		}
		if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name}); err == nil || !strings.Contains(err.Error(), "is missing") {
			t.Errorf("%s without arguments: %v", p.Name, err)
		}
	}
}
