package cells

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

const mib = 1 << 20

// small is a group of 3,000 MiB, of which 300 must stay free.
func small(available int64) machine.Memory {
	return machine.Memory{Group: "/sys/fs/cgroup/memory/small", Total: 3000 * mib, Available: available * mib}
}

func TestFit(t *testing.T) {
	large := machine.Memory{Total: 65536 * mib, Available: 60000 * mib}
	for name, tt := range map[string]struct {
		bounds         []machine.Memory
		reserved, need int64 // in MiB
		n              int
		want           []string // of the error; none means no error
	}{
		"unknown":              {nil, 1 << 30, 1 << 30, 1, nil},
		"enough":               {[]machine.Memory{large, small(500)}, 0, 200, 1, nil},
		"by one":               {[]machine.Memory{large, small(499)}, 0, 200, 1, []string{"cgroup has 499 of its 3000 MiB left", "300 MiB stay free", "this sandbox needs 200:", "kill or pause"}},
		"set aside":            {[]machine.Memory{small(500)}, 1, 200, 1, []string{"and 1 are set aside"}},
		"several":              {[]machine.Memory{small(900)}, 0, 200, 3, nil},
		"several, by one":      {[]machine.Memory{small(899)}, 0, 200, 3, []string{"these 3 sandboxes need 600:"}},
		"the machine is short": {[]machine.Memory{{Total: 65536 * mib, Available: 1100 * mib}, small(3000)}, 0, 200, 1, []string{"the machine has 1100 of its 65536 MiB of memory available", "1024 MiB stay free"}},
		"below the floor":      {[]machine.Memory{small(10)}, 0, 1, 1, []string{"has 10 of"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdmissions()
			a.bounds = func() []machine.Memory { return tt.bounds }
			a.starts["another"] = &start{need: tt.reserved * mib}
			err := a.ask(tt.n, memoryNeed{now: tt.need * mib}, func() bool { return false })
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("got %v", err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if err != nil && (!errors.Is(err, engine.ErrNoRoom) || sandbox.CodeOf(err) != sandbox.CodeQuotaExceeded) {
				t.Errorf("it is %#v", err)
			}
		})
	}
}

func TestNeedOf(t *testing.T) {
	for _, tt := range []struct{ memory, kept, want int64 }{{128, 0, 48 + 32}, {512, 7, 48 + 128}, {8192, 100, 48 + 128}, {8192, 2000, 48 + 2000}} {
		if got := needOf(sandbox.Resources{MemoryMiB: tt.memory}, tt.kept*mib, false); got != (memoryNeed{now: tt.want * mib}) {
			t.Errorf("with %d MiB and %d in use it needs %v, want %d", tt.memory, tt.kept, got, tt.want)
		}
	}
	for _, tt := range []struct{ memory, kept, want int64 }{{128, 0, 48 + 32}, {8192, 100, 48 + 128}, {8192, 2048, 48 + 256}} {
		want := memoryNeed{now: tt.want * mib, later: tt.kept * mib}
		if got := needOf(sandbox.Resources{MemoryMiB: tt.memory}, tt.kept*mib, true); got != want {
			t.Errorf("with %d MiB and %d to be loaded on demand it needs %v, want %v", tt.memory, tt.kept, got, want)
		}
	}
}

// TestAdmissions checks that concurrent starts count each other, and recent ones as far
// as they do not use their memory yet.
func TestAdmissions(t *testing.T) {
	a := newAdmissions()
	now := time.Now()
	available := int64(3000)
	a.bounds = func() []machine.Memory { return []machine.Memory{small(available)} }
	a.now = func() time.Time { return now }
	given := 0
	spare := func() bool { given++; return false }
	try := func(id string) bool { return a.admit(id, memoryNeed{now: 200 * mib}, spare) == nil }
	var wg sync.WaitGroup
	var mu sync.Mutex
	var in []string
	for i := range 100 {
		wg.Go(func() {
			if id := fmt.Sprint(i); try(id) {
				mu.Lock()
				defer mu.Unlock()
				in = append(in, id)
			}
		})
	}
	wg.Wait()
	if len(in) != 13 { // of 2,700 MiB
		t.Fatalf("%d were admitted", len(in))
	}
	if given != 87 {
		t.Errorf("memory was asked back %d times", given)
	}
	if a.room() != 100*mib {
		t.Errorf("there is room for %d MiB", a.room()/mib)
	}
	a.ended(in[0])
	if !try("next") || try("one too many") {
		t.Error("one that failed does not make room for one")
	}
	// All run, and use half of their memory.
	for _, id := range append(in, "next") {
		a.started(id, func() int64 { return 100 * mib })
	}
	available -= 13 * 100
	if err := a.ask(1, memoryNeed{now: 100 * mib}, spare); err != nil {
		t.Errorf("what has been taken counts twice: %v", err)
	}
	if try("too early") {
		t.Error("what sandboxes are about to take is given away")
	}
	now = now.Add(growthTime)
	if a.ask(7, memoryNeed{now: 200 * mib}, spare) != nil || a.ask(8, memoryNeed{now: 200 * mib}, spare) == nil {
		t.Error("what sandboxes have not taken in time is not given back, or too much of it")
	}
	// Waiting standbys are ended before a sandbox is refused.
	if err := a.ask(8, memoryNeed{now: 200 * mib}, func() bool { available += 200; return true }); err != nil {
		t.Error(err)
	}
}

// TestRoomToLoad checks that memory for the sandbox with the most left to load stays free
// until it is loaded, that each can be loaded in turn, and that those that are loaded or
// have ended need not be waited for.
func TestRoomToLoad(t *testing.T) {
	a := newAdmissions()
	available := int64(1500) // of which 300 stay free
	a.bounds = func() []machine.Memory { return []machine.Memory{small(available)} }
	none := func() bool { return false }
	if err := a.ask(4, memoryNeed{now: 100 * mib, later: 900 * mib}, none); err == nil {
		t.Error("children are admitted none of which could be saved")
	}
	if err := a.ask(4, memoryNeed{now: 100 * mib, later: 800 * mib}, none); err != nil {
		t.Errorf("four that can be saved one after another: %v", err)
	}
	for _, id := range []string{"a", "b"} {
		if err := a.admit(id, memoryNeed{now: 100 * mib, later: 800 * mib}, none); err != nil {
			t.Fatal(err)
		}
		a.started(id, func() int64 { return 100 * mib })
	}
	available -= 200
	if room := a.room(); room > 200*mib {
		t.Errorf("there is room for %d MiB", room/mib)
	}
	err := a.admit("c", memoryNeed{now: 300 * mib}, none)
	if err == nil || !strings.Contains(err.Error(), "have memory to load") {
		t.Errorf("what the others have to load is given away: %v", err)
	}
	done, _, err := a.load("a", 800*mib, none)
	if err != nil {
		t.Fatal(err)
	}
	_, others, err := a.load("b", 800*mib, none)
	if err == nil || others == nil || !errors.Is(err, engine.ErrNoRoom) {
		t.Fatalf("both load at once: %v, %v", others, err)
	}
	done()
	<-others // closed
	a.ended("a")
	if done, _, err = a.load("b", 800*mib, none); err != nil {
		t.Fatalf("the second cannot be loaded after the first: %v", err)
	}
	if err := a.ask(1, memoryNeed{now: 150 * mib}, none); err != nil {
		t.Errorf("what is being loaded counts twice: %v", err)
	}
	done()
	_, others, err = a.load("b", 1100*mib, none)
	if err == nil || others != nil || !strings.Contains(err.Error(), "takes 1100, since it has yet to load them:") {
		t.Errorf("with too much to load it waits for %v: %v", others, err)
	}
	a.setLeft("b", 0)
	if err := a.ask(1, memoryNeed{now: 900 * mib}, none); err != nil {
		t.Errorf("memory stays reserved for one that has loaded all: %v", err)
	}
	if _, known := a.left("a"); known {
		t.Error("one that has ended is remembered")
	}
	if err := a.admit("d", memoryNeed{now: 900 * mib}, none); err != nil {
		t.Fatal(err)
	}
	a.started("d", func() int64 { return 0 })
	if _, known := a.left("d"); known {
		t.Error("one that should load in the background is taken for loaded")
	}
	if _, _, err := a.load("d", 900*mib, none); err != nil {
		t.Errorf("what one is about to take since its start counts twice: %v", err)
	}
}

// TestEndReleasesMemory checks that memory reserved for an instance is released when it has
// ended, before its directory is removed.
func TestEndReleasesMemory(t *testing.T) {
	a := newAdmissions()
	a.bounds = func() []machine.Memory { return []machine.Memory{small(1000)} }
	e := &Engine{cfg: Config{Dir: t.TempDir()}, admissions: a}
	const first, second = "sbx-aaaaaaaaaaaaaaaaaaaaaaaaaa", "sbx-bbbbbbbbbbbbbbbbbbbbbbbbbb"
	none := func() bool { return false }
	if err := a.admit(first, memoryNeed{now: 600 * mib}, none); err != nil {
		t.Fatal(err)
	}
	if err := a.admit(second, memoryNeed{now: 600 * mib}, none); err == nil {
		t.Fatal("two are admitted where one fits")
	}
	if err := e.End(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := a.admit(second, memoryNeed{now: 600 * mib}, none); err != nil {
		t.Errorf("the first has ended, and the second is refused: %v", err)
	}
}

// TestBelieved checks that a cell cannot keep more memory of the machine free than its
// sandbox may use.
func TestBelieved(t *testing.T) {
	i := &instance{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(i.dir, originFile), []byte(`{"resources":{"memory_mib":512}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for said, want := range map[int64]int64{-1: 0, 0: 0, 7: 7, 1 << 62: 512 * mib} {
		if got := i.believed(said); got != want {
			t.Errorf("a cell that says %d is believed %d", said, got)
		}
	}
}
