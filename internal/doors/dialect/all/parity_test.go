package all_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cove-sh/cove/internal/doors/dialect/all"
	_ "github.com/cove-sh/cove/internal/testing/dialecttest" // the flag -update
)

// surface is one product's tools, and the conversations that its own tests have
// with real sandboxes.
type surface struct {
	dialect, title, folder string
	scripts                []string
}

var surfaces = []surface{
	{"superserve", "Superserve", "superserve", []string{"testdata/memory", "testdata/real", "testdata/build"}},
	{"miosa", "MIOSA", "miosa", []string{"testdata/memory", "testdata/real", "testdata/computer"}},
	{"microsandbox", "microsandbox", "microsandbox", []string{"testdata/real/guide", "testdata/real/life"}},
	{"podflare", "Podflare", "podflare", []string{"testdata/session"}},
	{"podflare@hosted", "Podflare, hosted", "podflare", []string{"testdata/hosted"}},
	{"hopx", "HOPX v0.1", "hopx", []string{"testdata/v1", "testdata/box"}},
	{"hopx@0.2", "HOPX v0.2", "hopx", []string{"testdata/v2"}},
}

const parityFile = "../../../../docs/dialects.md"

const parityIntro = `# Other products' clients

Cove works with the MCP clients of five other products. For each product it has a dialect: the product's own MCP server,
as its clients see it, on top of Cove's sandboxes. [clients.md](clients.md) explains how to switch. Each dialect's own
page says what is the same, what Cove reads from the product's environment variables, and every known difference.

Use ` + "`cove mcp --dialect NAME`" + ` on stdio, ` + "`/mcp/NAME`" + ` over HTTP, or ` + "`cove serve --dialect-port NAME=PORT`" + ` for a port where
` + "`/mcp`" + ` speaks the dialect. All dialects can use the same sandbox, by its id.

A test makes the tables. A tool **works** if a conversation in the tests has called it on a real sandbox and it did its
job. It **differs** if it did its job with a stated difference. It is **not shown**, with the reason, if it needs
something that the tests do not have. The last column names the conversations.
`

// The table of what works is generated from what the tests show.
func TestParity(t *testing.T) {
	var doc bytes.Buffer
	doc.WriteString(parityIntro)
	named := map[string]bool{}
	for _, s := range surfaces {
		named[s.dialect] = true
		s.write(t, &doc)
	}
	for _, d := range all.Dialects() {
		if !named[d.Name()] && d.Name() != all.Default {
			t.Errorf("%s is not in the table", d.Name())
		}
	}
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(parityFile, doc.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(parityFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(was), doc.String()); diff != "" {
		t.Errorf("%s is out of date (-want +got); run with -update:\n%s", parityFile, diff)
	}
}

func (s *surface) write(t *testing.T, doc *bytes.Buffer) {
	t.Helper()
	d, err := all.Find(s.dialect)
	if err != nil {
		t.Fatal(err)
	}
	shown := s.shown(t)
	differs, absent := s.declared(t)
	fmt.Fprintf(doc, "\n## %s\n\n%d tools; [%s](../internal/doors/dialect/%s/README.md)\n\n| Tool | | Shown by |\n|---|---|---|\n",
		s.title, len(d.Tools()), s.dialect, s.folder)
	for _, tool := range d.Tools() {
		name := tool.Def.Name
		by := shown[name]
		state := "works"
		switch {
		case len(by) == 0 && absent[name] == "":
			t.Errorf("%s: no conversation with a real sandbox calls %s successfully", s.dialect, name)
		case len(by) == 0:
			state = "not shown: " + absent[name]
		case absent[name] != "":
			t.Errorf("%s: %s is said not to be shown, but is, by %v", s.dialect, name, by)
		case differs[name] != "":
			state = "differs: " + differs[name]
		}
		fmt.Fprintf(doc, "| `%s` | %s | %s |\n", name, state, strings.Join(by, ", "))
	}
}

// shown returns the names of the conversations in which each tool succeeds.
func (s *surface) shown(t *testing.T) map[string][]string {
	t.Helper()
	folder := filepath.Join("..", s.folder)
	shown := map[string][]string{}
	for _, scripts := range s.scripts {
		s.checkReal(t, folder, scripts)
		files, err := filepath.Glob(filepath.Join(folder, scripts, "*.txtar"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no conversations in %s: %v", s.dialect, scripts, err)
		}
		for _, file := range files {
			add(t, shown, file, false)
		}
	}
	rest := filepath.Join("testdata/rest", s.dialect+".txtar")
	if _, err := os.Stat(rest); err == nil {
		add(t, shown, rest, true)
	}
	return shown
}

// add takes note of the calls of a script that have succeeded; in one whose test
// asks for that, all have.
func add(t *testing.T, shown map[string][]string, file string, allSucceed bool) {
	t.Helper()
	script, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(filepath.Base(file), ".txtar")
	if allSucceed {
		name = "rest"
	}
	for i, f := range script.Files {
		tool, ok := strings.CutPrefix(f.Name, "call ")
		if !ok || slices.Contains(shown[tool], name) {
			continue
		}
		if allSucceed || i+1 < len(script.Files) && script.Files[i+1].Name == "result" && succeeded(script.Files[i+1].Data) {
			shown[tool] = append(shown[tool], name)
		}
	}
}

// succeeded reports whether a result in a script is not an error, in any of the
// products' formats.
func succeeded(result []byte) bool {
	if bytes.HasPrefix(result, []byte("isError")) || bytes.HasPrefix(result, []byte("protocol error")) {
		return false
	}
	_, text, ok := bytes.Cut(result, []byte("text: "))
	return !ok || !failedText(text)
}

// failedText reports whether a text is an object that has an error.
func failedText(text []byte) bool {
	var v struct {
		Error any `json:"error"`
	}
	return json.NewDecoder(bytes.NewReader(text)).Decode(&v) == nil && v.Error != nil
}

// checkReal checks that a test of the dialect has the conversations of a
// directory with real sandboxes: it names the directory in a function that has no
// service in memory, in a file that starts the real program.
func (s *surface) checkReal(t *testing.T, folder, scripts string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		starts := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return strings.HasSuffix(i.Path.Value, `/internal/testing/covetest"`)
		})
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && starts && names(f, scripts) {
				return
			}
		}
	}
	t.Errorf("%s: no test has the conversations of %s with real sandboxes", s.dialect, scripts)
}

// names reports whether a function holds a text, and makes no service in memory.
func names(f *ast.FuncDecl, text string) bool {
	found, memory := false, false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			found = found || n.Value == strconv.Quote(text)
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			memory = memory || ok && x.Name == "dialecttest" && n.Sel.Name == "InMemory"
		}
		return true
	})
	return found && !memory
}

// declared reads what a dialect declares about its tools: how they differ, or, after
// "!", why no test shows them. Each difference names a test that shows it, so it cannot
// become outdated.
func (s *surface) declared(t *testing.T) (differs, absent map[string]string) {
	t.Helper()
	differs, absent = map[string]string{}, map[string]string{}
	data, err := os.ReadFile(filepath.Join("..", s.folder, "differences.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, other := range surfaces {
		if d, err := all.Find(other.dialect); err == nil && other.folder == s.folder {
			for _, tool := range d.Tools() {
				known[tool.Def.Name] = true
			}
		}
	}
	shown := s.named(t)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, how, ok := strings.Cut(line, ": ")
		name, by, named := strings.Cut(name, " ")
		why, unshown := strings.CutPrefix(how, "! ")
		if !ok || !known[name] || strings.Contains(how, "|") || named == unshown {
			t.Errorf("%s: %q is neither TOOL TEST[,TEST]: how it differs nor TOOL: ! why nothing shows it", s.folder, line)
			continue
		}
		if unshown {
			absent[name] = why
			continue
		}
		differs[name] = how
		for test := range strings.SplitSeq(by, ",") {
			if tools, ok := shown[test]; !ok || tools != nil && !slices.Contains(tools, name) {
				t.Errorf("%s: there is no test or conversation %q that shows how %s differs", s.folder, test, name)
			}
		}
	}
	return differs, absent
}

// named returns the tests of a dialect by name, and its conversations with the
// tools that they call.
func (s *surface) named(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	folder := filepath.Join("..", s.folder)
	tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				out[f.Name.Name] = nil
			}
		}
	}
	err = filepath.WalkDir(filepath.Join(folder, "testdata"), func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".txtar" {
			return err
		}
		script, err := txtar.ParseFile(name)
		if err != nil {
			return err
		}
		tools := []string{}
		for _, f := range script.Files {
			if tool, ok := strings.CutPrefix(f.Name, "call "); ok {
				tools = append(tools, tool)
			}
		}
		out[strings.TrimSuffix(filepath.Base(name), ".txtar")] = tools
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
