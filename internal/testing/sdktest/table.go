// Package sdktest is what the tests with other products' SDKs share: where Node.js is,
// the results of checks, and the table of docs/compat.md that is made of them.
package sdktest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/testing/dialecttest"
)

const (
	tableFile = "../../../docs/compat.md"
	tableEnd  = "<!-- The end of the table. -->\n"
	notesFile = "differences.txt"
)

// A Class is one whose methods are listed.
type Class struct {
	// Package is that of the SDK, Name the class as its declarations name it.
	Package, Name string
	// File has the declarations, below the package; "" is dist/index.d.ts.
	File string
	// Row names a method in the table; "" leaves it out. Nil is Name.METHOD.
	Row func(method string, static bool) string
}

// A Section is a part of the table.
type Section struct {
	Title   string
	Classes []Class
	// Names are rows that no declaration has, such as the commands of a program.
	Names []string
}

// Table is what the run of a product's checks shows. It stands in docs/compat.md
// between a line that names the product's directory below test/sdk and tableEnd.
type Table struct {
	Product  string
	Sections []Section
}

var (
	comment   = regexp.MustCompile(`(?s)/\*\*.*?\*/`)
	indent    = regexp.MustCompile(`(?m)^ +`)
	signature = `(static )?([a-z]\w*)(<[^(]*>)?\(`
)

// methods lists the public methods of a class, by the names of the table.
func (c *Class) methods(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("node_modules", c.Package, cmp.Or(c.File, "dist/index.d.ts")))
	if err != nil {
		t.Fatal(err)
	}
	text := comment.ReplaceAllString(string(data), "")
	body := regexp.MustCompile(`(?s)(?:class|interface) ` + c.Name + `\b[^{]*\{(.*?)\n\}`).FindStringSubmatch(text)
	if body == nil {
		t.Fatalf("%s has no class %s", c.Package, c.Name)
	}
	member := regexp.MustCompile(`(?m)^` + indent.FindString(body[1]) + signature)
	var list []string
	for _, m := range member.FindAllStringSubmatch(body[1], -1) {
		name := c.Name + "." + m[2]
		if c.Row != nil {
			name = c.Row(m[2], m[1] != "")
		}
		if m[2] != "constructor" && name != "" {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// rows are the names of a section's rows.
func (s *Section) rows(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, class := range s.Classes {
		list = append(list, class.methods(t)...)
	}
	return append(list, s.Names...)
}

// notes reads what differs: METHOD: differs|refused|not shown|not served: text.
func notes(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(notesFile)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		method, note, ok := strings.Cut(line, ": ")
		kind, _, _ := strings.Cut(note, ":")
		if !ok || !slices.Contains([]string{"differs", "refused", "not shown", "not served"}, kind) {
			t.Errorf("%s: %q is not METHOD: differs|refused|not shown|not served: text", notesFile, line)
			continue
		}
		all[method] = note
	}
	return all
}

// compare compares the table of docs/compat.md with what checks have shown, or
// rewrites it with the flag -update.
func (tab *Table) compare(t *testing.T, rows []Row) {
	t.Helper()
	by, failed := map[string]map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		for _, m := range r.Methods {
			failed[m] = failed[m] || r.Error != ""
			if by[m] == nil {
				by[m] = map[string]bool{}
			}
			by[m][r.Group] = true
		}
	}
	said := notes(t)
	var text strings.Builder
	listed := map[string]bool{}
	for _, s := range tab.Sections {
		fmt.Fprintf(&text, "\n### %s\n\n| Method | | Shown by |\n|---|---|---|\n", s.Title)
		for _, m := range s.rows(t) {
			if listed[m] {
				continue
			}
			for _, name := range append([]string{m}, options(m, by, said)...) {
				listed[name] = true
				fmt.Fprintf(&text, "| `%s` | %s | %s |\n", name, state(t, name, by[name], failed[name], said[name]), strings.Join(slices.Sorted(maps.Keys(by[name])), ", "))
			}
		}
	}
	for m := range by {
		if !listed[m] {
			t.Errorf("a check shows %s, which the SDK does not have", m)
		}
	}
	for m := range said {
		if !listed[m] {
			t.Errorf("%s speaks of %s, which the SDK does not have", notesFile, m)
		}
	}
	tab.put(t, text.String()+"\n")
}

// options are what a method takes that has a row of its own.
func options(method string, by map[string]map[string]bool, said map[string]string) []string {
	var list []string
	for m := range by {
		if strings.HasPrefix(m, method+" ") {
			list = append(list, m)
		}
	}
	for m := range said {
		if strings.HasPrefix(m, method+" ") {
			list = append(list, m)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// state says what is known of a method.
func state(t *testing.T, method string, by map[string]bool, failed bool, note string) string {
	t.Helper()
	switch {
	case strings.HasPrefix(note, "not shown"), strings.HasPrefix(note, "not served"):
		if len(by) > 0 {
			t.Errorf("%s is said not to be shown or served, but is, by %v", method, slices.Sorted(maps.Keys(by)))
		}
		return note
	case len(by) == 0:
		t.Errorf("no check calls %s; add one, or say in %s why there is none", method, notesFile)
		return "not shown"
	case failed:
		return "fails"
	case note != "":
		return note
	}
	return "passes"
}

func (tab *Table) put(t *testing.T, table string) {
	t.Helper()
	data, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	begin := "<!-- The table is made by go test ./test/sdk/" + tab.Product + " -update. -->\n"
	before, rest, ok := strings.Cut(string(data), begin)
	was, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of %s", tableFile, tab.Product)
	}
	if dialecttest.Updating() && !t.Failed() {
		if err := os.WriteFile(tableFile, []byte(before+begin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(was, table); diff != "" {
		t.Errorf("%s is out of date (-want +got); run with -update:\n%s", tableFile, diff)
	}
}
