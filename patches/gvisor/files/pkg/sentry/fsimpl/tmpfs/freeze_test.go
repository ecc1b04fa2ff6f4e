package tmpfs

import (
	"bytes"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/usermem"
)

const (
	page = hostarch.PageSize
	huge = hostarch.HugePageSize
)

// frozenFile is a file of two and a half huge pages, all of which is frozen.
type frozenFile struct {
	t      *testing.T
	mf     *pgalloc.MemoryFile
	rf     *regularFile
	was    []byte // when it was frozen
	frozen []memmap.FileRange
}

// eachFrozen runs a test with a file in memory and one on a disk. Afterwards what was frozen
// must be as it was, and nothing be left of it.
func eachFrozen(t *testing.T, test func(t *testing.T, f *frozenFile)) {
	for name, onDisk := range map[string]bool{"memory": false, "disk": true} {
		t.Run(name, func(t *testing.T) {
			file, err := os.Create(filepath.Join(t.TempDir(), "file"))
			if !onDisk {
				var fd int
				fd, err = unix.MemfdCreate("memory", 0)
				file = os.NewFile(uintptr(fd), "memory")
			}
			if err != nil {
				t.Fatal(err)
			}
			mf, err := pgalloc.NewMemoryFile(file, pgalloc.MemoryFileOpts{DiskBackedFile: onDisk, DisableIMAWorkAround: true})
			if err != nil {
				t.Fatal(err)
			}
			defer mf.Destroy()
			f := &frozenFile{t: t, mf: mf, rf: &regularFile{memoryUsageKind: usage.Tmpfs}, was: make([]byte, 5*huge/2)}
			f.rf.inode.fs = &filesystem{mf: mf, maxSizeInPages: 1 << 20}
			rand.New(rand.NewSource(1)).Read(f.was)
			f.write(0, f.was)
			f.frozen = mf.FreezeFiles(1, mf.AppendFileRanges(nil))
			test(t, f)
			if got := f.content(f.frozen); !bytes.Equal(got, f.was) {
				t.Error("what was frozen has changed")
			}
			if err := f.rf.truncateNoTimeUpdateLocked(0); err != nil {
				t.Fatal(err)
			}
			if got := f.content(f.frozen); !bytes.Equal(got, f.was) {
				t.Error("what was frozen is gone with the file")
			}
			mf.Thaw(1)
			if left := mf.AppendFileRanges(nil); len(left) != 0 || mf.HasFrozen() || f.rf.inode.fs.pagesUsed.Load() != 0 {
				t.Errorf("left are %v, and %d pages of the file", left, f.rf.inode.fs.pagesUsed.Load())
			}
		})
	}
}

// content returns what ranges of the MemoryFile hold.
func (f *frozenFile) content(rs []memmap.FileRange) (all []byte) {
	f.t.Helper()
	for _, fr := range rs {
		part := make([]byte, fr.Length())
		if _, err := f.mf.File().ReadAt(part, int64(fr.Start)); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, part...)
	}
	return all
}

func (f *frozenFile) write(off int64, data []byte) {
	f.t.Helper()
	rw := getRegularFileReadWriter(f.rf, off, 0)
	defer putRegularFileReadWriter(rw)
	if n, err := rw.copyIn(context.Background(), usermem.BytesIOSequence(data)); err != nil || n != int64(len(data)) {
		f.t.Fatalf("wrote %d of %d bytes: %v", n, len(data), err)
	}
}

// holds checks what the file reads as.
func (f *frozenFile) holds(want []byte) {
	f.t.Helper()
	got := make([]byte, len(want)+page)
	rw := getRegularFileReadWriter(f.rf, 0, 0)
	defer putRegularFileReadWriter(rw)
	n, err := usermem.BytesIOSequence(got).CopyOutFrom(context.Background(), rw)
	if err != nil || !bytes.Equal(got[:n], want) {
		f.t.Errorf("the file has other content, of %d bytes: %v", n, err)
	}
}

// translate returns the only translation of a page, which must be for such an access, and
// whether any of it is frozen.
func (f *frozenFile) translate(index uint64, at hostarch.AccessType) (memmap.Translation, bool) {
	f.t.Helper()
	required := memmap.MappableRange{Start: index * page, End: (index + 1) * page}
	optional := memmap.MappableRange{Start: 0, End: uint64(len(f.was))}
	ts, err := f.rf.Translate(context.Background(), required, optional, at)
	if err := memmap.CheckTranslateResult(required, optional, at, ts, err); err != nil || len(ts) != 1 {
		f.t.Fatalf("translated to %v: %v", ts, err)
	}
	_, frozen := f.mf.FrozenPart(ts[0].FileRange())
	return ts[0], frozen
}

// space counts invalidations.
type space struct{ n int }

func (s *space) Invalidate(hostarch.AddrRange, memmap.InvalidateOpts) { s.n++ }

func (f *frozenFile) add(s *space, writable bool) hostarch.AddrRange {
	f.t.Helper()
	ar := hostarch.AddrRange{Start: huge, End: huge + hostarch.Addr(len(f.was))}
	if err := f.rf.AddMapping(context.Background(), s, ar, 0, writable); err != nil {
		f.t.Fatal(err)
	}
	return ar
}

func TestFreezeCopiesWhatIsWritten(t *testing.T) {
	eachFrozen(t, func(t *testing.T, f *frozenFile) {
		now := bytes.Clone(f.was)
		for _, at := range []int64{0, 100, page - 3, huge - 5, huge + page, int64(len(now)) - 10} {
			data := bytes.Repeat([]byte{byte(at)}, 3*page)
			f.write(at, data)
			if more := at + int64(len(data)) - int64(len(now)); more > 0 {
				now = append(now, make([]byte, more)...)
			}
			copy(now[at:], data)
			f.holds(now)
		}
		whole := bytes.Repeat([]byte("new"), len(now)/3)
		f.write(0, whole)
		copy(now, whole)
		f.holds(now)
	})
}

func TestFreezeCopiesPageAtNewEnd(t *testing.T) {
	eachFrozen(t, func(t *testing.T, f *frozenFile) {
		const end = huge + page + 7
		for _, size := range []uint64{end, huge, end} {
			if err := f.rf.truncateNoTimeUpdateLocked(size); err != nil {
				t.Fatal(err)
			}
		}
		f.holds(append(bytes.Clone(f.was[:huge]), make([]byte, end-huge)...))
	})
}

// What is frozen may be mapped for reading as long as nobody can write to a mapping, and all
// who read see what a system call writes.
func TestFreezeInvalidatesReaders(t *testing.T) {
	eachFrozen(t, func(t *testing.T, f *frozenFile) {
		var reader, writer space
		f.add(&reader, false)
		if tr, frozen := f.translate(3, hostarch.Read); !frozen || tr.Perms.Write {
			t.Errorf("translated to %v, which is frozen: %v", tr, frozen)
		}
		f.write(3*page, []byte("new"))
		if reader.n == 0 {
			t.Error("a reader sees what was")
		}
		if _, frozen := f.translate(3, hostarch.Read); frozen {
			t.Error("the reader is given what was")
		}
		reader.n = 0
		ar := f.add(&writer, true)
		if reader.n == 0 {
			t.Error("a reader keeps what a writer will not write to")
		}
		if _, frozen := f.translate(huge/page+3, hostarch.Read); frozen {
			t.Error("a reader is given what a writer will not write to")
		}
		f.rf.RemoveMapping(context.Background(), &writer, ar, 0, true)
		if tr, frozen := f.translate(2*huge/page+3, hostarch.Read); !frozen || tr.Perms.Write {
			t.Errorf("without a writer, translated to %v, which is frozen: %v", tr, frozen)
		}
	})
}

// Mappings that are written to backwards, page by page, have few parts: each is a mapping of
// the host.
func TestFreezeCopiesForMappings(t *testing.T) {
	eachFrozen(t, func(t *testing.T, f *frozenFile) {
		var writer space
		f.add(&writer, true)
		now := bytes.Clone(f.was)
		for i := len(now)/page - 1; i >= 0; i-- {
			tr, frozen := f.translate(uint64(i), hostarch.ReadWrite)
			if frozen {
				t.Fatalf("page %d is written to where it is frozen", i)
			}
			at := tr.Offset + uint64(i)*page - tr.Source.Start
			if _, err := f.mf.File().WriteAt([]byte("new"), int64(at)); err != nil {
				t.Fatal(err)
			}
			copy(now[i*page:], "new")
		}
		f.holds(now)
		parts := 0
		for seg := f.rf.data.FirstSegment(); seg.Ok(); seg = seg.NextSegment() {
			parts++
		}
		if parts > 3 {
			t.Errorf("the file has %d parts", parts)
		}
	})
}
