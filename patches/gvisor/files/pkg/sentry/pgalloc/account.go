package pgalloc

import (
	"bytes"
	"errors"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	// accountBytes is how much AccountData reads at once, and accountSegments how many
	// segments without data it skips before others may use the file.
	accountBytes    = 1 << 20
	accountSegments = 256
	// absentBytes is how much AccountData takes to be committed without reading it when its
	// first page is not cached.
	absentBytes = 64 << 10
)

// AccountData finds out which pages of a file on a disk are committed. SaveTo would read
// all that were written since the last save to find out, from the disk if they are no
// longer cached. Here, pages that are cached are read; others that are not in a hole of
// the file are taken to be committed, if they hold zeros, too. For other files, it does
// nothing.
//
// Pages that are known to be committed are always saved, so an error here is harmless.
func (f *MemoryFile) AccountData() {
	if f.IsDiskBacked() {
		f.accountData(readCached)
	}
}

// accountData is AccountData with a function that reads as readCached does.
func (f *MemoryFile) accountData(read func(file *os.File, b []byte, off uint64) int) {
	buf := make([]byte, accountBytes)
	for next, ok := uint64(0), true; ok; {
		var u unaccounted
		if u, ok = f.nextUnaccounted(next); ok {
			f.setCommitted(u.committed(read, buf), u.seq)
			next = u.next
		}
	}
}

// unaccounted is a part of a file's data of which it is not known whether it is committed.
type unaccounted struct {
	file *os.File
	// data is at most accountBytes long; it may be empty.
	data memmap.FileRange
	// next is where what follows begins.
	next uint64
	// seq is MemoryFile.commitSeq from before data was found.
	seq uint64
}

// nextUnaccounted returns the first part after an offset, or false if there is none.
func (f *MemoryFile) nextUnaccounted(next uint64) (unaccounted, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isSaving || f.destroyed {
		return unaccounted{}, false
	}
	maseg := f.memAcct.LowerBoundSegment(next)
	if !maseg.Ok() {
		return unaccounted{}, false
	}
	u := unaccounted{file: f.file, seq: f.commitSeq}
	for n := 0; maseg.Ok() && n < accountSegments; n++ {
		fr := maseg.Range()
		fr.Start = max(fr.Start, next)
		next = fr.End
		if ma := maseg.ValuePtr(); !ma.knownCommitted && !ma.wasteOrReleasing {
			if u.data = f.nextDataLocked(fr); u.data.Length() != 0 {
				u.data.End = min(u.data.End, u.data.Start+accountBytes)
				next = u.data.End
				f.commitSeq++
				break
			}
		}
		maseg = maseg.NextSegment()
	}
	u.next = next
	return u, true
}

// nextDataLocked returns the pages of the first part of fr that is no hole of the file, or
// an empty range at the end of fr. If that cannot be told, fr is returned.
//
// On a disk, a page that was just written may seem to be a hole, which depends on the file
// system.
//
// Preconditions: f.mu must be locked.
func (f *MemoryFile) nextDataLocked(fr memmap.FileRange) memmap.FileRange {
	none := memmap.FileRange{Start: fr.End, End: fr.End}
	start, err := unix.Seek(f.FD(), int64(fr.Start), unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && uint64(start) >= fr.End {
		return none
	}
	if err != nil {
		return fr
	}
	end, err := unix.Seek(f.FD(), start, unix.SEEK_HOLE)
	if err != nil {
		return fr
	}
	return memmap.FileRange{Start: hostarch.PageRoundDown(uint64(start)), End: hostarch.MustPageRoundUp(uint64(end))}.Intersect(fr)
}

// committed returns the pages that are to be saved.
func (u *unaccounted) committed(read func(file *os.File, b []byte, off uint64) int, buf []byte) (all []memmap.FileRange) {
	add := func(fr memmap.FileRange) {
		if last := len(all) - 1; last >= 0 && all[last].End == fr.Start {
			all[last].End = fr.End
		} else {
			all = append(all, fr)
		}
	}
	zeros := make([]byte, hostarch.PageSize)
	for off := u.data.Start; off < u.data.End; {
		left := u.data.End - off
		n := hostarch.PageRoundDown(uint64(read(u.file, buf[:left], off)))
		if n == 0 {
			n = min(left, absentBytes)
			add(memmap.FileRange{Start: off, End: off + n})
		} else {
			for at := uint64(0); at < n; at += hostarch.PageSize {
				if !bytes.Equal(buf[at:at+hostarch.PageSize], zeros) {
					add(memmap.FileRange{Start: off + at, End: off + at + hostarch.PageSize})
				}
			}
		}
		off += n
	}
	return all
}

// readCached reads what the page cache has of a file, if that can be told, and returns how
// much it has read.
func readCached(file *os.File, b []byte, off uint64) (n int) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) {
		n, err = unix.Preadv2(int(fd), [][]byte{b}, int64(off), unix.RWF_NOWAIT)
		if errors.Is(err, unix.EOPNOTSUPP) {
			n, err = unix.Pread(int(fd), b, int64(off))
		}
	})
	return max(0, n)
}

// setCommitted accounts for pages that were found to be committed when f.commitSeq became
// larger than seq, as UpdateUsage does.
func (f *MemoryFile) setCommitted(frs []memmap.FileRange, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isSaving || f.destroyed {
		return
	}
	for _, fr := range frs {
		for maseg := f.memAcct.LowerBoundSegment(fr.Start); maseg.Ok() && maseg.Start() < fr.End; {
			// Not what was released or decommitted meanwhile.
			if ma := maseg.ValuePtr(); ma.knownCommitted || ma.wasteOrReleasing || ma.commitSeq > seq {
				maseg = maseg.NextSegment()
				continue
			}
			maseg = f.memAcct.Isolate(maseg, fr)
			ma := maseg.ValuePtr()
			ma.knownCommitted = true
			ma.commitSeq = 0
			amount := maseg.Range().Length()
			f.knownCommittedBytes += amount
			if !f.opts.DisableMemoryAccounting {
				usage.MemoryAccounting.Inc(amount, ma.kind, ma.memCgID)
			}
			maseg = f.memAcct.Unisolate(maseg).NextSegment()
		}
	}
}
