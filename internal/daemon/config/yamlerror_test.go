package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong with a configuration file is told with its line, and in its own
// words.
func TestErrorsOfTheFile(t *testing.T) {
	for file, want := range map[string]string{
		"listn: x":                         "line 1: unknown setting listn; check its name and indentation",
		"dev: true\nquotas:\n  vcpu: 3":    "line 3: unknown setting vcpu",
		"quotas:\n  vcpus: many":           "line 2: must be a whole number, not \"many\"",
		"idle_exit: soon":                  "line 1: must be a duration such as 90s or 2h, not \"soon\"",
		"dev: perhaps":                     "line 1: must be true or false, not \"perhaps\"",
		"listen: [a]":                      "line 1: must be text, not a list",
		"allowed_hosts: mine":              "line 1: must be a list, not \"mine\"",
		"log: debug":                       "line 1: must be settings with names, one per line, indented, not \"debug\"",
		"registries:\n  mirrors: [a]":      "line 2: must be lists by name, not a list",
		"listn: x\nquotas:\n  vcpus: many": "listn; check its name and indentation; line 3: must be a whole number",
		"listen: \"a":                      "found unexpected end of stream",
	} {
		path := filepath.Join(t.TempDir(), "cove.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Source{File: path, Env: func(string) string { return "" }})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "yaml") && !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "config.") || strings.Contains(err.Error(), "!!")) {
			t.Errorf("%q: %v", file, err)
		}
	}
}
