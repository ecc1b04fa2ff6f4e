package cells

import (
	"os"
	"path/filepath"
	"testing"
)

// An upgrade replaces the program's file while a daemon runs: what cells are
// started from stays what it was, and the next daemon takes the new one.
func TestInstallProgramSurvivesUpgrade(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "cove")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(exe+".new", []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(exe+".new", exe); err != nil {
			t.Fatal(err)
		}
	}
	install := func() string {
		t.Helper()
		path, err := installProgram(filepath.Join(dir, "bin"), exe)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write("old")
	first := install()
	if again := install(); again != first {
		t.Errorf("installed twice: %s and %s", first, again)
	}
	write("new version")
	if got := read(first); got != "old" {
		t.Errorf("the installed program became %q", got)
	}
	second := install()
	if got := read(second); got != "new version" {
		t.Errorf("after the upgrade the installed program is %q", got)
	}
}

// A kept program that is a second name of the user's file is no longer kept
// once that is written to; a copy is.
func TestIntact(t *testing.T) {
	dir := t.TempDir()
	user := filepath.Join(dir, "cove")
	if err := os.WriteFile(user, []byte("first"), 0o755); err != nil {
		t.Fatal(err)
	}
	linked, err := installProgram(filepath.Join(dir, "bin"), user)
	if err != nil {
		t.Fatal(err)
	}
	if err := intact(linked); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(user, []byte("second, and longer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if intact(linked) == nil {
		t.Error("a program that was written to counts as intact")
	}
	other, err := installProgram(filepath.Join(dir, "bin"), user)
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(other); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(user, []byte("third"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := intact(other); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(other); err != nil || string(data) != "second, and longer" {
		t.Errorf("the copy holds %q, %v", data, err)
	}
	if intact(filepath.Join(dir, "none")) == nil {
		t.Error("what is not there is intact")
	}
}
