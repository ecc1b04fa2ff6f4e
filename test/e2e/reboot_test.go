package e2e

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// A restart of the machine: all processes are gone, directories are not, and the
// recorded boot id is another. The daemon says so.
func TestMachineRestarts(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		gone := d.Create(t, sandbox.CreateRequest{Name: "gone"})
		killed := d.Create(t, sandbox.CreateRequest{})
		if _, err := d.Client.Kill(t.Context(), killed.ID); err != nil {
			t.Fatal(err)
		}
		d.Kill()
		d.PowerCut(t)
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := d.Client.Get(t.Context(), gone.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != sandbox.StateFailed || !strings.Contains(got.Reason, "the machine restarted") {
			t.Errorf("after a restart of the machine: %s, %q; want failed, the machine restarted", got.State, got.Reason)
		}
		if got, err := d.Client.Get(t.Context(), killed.ID); err != nil || got.State != sandbox.StateKilled {
			t.Errorf("the sandbox killed before: %v, %v", got, err)
		}
		d.NoTraces(t, gone.ID)
		// Its name is free.
		again := d.Create(t, sandbox.CreateRequest{Name: "gone"})
		if out := d.Sh(t, again.ID, "echo back"); out != "back\n" {
			t.Errorf("a new sandbox says %q", out)
		}
		// Without a restart of the machine the reason is another.
		d.Kill()
		for _, pid := range d.Cells() {
			covetest.EndCell(t, pid)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err = d.Client.Get(t.Context(), again.ID)
		if err != nil || got.State != sandbox.StateFailed || strings.Contains(got.Reason, "restarted") || got.Reason == "" {
			t.Errorf("its cell was killed while the daemon was down: %+v, %v", got, err)
		}
		d.CheckConsistent(t, map[string]bool{})
	})
}
