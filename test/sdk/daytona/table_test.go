package daytona

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// update is the flag of dialecttest: rewrite the table of docs/compat.md.
func update() bool { return flag.Lookup("update").Value.String() == "true" }

const (
	tableFile  = "../../../docs/compat.md"
	tableBegin = "<!-- The table is made by go test ./test/sdk/daytona -update. -->\n"
	tableEnd   = "<!-- The end of the table. -->\n"
	notesFile  = "differences.txt"
)

// surface is what the SDK offers: a title and the classes whose methods are
// listed there, each with the file that declares it.
var surface = []struct {
	title   string
	classes []string
}{
	{"Sandboxes", []string{"Daytona", "Sandbox"}},
	{"Commands, sessions and terminals", []string{"Process", "PtyHandle"}},
	{"Code", []string{"CodeInterpreter"}},
	{"Files", []string{"FileSystem"}},
	{"Git", []string{"Git"}},
	{"Snapshots and volumes", []string{"SnapshotService Snapshot", "VolumeService Volume", "Image"}},
	{"Desktops", []string{
		"ComputerUse", "Mouse ComputerUse", "Keyboard ComputerUse", "Screenshot ComputerUse", "Display ComputerUse", "RecordingService ComputerUse", "Accessibility ComputerUse",
	}},
	{"The rest", []string{"LspServer", "SecretService Secret", "WarmPoolService WarmPool"}},
}

var (
	comment   = regexp.MustCompile(`(?s)/\*\*.*?\*/`)
	signature = regexp.MustCompile(`(?m)^    (?:static )?([a-z]\w*)(?:<[^(]*>)?\(`)
)

// methods lists the public methods of a class, "CLASS FILE" or "CLASS".
func methods(t *testing.T, class string) []string {
	t.Helper()
	class, file, ok := strings.Cut(class, " ")
	if !ok {
		file = class
	}
	data, err := os.ReadFile("node_modules/@daytonaio/sdk/esm/" + file + ".d.ts")
	if err != nil {
		t.Fatal(err)
	}
	text := comment.ReplaceAllString(string(data), "")
	body := regexp.MustCompile(`(?s)class ` + class + `\b[^{]*\{(.*?)\n\}`).FindStringSubmatch(text)
	if body == nil {
		t.Fatalf("%s has no class %s", file, class)
	}
	var list []string
	for _, m := range signature.FindAllStringSubmatch(body[1], -1) {
		if m[1] != "constructor" {
			list = append(list, class+"."+m[1])
		}
	}
	return list
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

// table compares the table of docs/compat.md with what checks have shown.
func table(t *testing.T, rows []row) {
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
	for _, s := range surface {
		fmt.Fprintf(&text, "\n#### %s\n\n| Method | | Shown by |\n|---|---|---|\n", s.title)
		for _, class := range s.classes {
			found := methods(t, class)
			slices.Sort(found)
			for _, m := range slices.Compact(found) {
				if listed[m] {
					continue
				}
				for _, name := range append([]string{m}, options(m, by, said)...) {
					listed[name] = true
					fmt.Fprintf(&text, "| `%s` | %s | %s |\n", name, state(t, name, by[name], failed[name], said[name]), strings.Join(slices.Sorted(maps.Keys(by[name])), ", "))
				}
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
	compare(t, text.String()+"\n")
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

func compare(t *testing.T, table string) {
	t.Helper()
	data, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), tableBegin)
	was, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", tableFile)
	}
	if update() && !t.Failed() {
		if err := os.WriteFile(tableFile, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(was, table); diff != "" {
		t.Errorf("%s is out of date (-want +got); run with -update:\n%s", tableFile, diff)
	}
}
