package cli

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var update = flag.Bool("update", false, "write docs/cli.md")

// TestReference keeps the command reference equal to the commands' own help.
func TestReference(t *testing.T) {
	const path = "../../../docs/cli.md"
	a := &app{Program: Program{Version: "dev"}}
	// Defaults must not show this machine.
	a.Env = func(string) string { return "" }
	root := a.command()
	root.DisableAutoGenTag = true
	var b bytes.Buffer
	b.WriteString("# Command reference\n\nMade from the commands' own help by `go test ./internal/doors/cli -run Reference -update`.\n\n")
	writeReference(t, &b, root)
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("docs/cli.md is not current, run with -update (-file +commands):\n%s", diff)
	}
}

func writeReference(t *testing.T, b *bytes.Buffer, cmd *cobra.Command) {
	t.Helper()
	if cmd.Hidden || cmd.Name() == "help" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
		return
	}
	// Links between pages are links within this one.
	if err := doc.GenMarkdownCustom(cmd, b, func(name string) string { return "#" + strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "_", "-") }); err != nil {
		t.Fatal(err)
	}
	for _, sub := range cmd.Commands() {
		writeReference(t, b, sub)
	}
}
