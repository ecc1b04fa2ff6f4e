package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// realDisk makes a directory for a daemon's state, in which the given path is a separate ext4:
// on a file system in memory, a sandbox does not continue before its checkpoint is written.
func realDisk(t *testing.T, path string, mib int) (dir string) {
	t.Helper()
	needs.Command(t, "mkfs.ext4", "mount", "umount")
	all, err := os.MkdirTemp("", "cove-test-")
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(all, "state")
	at, image := filepath.Join(dir, path), filepath.Join(all, "image")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	t.Cleanup(func() {
		run("umount", "--lazy", at)
		if err := os.RemoveAll(all); err != nil {
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
// they work again. In "make test", TestDiskFull of package cells, and TestCopyRoom and
// TestCopyDisk of package cell, stand for it.
func TestMoreDiskFullWhileWritten(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	covetest.Patched(t)
	dir := realDisk(t, "engine/checkpoints", 700)
	// Nothing else writes to the disk.
	d := covetest.Start(t, covetest.Options{StateDir: dir, Args: []string{"--warm", "0"}})
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
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		after, err := os.ReadDir(checkpoints)
		return err == nil && len(after) <= len(before)
	}) {
		t.Error("something is left of checkpoints that were refused")
	}
	list, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
	if err != nil {
		t.Fatalf("with room: %v", err)
	}
	same(list.Items[0].ID)
	same(s.ID)
}

// changing is a program that without end overwrites a file of many MiB in place, and checks
// what it finds: "passes" is how often it has done so, "full" how often there was no disk
// space, and "wrong" what else was not as it should be.
const changing = `
import errno, os, threading, time
BLOCK, BLOCKS = 1 << 18, %d << 2
passes, full, wrong = 0, 0, []
def content(n, i): return (n << 32 | i).to_bytes(8, "little") * (BLOCK // 8)
file = os.open("/workspace/changing", os.O_RDWR | os.O_CREAT)
def write(data, at):
    global full
    while data:
        try:
            n = os.pwrite(file, data, at)
        except OSError as e:
            if e.errno != errno.ENOSPC: raise
            full += 1
            time.sleep(0.01)
        else:
            data, at = data[n:], at + n
for i in range(BLOCKS): write(content(0, i), i * BLOCK)
def change():
    global passes
    try:
        while True:
            for i in range(BLOCKS):
                if os.pread(file, BLOCK, i * BLOCK) != content(passes, i): raise ValueError(f"block {i} in pass {passes}")
                write(content(passes + 1, i), i * BLOCK)
            passes += 1
    except BaseException as e:
        wrong.append(repr(e))
threading.Thread(target=change, daemon=True).start()
`

// A sandbox overwrites a file without end, for which the disk need not have room, and is
// forked, with and without room to copy what it overwrites before it is saved, and while the
// disk becomes full. Whoever looks finds the file as it was last written, children as of one
// instant; nobody gets an error unless something else takes all of the room; a fork without
// room for a checkpoint says so, and no second version of the file is left. In "make test",
// TestDiskFull of package cells, and TestCopyRoom and TestCopyDisk of package cell, stand for
// it.
func TestMoreDiskFullWhileFilesWritten(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	covetest.Patched(t)
	const mib = 150
	dir := realDisk(t, "", 2400)
	// Nothing else writes to the disk.
	d := covetest.Start(t, covetest.Options{StateDir: dir, Args: []string{"--warm", "0"}})
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 512, VCPUs: 2}})
	run := func(id, code string) string {
		t.Helper()
		r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: code, TimeoutMS: 120_000}, nil)
		if err != nil || r.Error != nil {
			t.Fatalf("%s: %v, %+v", id, err, r)
		}
		return strings.TrimSpace(r.Stdout)
	}
	run(s.ID, fmt.Sprintf(changing, mib))
	goesOn := func(what, id string) {
		t.Helper()
		run(id, "before = passes")
		goes := covetest.Eventually(4*covetest.DetectionLimit, func() bool { return run(id, "print(passes > before + 1)") == "True" })
		if wrong := run(id, "print(*wrong)"); !goes || wrong != "" {
			t.Errorf("%s: %s goes on: %v, and has found %s", what, id, goes, wrong)
		}
	}
	goesOn("alone", s.ID)
	own := held(t, dir)
	for _, c := range []struct {
		what string
		left int // MiB that are free
		then func(t *testing.T)
	}{
		{"without room for a checkpoint", 110, nil},
		{"with room for a checkpoint", 450, nil},
		{"with room for some copies", 620, nil},
		{"while the disk becomes full", 1000, func(t *testing.T) {
			occupy(t, dir, 0)
			if !covetest.Eventually(4*covetest.DetectionLimit, func() bool {
				left, err := filepath.Glob(filepath.Join(dir, "engine/checkpoints/*/pages.sock"))
				return err == nil && len(left) == 0
			}) {
				t.Error("the checkpoint is not written")
			}
			occupy(t, dir, 1000<<20)
		}},
		{"with room for all", 1000, nil},
	} {
		// The checkpoint of the fork before is removed after its child. The space of the files
		// of both is free when the last process that has them open has ended.
		if !covetest.Eventually(covetest.DetectionLimit, func() bool {
			left, err := filepath.Glob(filepath.Join(dir, "engine/checkpoints/ckp-*"))
			return err == nil && len(left) == 0 && held(t, dir) <= own
		}) {
			t.Error("a checkpoint or a file that nobody needs is kept")
		}
		occupy(t, dir, c.left<<20)
		list, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
		if c.left < mib {
			refuses(t, d, s.ID, "a fork "+c.what, err, sandbox.CodeUnavailable, "disk is full")
		} else if err != nil {
			t.Errorf("a fork %s: %v", c.what, err)
		}
		if c.then != nil {
			c.then(t)
		}
		goesOn(c.what, s.ID)
		if list != nil {
			goesOn(c.what, list.Items[0].ID)
			if _, err := d.Client.Kill(t.Context(), list.Items[0].ID); err != nil {
				t.Fatal(err)
			}
		}
		full := run(s.ID, "print(full); full = 0")
		t.Logf("%s: it had no disk space %s times", c.what, full)
		if full != "0" && c.then == nil {
			t.Errorf("%s: it had no disk space, although the disk has", c.what)
		}
		disk := int64(0)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool {
			st, err := d.Client.Stats(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			disk = st.DiskBytes
			return disk < (mib+30)<<20
		}) {
			t.Errorf("%s: it has written a file of %d MiB, which takes %d", c.what, mib, disk>>20)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "engine/cells", s.ID, "cell.log"))
	if err != nil {
		t.Fatal(err)
	}
	some, whole := 0, 0
	for _, m := range writtenLater.FindAllSubmatch(log, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		// Pieces of less than 64 KiB are not worth it: there are a few where the program
		// has just written.
		if t.Logf("%d bytes of files were written later", n); n < (mib-1)<<20 {
			some++
		} else {
			whole++
		}
	}
	if some != 1 || whole != 2 {
		t.Errorf("it went on before a part of its file was written %d times, and before all was %d times", some, whole)
	}
}

// writtenLater is what a cell logs about written files that it has saved after its sandbox
// went on, if these were 10 MB or more.
var writtenLater = regexp.MustCompile(`msg="memory of a checkpoint is written".* files=(\d{8,}) `)

// held counts the files of a MiB or more of a file system that have no name any more, but
// that processes have open or map.
func held(t *testing.T, disk string) int {
	t.Helper()
	var of unix.Stat_t
	if err := unix.Stat(disk, &of); err != nil {
		t.Fatal(err)
	}
	inodes := map[uint64]bool{}
	for _, links := range []string{"/proc/[0-9]*/fd/*", "/proc/[0-9]*/map_files/*"} {
		all, err := filepath.Glob(links)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range all {
			var st unix.Stat_t // of what it leads to; it may be gone
			if unix.Stat(link, &st) == nil && st.Dev == of.Dev && st.Nlink == 0 && st.Blocks*512 >= 1<<20 {
				inodes[st.Ino] = true
			}
		}
	}
	return len(inodes)
}

// occupy leaves so many bytes free of an ext4, at once.
func occupy(t *testing.T, disk string, left int) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(disk, ".filler"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for step := int64(1) << 40; step >= 4096; {
		var st unix.Statfs_t
		info, err := f.Stat()
		if err := errors.Join(err, unix.Statfs(disk, &st)); err != nil {
			t.Fatal(err)
		}
		more := min(step, int64(st.Bavail)*st.Bsize-int64(left))
		if more <= 0 {
			if err := f.Truncate(max(0, info.Size()+more)); err != nil {
				t.Fatal(err)
			}
			return
		}
		err = unix.Fallocate(int(f.Fd()), 0, info.Size(), more)
		if errors.Is(err, unix.ENOSPC) { // what describes the blocks needs some, too
			step = more / 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
