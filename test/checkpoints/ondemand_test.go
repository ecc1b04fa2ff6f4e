package checkpoints

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// heap is a program with memory in which each page has its number and a word that
// changes. It prints which pages are wrong.
const heap = `
import ctypes, mmap, os
PAGE, MIB = 4096, %d
memory = mmap.mmap(-1, MIB << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages = len(memory) // PAGE
word = 0
def fill(n):
    global word
    word = n
    for i in range(pages):
        memory[i*PAGE:i*PAGE+16] = (i*2654435761 + 1).to_bytes(8, "little") + n.to_bytes(8, "little")
def wrong(first=0, end=pages):
    bad = [i for i in range(first, end) if memory[i*PAGE:i*PAGE+16] != (i*2654435761 + 1).to_bytes(8, "little") + word.to_bytes(8, "little")]
    return len(bad), bad[:5]
def drop(first, end):
    libc = ctypes.CDLL(None, use_errno=True)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.madvise(ctypes.c_void_p(at + first*PAGE), ctypes.c_size_t((end-first)*PAGE), mmap.MADV_DONTNEED) == 0
fill(7)
open("/dev/shm/canary", "wb").write(os.urandom(1 << 20))
`

// takenMiB returns the memory of a sandbox according to `cove stats`.
func takenMiB(t testing.TB, d *covetest.Daemon, id string) int64 {
	t.Helper()
	stats, err := d.Client.Stats(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return stats.PrivateBytes >> 20
}

// whole checks that a sandbox has all of the parent's memory.
func whole(t testing.TB, d *covetest.Daemon, id string) {
	t.Helper()
	if got := python(t, d, id, "print(wrong())"); got != "(0, [])" {
		t.Errorf("%s has other memory: %s", id, got)
	}
}

// must ends the test if a call of a verb fails.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Children of a fork load the pages that they touch: each has all of the parent's
// memory, takes little until then, and memory that a child frees stays free. Forks of
// children that have loaded little have all of it too. Stats show what a child really
// takes.
func TestForksTakeWhatTheyTouch(t *testing.T) {
	covetest.Patched(t)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		const mib = 200
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(heap, mib))
		sum := d.Sh(t, s.ID, "sha256sum < /dev/shm/canary")
		children := forksOf(t, d, s.ID, 2)
		for _, id := range children {
			if n := takenMiB(t, d, id); n > mib/2 {
				t.Errorf("%s has taken %d MiB before it has touched any", id, n)
			}
		}
		grandchildren := forksOf(t, d, children[0], 2)
		python(t, d, children[1], "drop(1000, 3000)")
		if got := python(t, d, children[1], `print(wrong(0, 1000)[0], wrong(3000, pages)[0], any(memory[1000*PAGE:3000*PAGE]))`); got != "0 0 False" {
			t.Errorf("after dropping pages that were not loaded: %s", got)
		}
		for _, id := range append(grandchildren, s.ID, children[0]) {
			whole(t, d, id)
			d.Shows(t, id, "sha256sum < /dev/shm/canary", strings.TrimSpace(sum))
			if n := takenMiB(t, d, id); n < mib {
				t.Errorf("%s has touched %d MiB and is said to have %d", id, mib, n)
			}
		}
	})
}

// Eight children of a sandbox with a large heap take the tenth that each touches.
// In "make test", TestForksTakeWhatTheyTouch stands for it.
func TestSoakManyChildrenTakeATenth(t *testing.T) {
	covetest.Patched(t)
	const mib = int64(2000)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 2*mib + 512, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(heap, mib))
		var all int64
		for i, id := range forksOf(t, d, s.ID, 8) {
			if got := python(t, d, id, fmt.Sprintf("print(wrong(%d*pages//10, %d*pages//10))", i, i+1)); got != "(0, [])" {
				t.Errorf("child %d has other memory: %s", i, got)
			}
			all += takenMiB(t, d, id)
		}
		t.Logf("8 children of a sandbox with %d MiB take %d MiB", mib, all)
		if all > 8*(70+mib/5) {
			t.Errorf("they have taken more than they touched")
		}
	})
}

// A child that has loaded little keeps all of its memory and files through each verb of
// time, whatever happens to its parent and the daemon.
// In "make test-all", TestMoreSurvivesCopies, which forks a fork that loads, stands for it.
func TestSoakVerbsWhileLoading(t *testing.T) {
	covetest.Patched(t)
	const mib = 1500
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: int64(2*mib) + 512, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(heap, mib))
		sum := strings.TrimSpace(d.Sh(t, s.ID, "head -c 20M /dev/urandom > /workspace/canary && sha256sum < /workspace/canary"))
		kids := forksOf(t, d, s.ID, 6)
		all := func(id string) {
			t.Helper()
			whole(t, d, id)
			d.Shows(t, id, "sha256sum < /workspace/canary", sum)
		}
		// A child's gVisor is killed while the child loads: its siblings continue.
		if pid, ok := covetest.ProcessOf(kids[5], "runsc-sandbox"); !ok {
			t.Error("the sixth child has no gVisor")
		} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		must(d.Client.Kill(t.Context(), s.ID))(t)
		must(d.Client.Pause(t.Context(), kids[0]))(t)
		must(d.Client.Resume(t.Context(), kids[0], sandbox.ResumeRequest{}))(t)
		all(kids[0])
		snapshot := must(d.Client.CreateSnapshot(t.Context(), kids[1], sandbox.CreateSnapshotRequest{}))(t)
		python(t, d, kids[1], "fill(8)")
		d.Sh(t, kids[1], "rm /workspace/canary")
		must(d.Client.RestoreSnapshot(t.Context(), kids[1], sandbox.RestoreRequest{Snapshot: snapshot.ID}))(t)
		all(kids[1])
		grandchildren := forksOf(t, d, kids[2], 2)
		must(d.Client.Kill(t.Context(), kids[2]))(t)
		must(d.Client.Merge(t.Context(), kids[3], sandbox.MergeRequest{Winner: forksOf(t, d, kids[3], 2)[1]}))(t)
		restart(t, d, func() error { d.Kill(); return nil })
		for _, id := range append(grandchildren, kids[3], kids[4]) {
			all(id)
		}
	})
}
