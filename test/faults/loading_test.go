package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// loading makes children of a sandbox that has mib in memory, in a file of /dev/shm, and as
// much in a written file. They have loaded neither. It returns them, and a check that a sandbox
// has both.
func loading(t *testing.T, d *covetest.Daemon, mib int) (children []sandbox.Sandbox, whole func(id string)) {
	t.Helper()
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 512, VCPUs: 2}})
	const line = "sha256sum < /dev/shm/canary; sha256sum < /workspace/canary"
	sums := d.Sh(t, s.ID, fmt.Sprintf("for f in /dev/shm /workspace; do head -c %dM /dev/urandom > $f/canary; done; %s", mib, line))
	list, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	return list.Items, func(id string) {
		t.Helper()
		d.Shows(t, id, line, strings.TrimSpace(sums))
	}
}

// refuses checks that a verb says clearly why it cannot save a sandbox, and that the sandbox
// continues.
func refuses(t *testing.T, d *covetest.Daemon, id, verb string, err error, code sandbox.Code, why string) {
	t.Helper()
	t.Logf("%s: %v", verb, err)
	if covetest.WantCode(t, err, code); err != nil && !strings.Contains(err.Error(), why) {
		t.Errorf("%s does not say %q: %v", verb, why, err)
	}
	d.Shows(t, id, "echo it lives", "it lives")
}

// The disk is full while children of a fork have not loaded everything: there is room for what
// they load, a pause fails and says so, and all of them continue.
// In "make test-all", TestMoreDiskFull stands for it.
func TestSoakDiskFullWhileLoading(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	covetest.Patched(t)
	dir := smallDisk(t, "", 768)
	d := covetest.Start(t, covetest.Options{StateDir: dir})
	children, whole := loading(t, d, 60)
	fill(t, dir, 0)
	_, err := d.Client.Pause(t.Context(), children[0].ID)
	refuses(t, d, children[0].ID, "a pause", err, sandbox.CodeUnavailable, "disk is full")
	for _, c := range children {
		whole(c.ID)
	}
	fill(t, dir, -1)
	if _, err := d.Client.Pause(t.Context(), children[0].ID); err != nil {
		t.Fatalf("with room: %v", err)
	}
	whole(children[0].ID) // which resumes it
}

// A part of a written file that children have not loaded cannot be read: saving a child fails
// and says so, the children continue, and have all of the file once it can be read. In "make
// test", TestDamagedPages of package cells stands for it.
func TestMoreUnreadableWhileLoading(t *testing.T) {
	covetest.Patched(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		children, whole := loading(t, d, 60)
		found, err := filepath.Glob(filepath.Join(d.StateDir, "engine/checkpoints/*/pages.img"))
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string][]byte{}
		for _, path := range found {
			if info, err := os.Stat(path); err != nil || info.Size() < 100<<20 {
				continue // of the template's golden checkpoint
			}
			if kept[path], err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			// The pages of written files are the last.
			if err := os.Truncate(path, int64(len(kept[path])-40<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if len(kept) != 1 {
			t.Fatalf("%d of %q have the parent's pages", len(kept), found)
		}
		id := children[0].ID
		_, err = d.Client.CreateSnapshot(t.Context(), id, sandbox.CreateSnapshotRequest{})
		refuses(t, d, id, "a snapshot", err, sandbox.CodeUnavailable, "cannot be loaded")
		_, err = d.Client.Pause(t.Context(), id)
		refuses(t, d, id, "a pause", err, sandbox.CodeUnavailable, "cannot be loaded")
		d.Shows(t, id, "sha256sum < /workspace/canary 2>&1; true", "sha256sum: -: Input/output error")
		for path, data := range kept {
			if err := os.WriteFile(path, data, 0o600); err != nil { // into the same file
				t.Fatal(err)
			}
		}
		if _, err := d.Client.Pause(t.Context(), id); err != nil {
			t.Errorf("with all of it: %v", err)
		}
		for _, c := range children {
			whole(c.ID)
		}
	})
}

// There is enough memory for what children of a fork touch, and for one of them to load
// everything: each can be paused in turn, further ones are refused, and none is ended. In "make
// test", TestRoomToLoad of internal/engine/cells stands for it.
func TestSoakMemoryFullWhileLoading(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a cgroup of a size
	covetest.Patched(t)
	group := memoryGroup(t, 1500)
	d := covetest.Start(t, covetest.Options{})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, d.PID()), 0o600); err != nil {
		t.Fatal(err)
	}
	children, whole := loading(t, d, 240)
	// Other sandboxes grow: they take the memory that is not reserved, and then a part of the
	// reserved.
	var others []string
	for {
		s, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024}})
		if err != nil {
			covetest.WantCode(t, err, sandbox.CodeQuotaExceeded)
			break
		}
		others = append(others, s.ID)
	}
	if len(others) == 0 {
		t.Fatal("there is no room for another sandbox")
	}
	id := children[0].ID
	// Standbys that wait are given up before a call is refused.
	for i := 0; room(t, group) >= 220; i++ {
		d.Sh(t, others[i%len(others)], fmt.Sprintf("head -c 30M /dev/zero > /dev/shm/grown%d", i))
	}
	_, err := d.Client.Pause(t.Context(), id)
	refuses(t, d, id, "a pause", err, sandbox.CodeQuotaExceeded, "has yet to load")
	for _, o := range others {
		if _, err := d.Client.Kill(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range children {
		if _, err := d.Client.Pause(t.Context(), c.ID); err != nil {
			t.Errorf("with room: %v", err)
		}
	}
	for _, c := range children {
		whole(c.ID)
	}
}

// room is how much a memory cgroup has left, in MiB, with the page cache that can be freed.
func room(t *testing.T, group string) int64 {
	t.Helper()
	files := [3]string{"memory.max", "memory.current", "inactive_file"}
	if _, err := os.Stat(filepath.Join(group, files[0])); err != nil {
		files = [3]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	}
	var n [2]int64
	for i := range n {
		data, err := os.ReadFile(filepath.Join(group, files[i]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(data), &n[i]); err != nil {
			t.Fatal(err)
		}
	}
	stat, err := os.ReadFile(filepath.Join(group, "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	var cache int64
	for line := range strings.Lines(string(stat)) {
		if value, ok := strings.CutPrefix(line, files[2]+" "); ok {
			_, _ = fmt.Sscan(value, &cache)
		}
	}
	return (n[0] - n[1] + cache) >> 20
}
