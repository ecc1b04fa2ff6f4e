package pgalloc

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// What is frozen can be read from the file after everything in the sandbox has ended, and
// with it the file system.
func TestFreezeOutlivesFilesystem(t *testing.T) {
	for name, frozen := range map[string]bool{"frozen": true, "not frozen": false} {
		fd, err := unix.MemfdCreate("file", 0)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "file")
		again, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(again)
		mf, err := NewMemoryFile(file, MemoryFileOpts{DiskBackedFile: true, DecommitOnDestroy: true, DisableIMAWorkAround: true})
		if err != nil {
			t.Fatal(err)
		}
		fr, err := mf.Allocate(4*hostarch.PageSize, AllocOpts{Kind: usage.Tmpfs, Mode: AllocateCallerIndirectCommit})
		if err != nil {
			t.Fatal(err)
		}
		was := bytes.Repeat([]byte("was "), hostarch.PageSize)
		if _, err := file.WriteAt(was, int64(fr.Start)); err != nil {
			t.Fatal(err)
		}
		if frozen {
			if held := mf.FreezeFiles(1, []memmap.FileRange{fr}); len(held) != 1 || held[0] != fr {
				t.Fatalf("frozen are %v", held)
			}
		}
		mf.DecRef(fr)
		await(t, func() bool {
			mf.mu.Lock()
			defer mf.mu.Unlock()
			return !mf.haveWaste
		})
		mf.Destroy()
		await(t, func() bool {
			mf.mu.Lock()
			defer mf.mu.Unlock()
			return mf.file == nil
		})
		got := make([]byte, fr.Length())
		if _, err := unix.Pread(again, got, int64(fr.Start)); err != nil || bytes.Equal(got, was) != frozen {
			t.Errorf("%s: in the file it is as it was: %v, %v", name, !frozen, err)
		}
	}
}

// Only data of files is frozen, and no page that nobody has any more.
func TestFreezeOnlyFiles(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	mf, err := NewMemoryFile(file, MemoryFileOpts{DisableIMAWorkAround: true})
	if err != nil {
		t.Fatal(err)
	}
	defer mf.Destroy()
	allocate := func(kind usage.MemoryKind) memmap.FileRange {
		fr, err := mf.Allocate(2*hostarch.PageSize, AllocOpts{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		return fr
	}
	first, _, gone, last := allocate(usage.Tmpfs), allocate(usage.Anonymous), allocate(usage.Tmpfs), allocate(usage.Tmpfs)
	mf.DecRef(gone)
	held := mf.FreezeFiles(1, []memmap.FileRange{{Start: 0, End: last.End + hostarch.HugePageSize}})
	if len(held) != 2 || held[0] != first || held[1] != last {
		t.Errorf("frozen are %v, want %v and %v", held, first, last)
	}
	if part, ok := mf.FrozenPart(memmap.FileRange{Start: first.End, End: last.Start}); ok {
		t.Errorf("%v is frozen", part)
	}
	mf.Thaw(1)
	for _, fr := range []memmap.FileRange{first, last} {
		if mf.HasFrozen() || !mf.HasUniqueRef(fr) {
			t.Errorf("%v is frozen still", fr)
		}
		mf.DecRef(fr)
	}
}

func TestFreezeJoinsRanges(t *testing.T) {
	const page = hostarch.PageSize
	ranges := func(ends ...uint64) (rs []memmap.FileRange) {
		for ; len(ends) > 0; ends = ends[2:] {
			rs = append(rs, memmap.FileRange{Start: ends[0] * page, End: ends[1] * page})
		}
		return rs
	}
	got := JoinRanges(ranges(8, 9, 0, 2, 4, 6, 2, 3, 1, 2, 5, 7))
	if want := ranges(0, 3, 4, 7, 8, 9); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What one freeze holds stays frozen when another one ends.
func TestFreezeTwice(t *testing.T) {
	mf := newMemory(t)
	a, b := allocateData(t, mf, usage.Tmpfs, "a"), allocateData(t, mf, usage.Tmpfs, "b")
	mf.FreezeFiles(1, []memmap.FileRange{a})
	mf.FreezeFiles(2, []memmap.FileRange{a, b})
	frozen := func(fr memmap.FileRange) bool {
		_, ok := mf.FrozenPart(fr)
		return ok
	}
	for _, step := range []struct {
		thaw  uint64
		a, b  bool
		uniqA bool
	}{{0, true, true, false}, {1, true, true, false}, {2, false, false, true}} {
		if mf.Thaw(step.thaw); frozen(a) != step.a || frozen(b) != step.b || mf.HasUniqueRef(a) != step.uniqA {
			t.Errorf("after the thaw of %d, a is frozen: %v, b: %v, a is unique: %v", step.thaw, frozen(a), frozen(b), mf.HasUniqueRef(a))
		}
	}
	mf.DecRef(a)
	mf.DecRef(b)
	checkEmpty(t, mf)
}

// What is frozen is saved as if it were not, and pages that only freezes hold are not in
// the saved state.
func TestFreezeAndSave(t *testing.T) {
	mf := newMemory(t)
	shared, only, other := allocateData(t, mf, usage.Anonymous, "shared"), allocateData(t, mf, usage.Tmpfs, "only"), allocateData(t, mf, usage.Anonymous, "other")
	mf.IncRef(shared, 0)
	mf.HoldMemory(1, []memmap.FileRange{shared})
	mf.IncRef(shared, 0)
	mf.HoldMemory(2, []memmap.FileRange{shared})
	mf.FreezeFiles(1, []memmap.FileRange{only})
	mf.FreezeFiles(2, []memmap.FileRange{{Start: only.Start, End: only.Start + hostarch.PageSize}})
	mf.DecRef(only)
	for range 2 { // a save changes nothing
		saved := save(t, mf)
		if bytes.Contains(saved, []byte("only")) {
			t.Error("what only freezes hold is in the saved state")
		}
		again := newMemory(t)
		if err := again.LoadFrom(t.Context(), bytes.NewReader(saved), &LoadOpts{}); err != nil {
			t.Fatal(err)
		}
		for fr, want := range map[memmap.FileRange]string{shared: "shared", other: "other"} {
			got := make([]byte, len(want))
			if _, err := again.file.ReadAt(got, int64(fr.Start)); err != nil || string(got) != want || !again.HasUniqueRef(fr) {
				t.Errorf("loaded %q of %q, %v; its reference is the only one: %v", got, want, err, again.HasUniqueRef(fr))
			}
			again.DecRef(fr)
		}
		checkEmpty(t, again)
	}
	got := make([]byte, 4)
	if _, err := mf.file.ReadAt(got, int64(only.Start)); err != nil || string(got) != "only" {
		t.Errorf("what is frozen has become %q: %v", got, err)
	}
	mf.Thaw(1)
	mf.Thaw(2)
	if !mf.HasUniqueRef(shared) {
		t.Error("the thawed memory has other references")
	}
	mf.DecRef(shared)
	mf.DecRef(other)
	checkEmpty(t, mf)
}

// A thaw during a save takes effect after it.
func TestFreezeThawedInSave(t *testing.T) {
	mf := newMemory(t)
	shared, only := allocateData(t, mf, usage.Anonymous, "shared"), allocateData(t, mf, usage.Anonymous, "only")
	mf.IncRef(shared, 0)
	mf.HoldMemory(1, []memmap.FileRange{shared, only})
	mf.mu.Lock()
	mf.isSaving = true
	mf.withdrawFreezesLocked()
	mf.mu.Unlock()
	mf.Thaw(1)
	mf.mu.Lock()
	if len(mf.freezes) != 1 {
		t.Error("it is thawed during the save")
	}
	mf.isSaving = false
	mf.returnFreezesLocked()
	mf.mu.Unlock()
	if !mf.HasUniqueRef(shared) {
		t.Error("it is not thawed after the save")
	}
	mf.DecRef(shared)
	checkEmpty(t, mf)
}

// A save that begins during a thaw of many ranges has either all references or none.
func TestFreezeThawedAsSaveBegins(t *testing.T) {
	for range 100 {
		mf := newMemory(t)
		var held []memmap.FileRange
		for range 500 {
			fr := allocateData(t, mf, usage.Anonymous, "data")
			mf.IncRef(fr, 0)
			held = append(held, fr)
		}
		mf.HoldMemory(1, held)
		var thaw sync.WaitGroup
		begun := make(chan struct{})
		thaw.Go(func() {
			close(begun)
			mf.Thaw(1)
		})
		<-begun
		saved := save(t, mf)
		thaw.Wait()
		again := newMemory(t)
		if err := again.LoadFrom(t.Context(), bytes.NewReader(saved), &LoadOpts{}); err != nil {
			t.Fatal(err)
		}
		for _, fr := range held {
			if !again.HasUniqueRef(fr) {
				t.Fatalf("%v has references that nobody has", fr)
			}
		}
	}
}

func newMemory(t *testing.T) *MemoryFile { return newMemoryFile(t, MemoryFileOpts{}) }

func newMemoryFile(t *testing.T, opts MemoryFileOpts) *MemoryFile {
	t.Helper()
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	opts.DisableIMAWorkAround, opts.DisableMemoryAccounting = true, true
	mf, err := NewMemoryFile(os.NewFile(uintptr(fd), "memory"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mf.Destroy)
	return mf
}

// allocateData allocates three pages that begin with data.
func allocateData(t *testing.T, mf *MemoryFile, kind usage.MemoryKind, data string) memmap.FileRange {
	t.Helper()
	fr, err := mf.Allocate(3*hostarch.PageSize, AllocOpts{Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	for off := fr.Start; off < fr.End; off += hostarch.PageSize {
		if _, err := mf.file.WriteAt([]byte(data), int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	return fr
}

func save(t *testing.T, mf *MemoryFile) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := mf.SaveTo(t.Context(), &b, &SaveOpts{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkEmpty checks that no page is in use, once what has been released is free.
func checkEmpty(t *testing.T, mf *MemoryFile) {
	t.Helper()
	await(t, func() bool {
		mf.mu.Lock()
		defer mf.mu.Unlock()
		return !mf.haveWaste
	})
	mf.mu.Lock()
	defer mf.mu.Unlock()
	if !mf.memAcct.IsEmpty() || mf.frozen.Load() != nil || len(mf.freezes) != 0 {
		t.Errorf("left are %s, %v", &mf.memAcct, mf.freezes)
	}
}
