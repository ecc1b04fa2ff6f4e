package pgalloc

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// newDataFile returns a MemoryFile as of one on a disk, whose pages are always cached.
func newDataFile(t *testing.T) *MemoryFile {
	return newMemoryFile(t, MemoryFileOpts{DiskBackedFile: true})
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

// Of memory, a save looks only at what has data, and saves what is not zeros.
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
	pages := func(start, end uint64) memmap.FileRange {
		return memmap.FileRange{Start: fr.Start + start*page, End: fr.Start + end*page}
	}
	for i, value := range map[uint64]byte{2: 1, 3: 0, 6: 1} {
		if _, err := unix.Pwrite(fd, []byte{value}, int64(pages(i, i+1).Start)); err != nil {
			t.Fatal(err)
		}
	}
	mf.mu.Lock()
	for _, c := range []struct{ from, start, end uint64 }{{0, 2, 4}, {2, 2, 4}, {3, 3, 4}, {4, 6, 7}, {7, 8, 8}} {
		want := pages(c.start, c.end)
		if got := mf.nextDataLocked(pages(c.from, 8)); got != want {
			t.Errorf("from page %d the next data is %v, want %v", c.from, got, want)
		}
	}
	if got, within := mf.nextDataLocked(pages(3, 4)), pages(3, 4); got != within {
		t.Errorf("within %v the next data is %v", within, got)
	}
	mf.mu.Unlock()
	var saved bytes.Buffer
	if err := mf.SaveTo(context.Background(), &saved, &SaveOpts{}); err != nil {
		t.Fatal(err)
	}
	if got, want := mf.known(), []memmap.FileRange{pages(2, 3), pages(6, 7)}; !slices.Equal(got, want) {
		t.Errorf("saved %v, want %v", got, want)
	}
	if n := uint64(saved.Len()); n < 2*page || n >= 3*page {
		t.Errorf("the saved memory has %d bytes, want two pages and what describes them", n)
	}
}
