package fleet_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// TestRooms checks how full nodes are said to be, and that the number of sandboxes follows all
// that happens to them.
func TestRooms(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.join("b")
	check := func(when string, stateOfA sandbox.NodeState, onA, onB int) {
		t.Helper()
		room := fleet.Room{Memory: 16 << 30, FreeMemory: 8 << 30, Disk: 32 << 30, FreeDisk: 8 << 30, State: sandbox.NodeReady}
		of := func(name string, state sandbox.NodeState, n int) fleet.Room {
			r := room
			r.Node, r.State, r.Sandboxes = name, state, n
			return r
		}
		if diff := cmp.Diff([]fleet.Room{of("a", stateOfA, onA), of("b", sandbox.NodeReady, onB)}, w.Rooms()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	for _, id := range []string{"one", "two", "three"} {
		w.create(id, at("a"))
	}
	w.create("four", at("b"))
	check("created", sandbox.NodeReady, 3, 1)
	if err := w.Destroy(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	check("destroyed", sandbox.NodeReady, 2, 1)
	if err := w.Destroy(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	check("destroyed again", sandbox.NodeReady, 2, 1)
	if _, err := w.Drain("a", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	check("drained", sandbox.NodeDraining, 2, 1)
	w.cut(a)
	check("away", sandbox.NodeUnreachable, 2, 1)
	w.attach(a)
	check("back", sandbox.NodeDraining, 2, 1)
}

// TestRoomsOfLostNode checks that a lost node runs nothing, before and after a restart.
func TestRoomsOfLostNode(t *testing.T) {
	w := newWorld(t, 50*time.Millisecond)
	a := w.join("a")
	w.create("one")
	w.create("two")
	a.conn.Close()
	w.until(func() bool { return w.state("a") == sandbox.NodeLost })
	if r := w.Rooms(); r[0].Sandboxes != 0 {
		t.Errorf("a lost node has %+v", r)
	}
	w.restart()
	if r := w.Rooms(); r[0].Sandboxes != 0 {
		t.Errorf("a lost node has %+v after a restart", r)
	}
	w.attach(a)
	if r := w.Rooms(); r[0].Sandboxes != 0 || r[0].State != sandbox.NodeReady {
		t.Errorf("the node is back with %+v", r)
	}
}

// TestLargest checks that the largest node is one that takes sandboxes.
func TestLargest(t *testing.T) {
	w := newWorld(t, time.Hour)
	want := func(when string, memory int64, vcpus int, disk int64) {
		t.Helper()
		if diff := cmp.Diff(sandbox.Resources{MemoryMiB: memory, VCPUs: vcpus, DiskMiB: disk}, w.Largest(false)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	want("no node", 0, 0, 0)
	for name, has := range map[string]sandbox.Resources{
		"small": {VCPUs: 8, MemoryMiB: 1 << 10, DiskMiB: 10}, "large": {VCPUs: 2, MemoryMiB: 4 << 10, DiskMiB: 20}, "faster": {VCPUs: 4, MemoryMiB: 4 << 10},
	} {
		w.joinWith(name, has)
	}
	want("three nodes", 4<<10, 4, 20)
	for _, name := range []string{"large", "faster"} {
		if _, err := w.Drain(name, &sandbox.DrainRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	want("two drained", 1<<10, 8, 10)
}

// TestSmallDisk checks that an instance goes where the disk is as large as its own may grow,
// and if there is none, where it is largest.
func TestSmallDisk(t *testing.T) {
	w := newWorld(t, time.Hour)
	for name, disk := range map[string]int64{"small": 1 << 10, "large": 8 << 10, "medium": 4 << 10} {
		w.joinWith(name, sandbox.Resources{MemoryMiB: 16 << 10, DiskMiB: disk})
	}
	for _, disk := range []int64{6 << 10, 64 << 10} {
		if got := w.Place(sandbox.Resources{VCPUs: 1, MemoryMiB: 64, DiskMiB: disk}); got != "large" {
			t.Errorf("an instance with %d MiB of disk goes to %q", disk, got)
		}
	}
	if got := w.Place(sandbox.Resources{VCPUs: 1, MemoryMiB: 32 << 10}); got != "" {
		t.Errorf("an instance with more memory than any node goes to %q", got)
	}
}

// TestLargestIsTheServer checks that a server that runs sandboxes itself counts before the
// first is placed.
func TestLargestIsTheServer(t *testing.T) {
	state := memory.NewState(t.TempDir())
	t.Cleanup(func() { state.Close() })
	w := newWorld(t, time.Hour)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := sandbox.Resources{VCPUs: 2, MemoryMiB: 512, DiskMiB: 99}
	w.cfg.Local = memory.NewKeeper(state)
	w.cfg.LocalReport = func() remote.Report { return remote.Report{Capacity: want} }
	w.open()
	if got := w.Largest(false); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
