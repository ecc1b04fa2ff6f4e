package computer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
)

// session returns the commands of the first console block of docs/computers.md, and the
// output of the last of them. The tests use their own template instead of the one that
// needs a download.
func session(t *testing.T) (commands []string, last string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/computers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```console\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case !isCommand:
			last = line
		case strings.HasPrefix(command, "cove template build desktop"):
		default:
			commands = append(commands, strings.Replace(command, "computer create", "computer create -T pc", 1))
		}
	}
	return commands, last
}

// followDocs types what docs/computers.md shows, without a pause between the commands. The
// last one reads what a program has copied, in its own time.
func followDocs(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	commands, want := session(t)
	output := func(line string) string {
		cmd, as := exec.CommandContext(t.Context(), "sh", "-c", line), d.Command(t.Context())
		cmd.Dir, cmd.SysProcAttr = d.StateDir, as.SysProcAttr
		cmd.Env = append(as.Env, "PATH="+filepath.Dir(d.Binary)+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v, %s", line, err, out)
		}
		return string(out)
	}
	last := len(commands) - 1
	for _, line := range commands[:last] {
		output(line)
	}
	var got string
	copied := func() bool { got = output(commands[last]); return got == want }
	if !covetest.Eventually(patience, copied) || want == "" {
		t.Errorf("the last command printed %q, docs/computers.md says %q", got, want)
	}
}
