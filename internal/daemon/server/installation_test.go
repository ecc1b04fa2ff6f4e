package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
)

// TestForeignDatabase starts a daemon with a database that has no records of the
// content beside it; the content must be there afterwards, and the right database
// must make it usable again.
func TestForeignDatabase(t *testing.T) {
	dir := t.TempDir()
	in := func(c *config.Config) { c.StateDir = dir }
	mustStart(t, in).end(t)
	database := filepath.Join(dir, "cove.db")
	kept := filepath.Join(t.TempDir(), "cove.db")
	if err := os.Rename(database, kept); err != nil {
		t.Fatal(err)
	}
	content := []string{filepath.Join(dir, "engine", "checkpoints", "ckp-one"), filepath.Join(dir, "volumes", "vol-one", "data")}
	for _, path := range content {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string) {
		t.Helper()
		_, err := start(t, in)
		if err == nil || !strings.Contains(err.Error(), "restore the database that belongs to it") {
			t.Errorf("start with %s: %v, want a refusal that says what to do", when, err)
		}
		for _, path := range content {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("start with %s: %v", when, err)
			}
		}
	}
	refused("no database")
	refused("the database of the refused start")
	if err := os.WriteFile(database, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("an empty database")
	for _, name := range []string{"engine", "volumes"} {
		if err := os.Remove(filepath.Join(dir, name, "installation")); err != nil {
			t.Fatal(err)
		}
	}
	refused("a new database beside content without an id")
	if err := os.Rename(kept, database); err != nil {
		t.Fatal(err)
	}
	for _, path := range content {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	mustStart(t, in).end(t)
}
