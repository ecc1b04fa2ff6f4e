package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// JSON says all that the lines for a shell say.
func TestCompatJSON(t *testing.T) {
	for i := range compatProducts {
		p := &compatProducts[i]
		if p.more != nil {
			continue // which need a directory of their own
		}
		run := func(more ...string) (stdout, stderr string) {
			t.Helper()
			var out, errs bytes.Buffer
			args := append([]string{"compat", p.name, "--url", "http://cove.test/", "--key", "cove_k"}, more...)
			code := Run(t.Context(), Program{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Env: func(string) string { return "" }, Version: "1"})
			if code != 0 {
				t.Fatalf("%q ends with %d: %s", args, code, errs.String())
			}
			return out.String(), errs.String()
		}
		text, note := run()
		var lines []string
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		said, _ := run("--json")
		var v compatView
		if err := json.Unmarshal([]byte(said), &v); err != nil {
			t.Fatalf("%s: %v", said, err)
		}
		var want []string
		for name, value := range v.Env {
			want = append(want, "export "+name+"='"+value+"'")
		}
		for _, name := range v.Unset {
			want = append(want, "unset "+name)
		}
		slices.Sort(lines)
		slices.Sort(want)
		if !slices.Equal(lines, want) || len(v.Env) == 0 {
			t.Errorf("%s: lines %q, JSON %q", p.name, lines, want)
		}
		if v.Note != strings.TrimPrefix(strings.TrimSpace(note), "cove: ") {
			t.Errorf("%s: note %q, JSON %q", p.name, note, v.Note)
		}
	}
}
