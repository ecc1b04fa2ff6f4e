package checkpoints

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

var writtenLater = regexp.MustCompile(`msg="memory of a checkpoint is written".* bytes=(\d+) .* halted=(true|false) error=<nil>`)

// frozenMiB is how much of a sandbox's memory was written to checkpoints while it went on.
func frozenMiB(t testing.TB, d *covetest.Daemon, id string) (mib int64) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", id, "cell.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range writtenLater.FindAllSubmatch(log, -1) {
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		mib += n >> 20
	}
	return mib
}

// A sandbox that constantly writes to all of its memory continues while most of the memory is
// not yet written for its children and snapshots. Each of these has the memory of one instant,
// and nobody sees what another writes. Forks of children are like forks of the parent. In "make
// test", TestFilesAreOfOneInstant stands for it.
func TestMoreGoesOnWhileWritten(t *testing.T) {
	covetest.Patched(t)
	mib := int64(64)
	if needs.Soak() {
		mib = 1500
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 2*mib + 512, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(counters, mib))
		goesOn(t, d, s.ID) // so that it has written to all of it
		children := forksOf(t, d, s.ID, 1)
		children = append(children, forksOf(t, d, children[0], 1)...)
		snapshot := must(d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{}))(t)
		children = append(children, forksOf(t, d, s.ID, 2)...)
		wentOn := func(id string) {
			// A fork returns before the cell says so.
			if !covetest.Eventually(covetest.DetectionLimit, func() bool { return frozenMiB(t, d, id) >= mib/2 }) {
				t.Errorf("%s has gone on before %d MiB were written, of %d", id, frozenMiB(t, d, id), mib)
			}
		}
		for i, id := range children {
			goesOn(t, d, id)
			if i == 0 {
				wentOn(id)
			}
			must(d.Client.Kill(t.Context(), id))(t) // it leaves the processors to the others
		}
		goesOn(t, d, s.ID)
		wentOn(s.ID)
		must(d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Snapshot: snapshot.ID}))(t)
		goesOn(t, d, s.ID)
	})
}

// A sandbox that is forked again before the memory of the last fork is written has children
// with the memory of their own instants each, and so has a snapshot that is taken meanwhile. In
// "make test", TestFilesAreOfOneInstant stands for it.
func TestMoreForkedWhileWritten(t *testing.T) {
	covetest.Patched(t)
	mib := int64(200)
	if needs.Soak() {
		mib = 1200
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 4*mib + 512, VCPUs: 2}})
		python(t, d, s.ID, fmt.Sprintf(counters, mib))
		goesOn(t, d, s.ID) // so that it has written to all of it
		var children []string
		for i := range 4 {
			if i == 2 {
				must(d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{Name: "meanwhile"}))(t)
			}
			child := forksOf(t, d, s.ID, 1)[0]
			t.Logf("forked while %q was written", unwritten(t, d))
			children = append(children, child)
		}
		for _, id := range children {
			goesOn(t, d, id)
			must(d.Client.Kill(t.Context(), id))(t)
		}
		goesOn(t, d, s.ID)
		must(d.Client.RestoreSnapshot(t.Context(), s.ID, sandbox.RestoreRequest{Snapshot: "meanwhile"}))(t)
		goesOn(t, d, s.ID)
	})
}

// A sandbox that uses more than half of its memory, and writes to it, is partly written before
// it continues: its copies of pages stay below its limit, and none of its programs is ended,
// even while another one takes and frees memory. It is the same for programs' own memory and
// for files in memory.
// In "make test-all", TestMoreGoesOnWhileWritten and gVisor's own TestFreeze... stand for it.
func TestSoakGoesOnBelowItsLimit(t *testing.T) {
	covetest.Patched(t)
	const limit, mib = 512, 300
	for _, kind := range []string{"MAP_PRIVATE", "MAP_SHARED"} {
		t.Run(kind, func(t *testing.T) {
			covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
				s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: limit, VCPUs: 2}})
				python(t, d, s.ID, fmt.Sprintf(strings.ReplaceAll(counters, "MAP_PRIVATE", kind), mib))
				goesOn(t, d, s.ID)
				job := must(d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Background: true, Shell: "while :; do head -c 80M /dev/zero > /dev/shm/more; rm /dev/shm/more; done"}, nil))(t)
				for range 3 {
					child := forksOf(t, d, s.ID, 1)[0]
					goesOn(t, d, s.ID)
					goesOn(t, d, child)
					must(d.Client.Kill(t.Context(), child))(t)
				}
				if j := must(d.Client.GetJob(t.Context(), s.ID, job.ID))(t); j.State != sandbox.JobRunning {
					t.Errorf("the other program has ended: %+v", j)
				}
				if n := frozenMiB(t, d, s.ID); n == 0 || n > 3*(limit-mib) {
					t.Errorf("it has gone on three times before %d MiB were written", n)
				}
			})
		})
	}
}

// sparse is a program with memory of which it uses every other block of pages.
const sparse = `
import mmap
BLOCK = 4096 * %d
memory = mmap.mmap(-1, 600 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def blocks(): return range(0, len(memory) - BLOCK, 2 * BLOCK)
def content(i): return i.to_bytes(8, "little") * (BLOCK // 8)
for i in blocks(): memory[i:i+BLOCK] = content(i + 1)
def wrong(): return sum(memory[i:i+BLOCK] != content(i + 1) or memory[i+BLOCK:i+2*BLOCK] != bytes(BLOCK) for i in blocks()), []
`

// A sandbox whose memory is in many parts continues after a fork, and reads and writes all of
// it, although the host bounds the mappings of a process. Blocks of one page are the most
// parts; "make soak" also has larger blocks. In "make test", TestBacklogHasFewParts of
// internal/cell/runsc stands for it.
func TestMoreForkOfSparseMemory(t *testing.T) {
	covetest.Patched(t)
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		sizes := []int{1}
		if needs.Soak() {
			sizes = append(sizes, 20)
		}
		for _, pages := range sizes {
			s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 2048, VCPUs: 2}})
			python(t, d, s.ID, fmt.Sprintf(sparse, pages))
			child := forksOf(t, d, s.ID, 1)[0]
			for _, id := range []string{s.ID, child} {
				whole(t, d, id)
				python(t, d, id, "for i in blocks(): memory[i:i+BLOCK] = content(i + 1)")
				whole(t, d, id)
				must(d.Client.Kill(t.Context(), id))(t)
			}
		}
	})
}

// unwritten returns the directory of a checkpoint whose memory is still being written, or
// "".
func unwritten(t testing.TB, d *covetest.Daemon) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.StateDir, "engine", "checkpoints", "ckp-*", "pages.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[0])
}

// heapMiB is how large the heap of a sandbox is that is to end while it is being written.
func heapMiB() int64 {
	if needs.Soak() {
		return 2500
	}
	return 600
}

// heapFile is a file of so many MiB beside a heap, and says what of both is not as it
// should be.
const heapFile = `
FILE, BLOCKS = "/workspace/heap", %d
def block(i): return (i + 1).to_bytes(8, "little") * (1 << 17)
with open(FILE, "wb") as f:
    for i in range(BLOCKS): f.write(block(i))
wrong_memory = wrong
def wrong():
    n, bad = wrong_memory()
    with open(FILE, "rb") as f:
        bad += [("block", i) for i in range(BLOCKS) if f.read(1 << 20) != block(i)][:5]
    return n, bad
`

// withHeap makes a sandbox with a heap of a half of mib, and a file of the other half; see
// [heap].
func withHeap(t testing.TB, d *covetest.Daemon, mib int64) string {
	t.Helper()
	s := d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 2*mib + 512, VCPUs: 2}})
	python(t, d, s.ID, fmt.Sprintf(heap, mib/2))
	python(t, d, s.ID, fmt.Sprintf(heapFile, mib/2))
	return s.ID
}

// Children have all of their parent's memory when the parent is killed right after the fork,
// when the daemon is killed, and when both are, while memory is still being written for them;
// so has a fork of such a child. In "make test", TestCellKilledInFork stands for a part of it.
func TestMoreParentKilledWhileWritten(t *testing.T) {
	covetest.Patched(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		killDaemon := func() error { d.Kill(); return nil }
		var children []string
		cases := []bool{true}
		if needs.Soak() {
			cases = []bool{false, true}
		}
		for _, both := range cases {
			parent := withHeap(t, d, heapMiB())
			children = append(children, forksOf(t, d, parent, 2)...)
			if both {
				go func() { _, _ = d.Client.Kill(context.WithoutCancel(t.Context()), parent) }()
				covetest.Eventually(covetest.DetectionLimit, func() bool {
					_, lives := covetest.ProcessOf(parent, "runsc-sandbox")
					return !lives
				})
				restart(t, d, killDaemon)
			}
			left := unwritten(t, d)
			must(d.Client.Kill(t.Context(), parent))(t)
			t.Logf("killed while %q was written", left)
			if at := unwritten(t, d); at != "" {
				t.Errorf("%s is still being written", at)
			}
		}
		children = append(children, forksOf(t, d, children[0], 1)...)
		left := unwritten(t, d)
		restart(t, d, killDaemon)
		t.Logf("the daemon was killed while %q was written", left)
		for _, id := range children {
			whole(t, d, id)
		}
	})
}

// The cell of a parent is killed while it writes memory for its children: each has all of
// it, or ends and says why. Nobody ever finds other memory. In "make test-all",
// TestMoreParentKilledWhileWritten and TestCellKilledInFork stand for it.
func TestSoakCellKilledWhileWritten(t *testing.T) {
	covetest.Patched(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		for range 3 { // it may have written all
			if lostTheRest(t, d) {
				return
			}
		}
	})
}

// lostTheRest kills a cell right after a fork, and reports whether it had more to write.
func lostTheRest(t *testing.T, d *covetest.Daemon) bool {
	t.Helper()
	parent := withHeap(t, d, heapMiB())
	pid, ok := covetest.ProcessOf(parent, "cove")
	if !ok {
		t.Fatal("the parent has no cell")
	}
	children := forksOf(t, d, parent, 2)
	// The writing stops here, so what is not written yet will never be. The checkpoint is looked
	// at before the children notice, since it is removed when all of them have failed.
	stopProcess(t, pid)
	lost := unwritten(t, d)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed while %q was written", lost)
	for _, id := range children {
		r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: "print(wrong())", TimeoutMS: 300_000}, nil)
		switch {
		case err == nil && r.Error == nil:
			if got := strings.TrimSpace(r.Stdout); got != "(0, [])" {
				t.Errorf("%s has other memory: %s", id, got)
			}
		case lost == "":
			t.Errorf("%s has ended though all was written: %v", id, err)
		default:
			saysWhy(t, d, id)
		}
	}
	return lost != ""
}

// stopProcess stops a process, and returns when none of its threads runs any more.
func stopProcess(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := regexp.MustCompile(`(?m)^State:\tT`)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, path := range threads {
			status, err := os.ReadFile(path)
			if err == nil && !stopped.Match(status) {
				return false
			}
		}
		return err == nil
	}) {
		t.Fatal("the process does not stop")
	}
}

// saysWhy checks that a sandbox has failed, with the reason that its memory is missing.
func saysWhy(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	var s *sandbox.Sandbox
	var err error
	covetest.Eventually(covetest.DetectionLimit, func() bool {
		s, err = d.Client.Get(t.Context(), id)
		return err == nil && s.State == sandbox.StateFailed
	})
	if err != nil || s.State != sandbox.StateFailed || !strings.Contains(s.Reason, "before its memory and files were written") {
		t.Errorf("%s is %+v, %v; want that it says what became of its memory", id, s, err)
	}
}

// The cell of a parent is killed as soon as it begins to write memory for its children: the
// fork fails as a whole, and says why, or its children have all.
func TestCellKilledInFork(t *testing.T) {
	covetest.Patched(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		parent := withHeap(t, d, heapMiB())
		pid, ok := covetest.ProcessOf(parent, "cove")
		if !ok {
			t.Fatal("the parent has no cell")
		}
		var list *sandbox.List[sandbox.Sandbox]
		made := make(chan error, 1)
		go func() {
			var err error
			list, err = d.Client.Fork(context.WithoutCancel(t.Context()), parent, sandbox.ForkRequest{Count: 2})
			made <- err
		}()
		if !covetest.Eventually(time.Minute, func() bool { return unwritten(t, d) != "" }) {
			t.Fatal("the children's memory is never written")
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := <-made
		t.Logf("the fork: %v", err)
		if err == nil {
			for _, s := range list.Items {
				whole(t, d, s.ID)
			}
			return
		}
		covetest.WantCode(t, err, sandbox.CodeUnavailable)
		all := must(d.All(t.Context()))(t)
		for id, s := range all {
			if id != parent && s.State == sandbox.StateRunning {
				t.Errorf("the fork failed, and left %+v", s)
			}
		}
		if at := unwritten(t, d); at != "" && !covetest.Eventually(covetest.DetectionLimit, func() bool { return unwritten(t, d) == "" }) {
			t.Errorf("%s is left", at)
		}
	})
}

// A snapshot's sandbox, its gVisor or the daemon is killed while memory is being written: then
// there is no snapshot or a complete one, and another snapshot of a living sandbox can be
// made.
// In "make test-all", TestMoreParentKilledWhileWritten, and TestCellKilledDuringCheckpoint of internal/engine/cells, stand for it.
func TestSoakSnapshotKilledWhileWritten(t *testing.T) {
	covetest.Patched(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		for name, kill := range map[string]func(id string){
			"gVisor": func(id string) { killProcess(t, id, "runsc-sandbox") },
			"cell":   func(id string) { killProcess(t, id, "cove") },
			"daemon": func(string) { restart(t, d, func() error { d.Kill(); return nil }) },
		} {
			id := withHeap(t, d, heapMiB())
			made := make(chan error, 1)
			go func() {
				_, err := d.Client.CreateSnapshot(context.WithoutCancel(t.Context()), id, sandbox.CreateSnapshotRequest{Name: "of-" + strings.ToLower(name)})
				made <- err
			}()
			saved := func() bool {
				log, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", id, "cell.log"))
				return err == nil && bytes.Contains(log, []byte("msg=checkpoint "))
			}
			if !covetest.Eventually(time.Minute, saved) {
				t.Fatal("the state is never saved")
			}
			kill(id)
			err := <-made
			t.Logf("%s: %v", name, err)
			list := must(d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{Sandbox: id}))(t)
			if (err == nil) != (len(list.Items) == 1) && name != "daemon" {
				t.Errorf("%s: the snapshot ended with %v, and there are %d", name, err, len(list.Items))
			}
			if name == "daemon" {
				list.Items = append(list.Items, *must(d.Client.CreateSnapshot(t.Context(), id, sandbox.CreateSnapshotRequest{}))(t))
				whole(t, d, id)
			}
			for _, snapshot := range list.Items {
				again := must(d.Client.Create(t.Context(), sandbox.CreateRequest{Snapshot: snapshot.ID}))(t)
				whole(t, d, again.ID)
				must(d.Client.Kill(t.Context(), again.ID))(t)
			}
			_, _ = d.Client.Kill(t.Context(), id)
			if drafts, err := filepath.Glob(filepath.Join(d.StateDir, "engine", "checkpoints", ".draft-*")); err != nil || len(drafts) > 0 {
				t.Errorf("%s: left are %v, %v", name, drafts, err)
			}
		}
	})
}

func killProcess(t testing.TB, id, name string) {
	t.Helper()
	pid, ok := covetest.ProcessOf(id, name)
	if !ok {
		t.Fatalf("%s has no %s", id, name)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
