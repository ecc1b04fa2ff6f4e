package native

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/sandbox"
)

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		glob    string
		matches string
		not     string
	}{
		{"*.go", "a.go b/c.go", "a.gox .go/x"},
		{"a?c", "abc x/abc", "ac abbc a/c"},
		{"src/*.go", "src/a.go", "src/b/a.go x/src/a.go"},
		{"src/**/*.go", "src/a.go src/b/c/a.go", "lib/a.go"},
		{"**/test/*", "test/a b/test/a", "test/a/b"},
		{"*.{ts,tsx}", "a.ts b/a.tsx", "a.tsxx a.t"},
		{"[!a]b[0-9]", "cb1", "ab1 cbx x/b1"},
		{"a.b", "a.b", "axb"},
		{"ü*", "üx", "ux"},
		{"./x", "x", "y"},
		{"a}", "a}", "a"},
	} {
		re, err := globRegexp(tt.glob, false)
		if err != nil {
			t.Errorf("%s: %v", tt.glob, err)
			continue
		}
		for name := range strings.FieldsSeq(tt.matches) {
			if !re.MatchString(name) {
				t.Errorf("%s does not match %s", tt.glob, name)
			}
		}
		for name := range strings.FieldsSeq(tt.not) {
			if re.MatchString(name) {
				t.Errorf("%s matches %s", tt.glob, name)
			}
		}
	}
	if re, err := globRegexp("A*", true); err != nil || !re.MatchString("ab") {
		t.Error(re, err)
	}
}

// Whatever a glob is, it is one or an error of the caller's.
func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"*", "[", "{a,{b}}", "[]]", "[\\]", "**/**", "{", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, glob string) {
		if _, err := globRegexp(glob, true); err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Error(err)
		}
	})
}

// A search ends at its bounds and says so.
func TestSearchBounds(t *testing.T) {
	svc := local.New(t)
	ctx := sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
	sb, err := svc.Create(ctx, sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if _, err := svc.WriteFile(ctx, sb.ID, sandbox.WriteFileRequest{Path: name, MakeParents: true}, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	write("large", "needle "+strings.Repeat("x", maxSearchRead))
	write("line", strings.Repeat("é", 5000)+"needle"+strings.Repeat("x", 5000))
	write("lines", strings.Repeat("needle\n", 600))
	for i := range 30 {
		write(fmt.Sprintf("deep/%d/%s", i, strings.Repeat("d/", i)+"leaf"), "needle")
	}
	find := func(args string) searchResult {
		t.Helper()
		tool := named("file_search")
		res, err := dialect.Invoke(ctx, New(), tool, &dialect.Call{Service: svc, Args: json.RawMessage(args), Status: func(string) {}, Log: slog.New(slog.DiscardHandler)})
		if err != nil || res.IsError {
			t.Fatalf("%+v %v", res, err)
		}
		return *res.StructuredContent.(*searchResult)
	}
	args := func(rest string) string { return `{"sandbox":"` + sb.ID + `",` + rest + `}` }
	if r := find(args(`"name":"leaf"`)); len(r.Matches) != 30 || r.Truncated {
		t.Errorf("%d leaves, truncated %v", len(r.Matches), r.Truncated)
	}
	r := find(args(`"content":"needle","limit":200`))
	if len(r.Matches) != 200 || !r.Truncated || r.Skipped != 1 || !strings.Contains(r.Hint, "more than 200 matches") {
		t.Errorf("%d matches, %d skipped, %q", len(r.Matches), r.Skipped, r.Hint)
	}
	if !slices.IsSortedFunc(r.Matches, func(a, b searchMatch) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return a.Line - b.Line
	}) {
		t.Error("the matches are not in order")
	}
	r = find(args(`"content":"needle","name":"line"`))
	if len(r.Matches) != 1 || len(r.Matches[0].Text) > maxSearchLine || !strings.Contains(r.Matches[0].Text, "éneedlex") {
		t.Errorf("%+v", r.Matches)
	}
}
