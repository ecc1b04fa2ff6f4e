package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The daemon is in a memory cgroup with room for a few sandboxes that use all of their
// memory. One that does not fit is refused at once with the figures, the others work,
// and when one has ended there is room for another.
// In "make test", TestAdmissions and TestRoomToLoad of internal/engine/cells stand for it.
func TestSoakMemoryFull(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a cgroup of a size
	const groupMiB, sandboxMiB, usedMiB, pausedMiB = 1100, 512, 100, 250
	group := memoryGroup(t, groupMiB)
	d := covetest.Start(t, covetest.Options{})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, d.PID()), 0o600); err != nil {
		t.Fatal(err)
	}
	create := func(used int) (*sandbox.Sandbox, error) {
		s, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: sandboxMiB}})
		if err == nil {
			d.Sh(t, s.ID, fmt.Sprintf("head -c %dM /dev/zero > /dev/shm/used", used))
		}
		return s, err
	}
	refused := func(what string, began time.Time, err error) {
		t.Helper()
		t.Logf("%s: %v", what, err)
		covetest.WantCode(t, err, sandbox.CodeQuotaExceeded)
		for _, part := range []string{fmt.Sprintf("of its %d MiB left", groupMiB), "kill or pause sandboxes"} {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s does not say %q: %v", what, part, err)
			}
		}
		if took := time.Since(began); took > covetest.DetectionLimit {
			t.Errorf("%s is refused after %s", what, took)
		}
	}
	paused, err := create(pausedMiB)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	var all []*sandbox.Sandbox
	for range groupMiB/usedMiB + 1 {
		began := time.Now()
		s, err := create(usedMiB)
		if err != nil {
			refused("a create", began, err)
			break
		}
		all = append(all, s)
	}
	if len(all) < 2 || len(all) > (groupMiB-128)/usedMiB {
		t.Fatalf("%d sandboxes were made in %d MiB", len(all), groupMiB)
	}
	t.Logf("%d sandboxes with %d MiB in use each in %d MiB", len(all), usedMiB, groupMiB)
	began := time.Now()
	_, err = d.Client.Fork(t.Context(), all[0].ID, sandbox.ForkRequest{Count: 3})
	refused("a fork", began, err)
	began = time.Now()
	_, err = d.Client.Resume(t.Context(), paused.ID, sandbox.ResumeRequest{})
	refused("a resume", began, err)
	for _, s := range all {
		d.Shows(t, s.ID, "echo it lives", "it lives")
	}
	// Those that end make room.
	for _, s := range all[1:] {
		if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Client.Resume(t.Context(), paused.ID, sandbox.ResumeRequest{}); err != nil {
		t.Fatalf("a resume, with room: %v", err)
	}
	d.Shows(t, paused.ID, "stat -c %s /dev/shm/used", fmt.Sprint(pausedMiB<<20))
}

// memoryGroup makes a cgroup with this much memory, and removes it after the processes
// that the test starts later have ended.
func memoryGroup(t *testing.T, mib int64) (dir string) {
	t.Helper()
	top, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(top); err != nil {
		top, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir, err := os.MkdirTemp(top, "cove-test-")
	needs.NoError(t, err)
	t.Cleanup(func() {
		gone := func() bool {
			_ = os.Remove(filepath.Join(dir, "cove-daemon"))
			_ = os.Remove(filepath.Join(dir, "cove"))
			return os.Remove(dir) == nil
		}
		if !covetest.Eventually(covetest.DetectionLimit, gone) {
			t.Errorf("the cgroup %s cannot be removed", dir)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, limit), fmt.Append(nil, mib<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
