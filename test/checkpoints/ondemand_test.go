package checkpoints

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// heap is a program with memory of which each page tells its number, and a word
// that changes; it says what of the memory is not as it should be.
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

// python runs code in the sandbox's interpreter and returns what it has printed.
func python(t testing.TB, d *covetest.Daemon, id, code string) string {
	t.Helper()
	r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: code, TimeoutMS: 300_000}, nil)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	if r.Error != nil {
		t.Fatalf("%s: %+v", id, r.Error)
	}
	return strings.TrimSpace(r.Stdout)
}

// needPatched skips a test unless the program that is tested has the patched gVisor.
func needPatched(t *testing.T) {
	t.Helper()
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "patched for forks") {
		t.Skip("COVE_BIN has gVisor as it is")
	}
}

// Children of a fork load what they touch: each has all of the parent's memory, is
// charged for little of it before that, and what a child drops stays dropped.
// Forks of children that have loaded little have all of it too.
func TestForksTakeWhatTheyTouch(t *testing.T) {
	needPatched(t)
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		const mib = 200
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(heap, mib))
		sum := d.Sh(t, s.ID, "sha256sum < /dev/shm/canary")
		children := forksOf(t, d, s.ID, 2)
		for _, id := range children {
			stats, err := d.Client.Stats(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s has %d MiB", id, stats.MemoryBytes>>20)
		}
		grandchildren := forksOf(t, d, children[0], 2)
		python(t, d, children[1], "drop(1000, 3000)")
		if got := python(t, d, children[1], `print(wrong(0, 1000)[0], wrong(3000, pages)[0], any(memory[1000*PAGE:3000*PAGE]))`); got != "0 0 False" {
			t.Errorf("after dropping pages that were not loaded: %s", got)
		}
		for _, id := range append(grandchildren, s.ID, children[0]) {
			if got := python(t, d, id, "print(wrong())"); got != "(0, [])" {
				t.Errorf("%s has other memory: %s", id, got)
			}
			d.Shows(t, id, "sha256sum < /dev/shm/canary", strings.TrimSpace(sum))
		}
	})
}

// forksOf makes children of a sandbox.
func forksOf(t testing.TB, d *covetest.Daemon, id string, n int) []string {
	t.Helper()
	list, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{Count: n})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, s := range list.Items {
		ids = append(ids, s.ID)
	}
	return ids
}
