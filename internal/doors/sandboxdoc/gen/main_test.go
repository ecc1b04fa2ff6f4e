package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFilesAreCurrent(t *testing.T) {
	dir := t.TempDir()
	if err := run("../../../../sandbox", filepath.Join(dir, "fields.json"), filepath.Join(dir, "values.json")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fields.json", "values.json"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is not current; run: go generate ./internal/doors/sandboxdoc", name)
		}
	}
}
