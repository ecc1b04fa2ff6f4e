package pgalloc

import (
	"bytes"
	"os"
	"path/filepath"
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
			if held := mf.FreezeFiles([]memmap.FileRange{fr}); len(held) != 1 || held[0] != fr {
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
	held := mf.FreezeFiles([]memmap.FileRange{{Start: 0, End: last.End + hostarch.HugePageSize}})
	if len(held) != 2 || held[0] != first || held[1] != last {
		t.Errorf("frozen are %v, want %v and %v", held, first, last)
	}
	if part, ok := mf.FrozenPart(memmap.FileRange{Start: first.End, End: last.Start}); ok {
		t.Errorf("%v is frozen", part)
	}
	mf.ThawFiles()
	for _, fr := range []memmap.FileRange{first, last} {
		if mf.HasFrozen() || !mf.HasUniqueRef(fr) {
			t.Errorf("%v is frozen still", fr)
		}
		mf.DecRef(fr)
	}
}
