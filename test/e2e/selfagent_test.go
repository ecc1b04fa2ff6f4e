package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// What go build or go install makes, without the agent that make build embeds,
// runs sandboxes too: the program is their agent itself. doctor says so. It links
// a program, and so is for "make soak"; TestSelf of internal/guest/agentbin stands for it.
func TestWithoutEmbeddedAgent(t *testing.T) {
	if !needs.Soak() {
		return
	}
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "internal/guest/agentbin/bin/agent"): ""}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	without, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "cove")
	if err := os.WriteFile(without, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-overlay", without, "-o", program, "github.com/cove-sh/cove/cmd/cove")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, msg)
	}
	d := covetest.Start(t, covetest.Options{Binary: program})
	s := d.Create(t, sandbox.CreateRequest{})
	d.Shows(t, s.ID, "echo hello from $(cat /proc/1/cmdline | tr '\\0' ' ' | cut -d' ' -f1)", "hello from /.cove/agent")
	if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	d.Shows(t, s.ID, "echo resumed", "resumed") // by the call
	out, err := d.Command(t.Context(), "doctor").CombinedOutput()
	if !strings.Contains(string(out), "built without the agent") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	with, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), with, "doctor").CombinedOutput(); strings.Contains(string(out), "built without the agent") {
		t.Errorf("doctor of a program with the agent: %v\n%s", err, out)
	}
}
