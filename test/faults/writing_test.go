package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// realDisk makes a directory for a daemon's state in which checkpoints are on a separate ext4:
// on a file system in memory, a sandbox does not continue before its checkpoint is written.
func realDisk(t *testing.T, mib int) (dir string) {
	t.Helper()
	needs.Command(t, "mkfs.ext4", "mount", "umount")
	dir, err := os.MkdirTemp("", "cove-test-")
	if err != nil {
		t.Fatal(err)
	}
	at, image := filepath.Join(dir, "engine/checkpoints"), filepath.Join(dir, "image")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	t.Cleanup(func() {
		run("umount", "--lazy", at)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(int64(mib) << 20)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	run("mkfs.ext4", "-q", "-F", "-m", "0", image)
	run("mount", "-o", "loop", image, at)
	return dir
}

// The disk has no room for the memory that a checkpoint writes after its sandbox continues: a
// fork and a snapshot say so, nothing is left of them, and the sandbox continues. With room
// they work again.
func TestDiskFullWhileWritten(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	covetest.Patched(t)
	dir := realDisk(t, 700)
	d := covetest.Start(t, covetest.Options{StateDir: dir})
	checkpoints := filepath.Join(dir, "engine/checkpoints")
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024, VCPUs: 2}})
	const mib, file = 150, "/workspace/memory.py"
	d.Sh(t, s.ID, fmt.Sprintf(`cat > %s <<'END'
import hashlib, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
memory = bytearray(os.urandom(%d << 20))
print(hashlib.sha256(memory).hexdigest(), flush=True)
open("/workspace/ready", "w").close()
while True:
    signal.sigwait([signal.SIGUSR1])
    open("/workspace/sum", "w").write(hashlib.sha256(memory).hexdigest())
END
nohup python3 %[1]s > /workspace/first 2>&1 &
while [ ! -e /workspace/ready ]; do sleep 0.1; done`, file, mib))
	same := func(id string) {
		t.Helper()
		d.Shows(t, id, "rm -f /workspace/sum; pkill -USR1 -f '[m]emory.py'; while [ ! -s /workspace/sum ]; do sleep 0.1; done; [ $(cat /workspace/first) = $(cat /workspace/sum) ] && echo same", "same")
	}
	before, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, checkpoints, 40<<20)
	_, err = d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
	refuses(t, d, s.ID, "a fork", err, sandbox.CodeUnavailable, "disk is full")
	_, err = d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{})
	refuses(t, d, s.ID, "a snapshot", err, sandbox.CodeUnavailable, "disk is full")
	same(s.ID)
	fill(t, checkpoints, -1)
	if after, err := os.ReadDir(checkpoints); err != nil || len(after) > len(before) {
		t.Errorf("%d are left of checkpoints, and there were %d: %v", len(after), len(before), err)
	}
	list, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
	if err != nil {
		t.Fatalf("with room: %v", err)
	}
	same(list.Items[0].ID)
	same(s.ID)
}
