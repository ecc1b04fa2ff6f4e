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

// A program made by go build or go install, without the agent and the npm packages that
// make build embeds, runs sandboxes too: the program itself is their agent, and says
// what is missing. The test links a program; in "make test", TestSelf of
// internal/guest/agentbin, TestUnbuilt of console, TestViewWithoutViewer of preview and
// TestJavaScriptWithoutParser of kernel stand for it.
func TestSoakPlainBuild(t *testing.T) {
	needs.Command(t, "node")
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	absent := map[string]string{}
	for _, name := range []string{"guest/agentbin/bin/agent", "doors/console/dist/index.html", "doors/preview/view/novnc.js", "guest/agent/kernel/drivers/acorn/acorn.js"} {
		absent[filepath.Join(root, "internal", name)] = ""
	}
	overlay, err := json.Marshal(map[string]any{"Replace": absent})
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
	code, err := d.Client.RunCode(t.Context(), s.ID, sandbox.RunCodeRequest{Language: sandbox.JavaScript, Code: "await null"}, nil)
	if err != nil || code.Error == nil || !strings.Contains(code.Error.Message, "make build") {
		t.Errorf("code that needs the parser: %+v, %v", code, err)
	}
	missing := []string{"built without the agent", "without the console", "without the live view page", "without the JavaScript parser"}
	out, err := d.Command(t.Context(), "doctor").CombinedOutput()
	for _, part := range missing {
		if !strings.Contains(string(out), part) {
			t.Errorf("doctor says nothing of %q: %v\n%s", part, err, out)
		}
	}
	with, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err = exec.CommandContext(t.Context(), with, "doctor").CombinedOutput()
	for _, part := range missing {
		if strings.Contains(string(out), part) {
			t.Errorf("doctor of a program that has all says %q: %v\n%s", part, err, out)
		}
	}
}
