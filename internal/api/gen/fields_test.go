package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFieldTextsAreCurrent(t *testing.T) {
	fresh := filepath.Join(t.TempDir(), "fields.json")
	if err := writeFieldTexts(fresh, "../../../sandbox"); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../fields.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("fields.json is not current; run: go generate ./internal/api")
	}
}
