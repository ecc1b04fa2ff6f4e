package storetest

import (
	"maps"
	"slices"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// testFiles checks that files are found by their prefix, and change only as is asked for.
func testFiles(t *testing.T, open Opener) {
	s := open(t)
	names := func(prefix string, want ...string) {
		t.Helper()
		all, err := s.Files(t.Context(), prefix)
		if got := slices.Sorted(maps.Keys(all)); err != nil || !slices.Equal(got, want) {
			t.Errorf("files %s: %v, %v; want %v", prefix, got, err, want)
		}
		for name, content := range all {
			if string(content) != "of "+name {
				t.Errorf("file %s has %q", name, content)
			}
		}
	}
	names("")
	must(t, s.WriteFile(t.Context(), "nodes/a_1/x", []byte("before")))
	for _, name := range []string{"nodes/a_1/x", "nodes/a_1/y", "nodes/ab1/x", "other"} {
		must(t, s.WriteFile(t.Context(), name, []byte("of "+name)))
	}
	names("", "nodes/a_1/x", "nodes/a_1/y", "nodes/ab1/x", "other")
	names("nodes/a_1/", "nodes/a_1/x", "nodes/a_1/y")
	names("nodes/a_1/y", "nodes/a_1/y")
	if err := s.ReplaceFile(t.Context(), "other", []byte("before"), []byte("after")); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a file that has another content was replaced: %v", err)
	}
	must(t, s.ReplaceFile(t.Context(), "other", []byte("of other"), []byte("of\x00\xff")))
	if all, err := s.Files(t.Context(), "other"); err != nil || string(all["other"]) != "of\x00\xff" {
		t.Errorf("the replaced file: %q, %v", all, err)
	}
	for _, want := range []bool{true, false} {
		if removed, err := s.RemoveFile(t.Context(), "other"); err != nil || removed != want {
			t.Errorf("remove: %v, %v; want %v", removed, err, want)
		}
	}
	must(t, s.RemoveFiles(t.Context(), "nodes/a_1/"))
	names("", "nodes/ab1/x")
}
