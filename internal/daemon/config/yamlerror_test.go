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
		"listn: x":                         "line 1: there is no setting listn here; check its name and indentation",
		"dev: true\nquotas:\n  vcpu: 3":    "line 3: there is no setting vcpu here",
		"quotas:\n  vcpus: many":           "line 2: many is given, and this needs to be a whole number",
		"idle_exit: soon":                  "line 1: soon is given, and this needs to be a duration such as 90s or 2h",
		"dev: perhaps":                     "line 1: perhaps is given, and this needs to be true or false",
		"listen: [a]":                      "line 1: a list is given, and this needs to be text",
		"allowed_hosts: mine":              "line 1: mine is given, and this needs to be a list",
		"log: debug":                       "line 1: debug is given, and this needs to be settings with names",
		"registries:\n  mirrors: [a]":      "line 2: a list is given, and this needs to be lists by name",
		"listn: x\nquotas:\n  vcpus: many": "listn here; check its name and indentation; line 3: many is given",
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
