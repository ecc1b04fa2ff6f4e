package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A command starts a daemon on demand. "cove serve" takes over from it, and the
// sandbox that was made meanwhile lives on.
func TestServeTakesOverFromDaemonOnDemand(t *testing.T) {
	needs.GVisor(t)
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cove-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	early := &covetest.Daemon{Binary: binary, StateDir: dir}
	out, err := early.Command(t.Context(), "create", "--name", "early").CombinedOutput()
	if err != nil {
		t.Fatalf("create: %v\n%s", err, out)
	}
	d := covetest.Start(t, covetest.Options{StateDir: dir})
	got, err := d.Client.Get(t.Context(), "early")
	if err != nil || got.State != sandbox.StateRunning {
		t.Fatalf("get: %v, %v; want it running", got, err)
	}
	if said := d.Sh(t, "early", "echo here"); said != "here\n" {
		t.Errorf("it says %q", said)
	}
	// A second daemon says which process holds the state directory.
	out, err = d.Command(t.Context(), "serve", "--state-dir", dir, "--listen", "off").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another daemon") {
		t.Errorf("a second daemon: %v\n%s", err, out)
	}
}
