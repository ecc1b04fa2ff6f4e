package e2e

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

// A restart of the machine: all processes are gone, directories are not, and
// what was written down is of another boot. The daemon says so.
func TestMachineRestarts(t *testing.T) {
	asEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		gone := d.Create(t, sandbox.CreateRequest{Name: "gone"})
		killed := d.Create(t, sandbox.CreateRequest{})
		if _, err := d.Client.Kill(t.Context(), killed.ID); err != nil {
			t.Fatal(err)
		}
		d.Kill()
		powerCut(t, d)
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
			endCell(t, pid)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err = d.Client.Get(t.Context(), again.ID)
		if err != nil || got.State != sandbox.StateFailed || strings.Contains(got.Reason, "restarted") || got.Reason == "" {
			t.Errorf("its cell was killed while the daemon was down: %+v, %v", got, err)
		}
		checkAgreement(t, d, map[string]bool{})
	})
}

// powerCut ends all cells of a daemon that is down, and makes its records those
// of an earlier boot.
func powerCut(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	const earlier = "00000000-0000-4000-8000-000000000000"
	for _, pid := range d.Cells() {
		endCell(t, pid)
	}
	files, err := filepath.Glob(filepath.Join(d.StateDir, "*", "cells", "*", "process"))
	if direct, _ := filepath.Glob(filepath.Join(d.StateDir, "cells", "*", "process")); len(direct) > 0 {
		files = append(files, direct...)
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("found no file about a cell's process: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(data))
		fields[len(fields)-1] = earlier
		if err := os.WriteFile(f, []byte(strings.Join(fields, " ")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	databases, err := filepath.Glob(filepath.Join(d.StateDir, "*.db"))
	if err != nil || len(databases) != 1 {
		t.Fatalf("databases: %v, %v", databases, err)
	}
	db, err := sql.Open("sqlite", "file:"+databases[0])
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "UPDATE sandboxes SET boot_id = ?", earlier); err != nil {
		t.Fatal(err)
	}
	// The files of the database belong to whoever runs the daemon.
	info, err := os.Stat(d.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Chown(databases[0]+suffix, int(owner.Uid), int(owner.Gid)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// endCell kills a cell and waits until it is gone.
func endCell(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return !slices.Contains(covetest.PIDs(), pid) }
	if !covetest.Eventually(5*time.Second, gone) {
		t.Fatalf("the cell %d does not end", pid)
	}
}
