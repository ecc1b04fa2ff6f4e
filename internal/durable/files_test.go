package durable_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-sh/cove/internal/durable"
)

// TestDir checks that files are found below their directory, and what a crash left is not.
func TestDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	d := durable.Dir(dir)
	all := func(below string, want ...string) {
		t.Helper()
		found, err := d.ReadAll(below)
		if got := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(got, want) {
			t.Errorf("below %q: %v, %v; want %v", below, got, err, want)
		}
	}
	all("")
	if _, err := d.Read("a/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read one that is missing: %v", err)
	}
	for _, name := range []string{"a/x", "a/b/y", "ab/x", "a/x"} {
		must(t, d.Write(name, []byte(name)))
	}
	must(t, os.WriteFile(filepath.Join(dir, "a", ".x.new-1"), nil, 0o600))
	all("", "a/b/y", "a/x", "ab/x")
	all("a", "a/b/y", "a/x")
	if data, err := d.Read("a/b/y"); err != nil || string(data) != "a/b/y" {
		t.Errorf("read: %q, %v", data, err)
	}
	low := durable.Below(d, "a")
	must(t, low.Write("b/z", []byte("z")))
	if found, err := low.ReadAll(""); err != nil || !slices.Equal(slices.Sorted(maps.Keys(found)), []string{"b/y", "b/z", "x"}) {
		t.Errorf("below a: %v, %v", found, err)
	}
	if found, err := low.ReadAll("b"); err != nil || len(found) != 2 || string(found["b/z"]) != "z" {
		t.Errorf("below a/b: %v, %v", found, err)
	}
	must(t, low.Remove("b/z"))
	must(t, low.RemoveAll("b"))
	all("a", "a/x")
	must(t, d.Remove("a/x"))
	if err := d.Remove("a/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove one that is missing: %v", err)
	}
	must(t, d.RemoveAll("a"))
	must(t, d.RemoveAll("a"))
	all("", "ab/x")
}
