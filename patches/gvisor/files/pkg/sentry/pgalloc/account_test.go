package pgalloc

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// newDataFile returns a MemoryFile as of one on a disk, whose pages are always cached.
func newDataFile(t *testing.T) *MemoryFile {
	t.Helper()
	fd, err := unix.MemfdCreate("file", 0)
	if err != nil {
		t.Fatal(err)
	}
	mf, err := NewMemoryFile(os.NewFile(uintptr(fd), "file"), MemoryFileOpts{DiskBackedFile: true, DisableIMAWorkAround: true, DisableMemoryAccounting: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mf.Destroy)
	return mf
}

func (f *MemoryFile) known() (all []memmap.FileRange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for maseg := f.memAcct.FirstSegment(); maseg.Ok(); maseg = maseg.NextSegment() {
		if maseg.ValuePtr().knownCommitted {
			all = append(all, maseg.Range())
		}
	}
	return all
}

// Pages with data are known to be committed; holes and zeros are not, unless these are not
// cached.
func TestFreezeAccountsData(t *testing.T) {
	const parts, page = 3 * accountSegments, uint64(hostarch.PageSize)
	for name, test := range map[string]struct {
		read func(*os.File, []byte, uint64) int
		// pages of each part that are known
		pages uint64
	}{
		"cached":     {readCached, 3},
		"not cached": {func(*os.File, []byte, uint64) int { return 0 }, 4},
		"half a page": {func(file *os.File, b []byte, off uint64) int {
			return readCached(file, b[:hostarch.PageSize+hostarch.PageSize/2], off)
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			mf := newDataFile(t)
			var first uint64
			for i := range parts {
				fr, err := mf.Allocate(8*page, AllocOpts{Kind: usage.Tmpfs})
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					first = fr.Start
				}
				data := append(bytes.Repeat([]byte("data"), int(page)/4), make([]byte, page)...) // and zeros
				data = append(data, "end of the data, and of a page in between"...)
				data = append(data, make([]byte, page)...)
				if _, err := mf.file.WriteAt(data[:3*page], int64(fr.Start+2*page)); err != nil {
					t.Fatal(err)
				}
				if _, err := mf.file.WriteAt([]byte("data"), int64(fr.Start+6*page-4)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				mf.accountData(test.read)
				known := uint64(0)
				for _, fr := range mf.known() {
					known += fr.Length()
				}
				if want := parts * test.pages * page; known != want || mf.knownCommittedBytes != want {
					t.Errorf("%d bytes are known to be committed, and counted %d, of %d", known, mf.knownCommittedBytes, want)
				}
			}
			if got := mf.known()[0]; got.Start != first+2*page {
				t.Errorf("first known is %v", got)
			}
		})
	}
}

// What is decommitted, released or reused while it is looked at is not taken to be committed.
func TestFreezeAccountsNothingReleased(t *testing.T) {
	const page = hostarch.PageSize
	mf := newDataFile(t)
	allocate := func() memmap.FileRange {
		fr, err := mf.Allocate(4*page, AllocOpts{Kind: usage.Tmpfs})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mf.file.WriteAt(bytes.Repeat([]byte("data"), page), int64(fr.Start)); err != nil {
			t.Fatal(err)
		}
		return fr
	}
	kept, decommitted, released, reused := allocate(), allocate(), allocate(), allocate()
	once := false
	mf.accountData(func(file *os.File, b []byte, off uint64) int {
		n := readCached(file, b, off)
		if once {
			return n
		}
		once = true
		if uint64(n) != 16*page {
			t.Fatalf("read %d", n)
		}
		mf.Decommit(decommitted)
		mf.DecRef(released)
		mf.DecRef(reused)
		await(t, func() bool {
			mf.mu.Lock()
			defer mf.mu.Unlock()
			return !mf.haveWaste && mf.memAcct.SpanRange(memmap.FileRange{Start: released.Start, End: reused.End}) == 0
		})
		if fr, err := mf.Allocate(4*page, AllocOpts{Kind: usage.Tmpfs}); err != nil || fr.Start < released.Start || fr.End > reused.End {
			t.Fatalf("allocated %v: %v", fr, err)
		}
		return n
	})
	if known := mf.known(); len(known) != 1 || known[0] != kept || mf.knownCommittedBytes != kept.Length() {
		t.Errorf("%v are known to be committed, and counted %d; want %v", known, mf.knownCommittedBytes, kept)
	}
}

// Of memory, only what has data is looked at by a save.
func TestFreezeSkipsHoles(t *testing.T) {
	const page = uint64(hostarch.PageSize)
	fd, err := unix.MemfdCreate("memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	mf, err := NewMemoryFile(os.NewFile(uintptr(fd), "memory"), MemoryFileOpts{DisableIMAWorkAround: true, DisableMemoryAccounting: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mf.Destroy)
	fr, err := mf.Allocate(8*page, AllocOpts{Kind: usage.Anonymous})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []uint64{2, 3, 6} {
		if _, err := unix.Pwrite(fd, []byte{1}, int64(fr.Start+i*page)); err != nil {
			t.Fatal(err)
		}
	}
	mf.mu.Lock()
	defer mf.mu.Unlock()
	for _, c := range []struct{ from, start, end uint64 }{{0, 2, 4}, {2, 2, 4}, {3, 3, 4}, {4, 6, 7}, {7, 8, 8}} {
		want := memmap.FileRange{Start: fr.Start + c.start*page, End: fr.Start + c.end*page}
		if got := mf.nextDataLocked(memmap.FileRange{Start: fr.Start + c.from*page, End: fr.End}); got != want {
			t.Errorf("from page %d the next data is %v, want %v", c.from, got, want)
		}
	}
	within := memmap.FileRange{Start: fr.Start + 3*page, End: fr.Start + 4*page}
	if got := mf.nextDataLocked(within); got != within {
		t.Errorf("within %v the next data is %v", within, got)
	}
}
