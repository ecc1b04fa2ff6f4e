// Package escape attacks real sandboxes, with daemons of root and of an ordinary user.
// Each test describes the attack first. An escape that is found becomes a test here
// before it is fixed.
package escape

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// attacker builds the program that attacks from inside.
var attacker = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "cove-attacker-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "attacker")
	cmd := exec.Command("go", "build", "-o", path, "./attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the attacker: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// arm makes a sandbox with the attacker in it, and returns its id.
func arm(t *testing.T, d *covetest.Daemon) string {
	t.Helper()
	program, err := attacker()
	if err != nil {
		t.Fatal(err)
	}
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 512}})
	req := sandbox.WriteFileRequest{Path: "/tmp/attacker", Mode: "0755"}
	if _, err := d.Client.WriteFile(t.Context(), s.ID, req, strings.NewReader(string(program))); err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// attack runs the attacker as a user of the sandbox and returns its output: the result
// of each attempt, by name.
func attack(t *testing.T, d *covetest.Daemon, id, user string, args ...string) map[string]string {
	t.Helper()
	out := attackText(t, d, id, user, args...)
	results := map[string]string{}
	for line := range strings.Lines(out) {
		name, how, _ := strings.Cut(strings.TrimSpace(line), ": ")
		results[name] = how
	}
	return results
}

func attackText(t *testing.T, d *covetest.Daemon, id, user string, args ...string) string {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Command: append([]string{"/tmp/attacker"}, args...), User: user})
	if err != nil || res.Job.ExitCode != 0 {
		t.Fatalf("attack %v as %s: %v, %+v, %s", args, user, err, res.Job, res.Stderr)
	}
	return res.Stdout
}

// users are the users that attack from inside.
var users = []string{"user", "root"}
