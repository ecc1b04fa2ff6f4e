package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestConsoleForms parses each command line that the console shows as a shell does, and
// checks it against the existing commands: their words, flags and arguments. The file is
// kept current by the console's own tests.
func TestConsoleForms(t *testing.T) {
	data, err := os.ReadFile("../../../console/src/lib/testdata/forms.json")
	if err != nil {
		t.Fatal(err)
	}
	var forms []struct{ Verb, CLI string }
	if err := json.Unmarshal(data, &forms); err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, f := range forms {
		if f.CLI == "" {
			continue
		}
		read++
		root := (&app{Program: Program{Version: "dev"}}).command()
		cmd, rest, err := root.Find(shellWords(t, f.CLI))
		if err != nil || cmd == root {
			t.Errorf("%s: %s: there is no such command: %v", f.Verb, f.CLI, err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: %s: %v", f.Verb, f.CLI, err)
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("%s: %s: %v", f.Verb, f.CLI, err)
		}
	}
	if read < 50 {
		t.Errorf("the console writes %d command lines, which is not all of them", read)
	}
}

// shellWords returns the arguments with which a shell runs cove in a line.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `cove() { printf '%s\0' "$@"; }; `+line)
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(cmd.Dir+"/FILE", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
