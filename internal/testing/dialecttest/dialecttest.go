// Package dialecttest runs the tests that every dialect has: its table of
// tools is a snapshot, and its conversations are scripts. Both are rewritten
// by go test with the flag -update. It has the ways to a service in memory and to
// real daemons, too.
package dialecttest

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

var update = flag.Bool("update", false, "rewrite snapshots and conversations")

// Updating reports whether tests rewrite the documents that they compare, as the flag
// -update says.
func Updating() bool { return *update }

// maxToolName is what is left of 60 characters by a client's prefix.
const maxToolName = 32

// Snapshot compares each tool's definition with dir/<tool>.json, and the list
// of tools of each toolset, and read-only, with dir/tools.json.
func Snapshot(t *testing.T, d dialect.Dialect, dir string) {
	t.Helper()
	lists := map[string][]string{"default": names(t, d, dialect.Selection{}), "read-only": names(t, d, dialect.Selection{ReadOnly: true})}
	if ts, ok := d.(dialect.Toolsetter); ok {
		known, _ := ts.Toolsets()
		for _, k := range append(known, dialect.AllToolsets) {
			lists[k] = names(t, d, dialect.Selection{Toolsets: []string{k}})
		}
	}
	golden(t, filepath.Join(dir, "tools.json"), encode(t, lists))
	for _, tool := range d.Tools() {
		golden(t, filepath.Join(dir, tool.Def.Name+".json"), encode(t, tool.Def))
	}
}

func names(t *testing.T, d dialect.Dialect, sel dialect.Selection) []string {
	t.Helper()
	tools, err := dialect.Select(d, sel)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, tool := range tools {
		out = append(out, tool.Def.Name)
	}
	return out
}

var goodName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// Rules checks what we ask of every tool of our own: a short name, a title, a
// description, all annotations, and closed schemas.
func Rules(t *testing.T, d dialect.Dialect) {
	t.Helper()
	for _, tool := range d.Tools() {
		def := tool.Def
		if !goodName.MatchString(def.Name) || len(def.Name) > maxToolName {
			t.Errorf("%s: the name must be [a-z0-9_], at most %d characters", def.Name, maxToolName)
		}
		if def.Title == "" || def.Description == "" || def.InputSchema == nil || def.OutputSchema == nil {
			t.Errorf("%s: lacks a title, description or schema", def.Name)
		}
		if a := def.Annotations; a == nil || a.Title == "" || a.DestructiveHint == nil || a.OpenWorldHint == nil || (a.ReadOnlyHint && *a.DestructiveHint) {
			t.Errorf("%s: annotations are incomplete or contradict each other", def.Name)
		}
		if len(def.Description) > 1024 {
			t.Errorf("%s: the description has %d bytes", def.Name, len(def.Description))
		}
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(data, '\n')
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v (run with -update)", err)
		return
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s has moved (-want +got); run with -update if that is meant:\n%s", file, diff)
	}
}
