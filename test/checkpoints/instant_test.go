package checkpoints

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// counters is a program of four threads. Each thread goes through the pages of its
// quarter of a heap for ever, and increments the number in each page. If a page is from
// another instant than the thread's own variables, the thread notices when it comes to
// that page.
const counters = `
import mmap, threading, struct
PAGE, MIB, THREADS = 4096, %d, 4
heap = mmap.mmap(-1, MIB << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages = len(heap) // PAGE // THREADS
passes, wrong = [0] * THREADS, []
def count(t):
    n = 0
    while True:
        n += 1
        for i in range(t * pages, (t + 1) * pages):
            had = struct.unpack_from("<Q", heap, i * PAGE)[0]
            if had != n - 1:
                wrong.append((t, i, had, n - 1))
                return
            struct.pack_into("<Q", heap, i * PAGE, n)
        passes[t] = n
for t in range(THREADS):
    threading.Thread(target=count, args=(t,), daemon=True).start()
`

// python runs code in the sandbox's interpreter and returns what it has printed.
func python(t testing.TB, d *covetest.Daemon, id, code string) string {
	t.Helper()
	r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: code, TimeoutMS: 300_000}, nil)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	if r.Error != nil || r.ExitCode != 0 {
		t.Fatalf("%s: %+v, %+v", id, r, r.Error)
	}
	return strings.TrimSpace(r.Stdout)
}

// progress returns how many passes each thread has made, or ends the test if one
// has found a page of another instant.
func progress(t testing.TB, d *covetest.Daemon, id string) []int {
	t.Helper()
	out := python(t, d, id, `print(*passes); print(wrong)`)
	line, wrong, _ := strings.Cut(out, "\n")
	if wrong != "[]" {
		t.Fatalf("%s has pages of another instant (thread, page, found, wanted): %s", id, wrong)
	}
	var all []int
	for f := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// goesOn checks that each thread has gone over its whole heap since.
func goesOn(t testing.TB, d *covetest.Daemon, id string) {
	t.Helper()
	first := progress(t, d, id)
	covetest.Eventually(covetest.DetectionLimit*4, func() bool {
		for i, n := range progress(t, d, id) {
			if n < first[i]+2 {
				return false
			}
		}
		return true
	})
	for i, n := range progress(t, d, id) {
		if n < first[i]+2 {
			t.Errorf("%s: thread %d has made %d passes, and %d before", id, i, n, first[i])
		}
	}
}

// Each child of a fork has all of the memory as of one instant, while four threads
// write to all of it without end; and neither parent nor children see what
// another writes. In "make test-all", TestMoreGoesOnWhileWritten stands for it.
func TestSoakForksAreOfOneInstant(t *testing.T) {
	const rounds, mib = 50, 64
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 1024, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(counters, mib))
		for round := range rounds {
			children := forksOf(t, d, s.ID, 2)
			// The next is forked while the first still loads.
			children = append(children, forksOf(t, d, children[0], 1)...)
			for _, id := range append(children, s.ID) {
				goesOn(t, d, id)
			}
			if t.Failed() {
				t.Fatalf("in round %d", round)
			}
			for _, id := range children {
				if _, err := d.Client.Kill(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
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
