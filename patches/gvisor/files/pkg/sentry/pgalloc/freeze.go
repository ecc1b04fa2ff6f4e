package pgalloc

import (
	"io"
	"sort"

	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/hostfd"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// UpdateUsageNow is as UpdateUsage, however short ago that was called. SaveTo need not
// look at pages that are known to be committed.
func (f *MemoryFile) UpdateUsageNow() error {
	total, err := f.TotalUsage()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isSaving || total == f.knownCommittedBytes {
		return nil
	}
	err = f.updateUsageLocked(nil)
	if _, ok := err.(updateUsageDuringSaveErr); ok {
		return nil
	}
	return err
}

// Pages that hold data of files are those that are accounted as usage.Tmpfs: only
// tmpfs and shm allocate such pages, and only they look at what is frozen, before
// they write to a page or let it be mapped.

// AppendFileRanges appends to rs where f holds data of files.
func (f *MemoryFile) AppendFileRanges(rs []memmap.FileRange) []memmap.FileRange {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.appendFileRangesLocked(rs, memmap.FileRange{Start: 0, End: ^uint64(0)})
}

// Preconditions: f.mu must be locked.
func (f *MemoryFile) appendFileRangesLocked(rs []memmap.FileRange, in memmap.FileRange) []memmap.FileRange {
	for maseg := f.memAcct.LowerBoundSegment(in.Start); maseg.Ok() && maseg.Start() < in.End; maseg = maseg.NextSegment() {
		if ma := maseg.ValuePtr(); ma.kind != usage.Tmpfs || ma.wasteOrReleasing {
			continue
		}
		fr := maseg.Range().Intersect(in)
		if last := len(rs) - 1; last >= 0 && rs[last].End == fr.Start {
			rs[last].End = fr.End
		} else {
			rs = append(rs, fr)
		}
	}
	return rs
}

// FreezeFiles keeps data of files in rs as it is until ThawFiles, and returns where
// that is. Files get copies to write to, by Copy. There is one more reference on what
// is frozen.
//
// Preconditions: rs is sorted, its ranges are page-aligned and do not overlap. The kernel
// is paused, and all translations to what is frozen are invalidated before it goes on.
// Nothing is frozen.
func (f *MemoryFile) FreezeFiles(rs []memmap.FileRange) []memmap.FileRange {
	f.mu.Lock()
	defer f.mu.Unlock()
	var held []memmap.FileRange
	for _, fr := range rs {
		held = f.appendFileRangesLocked(held, fr)
	}
	for _, fr := range held {
		f.incRefLocked(fr) // pages without references are accounted as usage.System
	}
	if len(held) != 0 {
		f.frozen.Store(&held)
	}
	return held
}

// ThawFiles ends FreezeFiles.
func (f *MemoryFile) ThawFiles() {
	held := f.frozen.Swap(nil)
	if held == nil {
		return
	}
	for _, fr := range *held {
		f.DecRef(fr)
	}
}

// HasFrozen returns true if data of files is frozen anywhere in f. It changes from false
// to true only while the kernel is paused.
func (f *MemoryFile) HasFrozen() bool { return f.frozen.Load() != nil }

// FrozenPart returns the first part of fr that is frozen, and false if none is.
func (f *MemoryFile) FrozenPart(fr memmap.FileRange) (memmap.FileRange, bool) {
	frozen := f.frozen.Load()
	if frozen == nil {
		return memmap.FileRange{}, false
	}
	part := firstOverlap(*frozen, fr)
	return part, part.Length() != 0
}

// firstOverlap returns the first part of fr that is in rs, which is sorted.
func firstOverlap(rs []memmap.FileRange, fr memmap.FileRange) memmap.FileRange {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].End > fr.Start })
	if i == len(rs) || rs[i].Start >= fr.End {
		return memmap.FileRange{}
	}
	return rs[i].Intersect(fr)
}

// Copy allocates a copy of fr, for what is frozen there. Where opts has a Mode or a
// ReaderFunc, these are ignored.
//
// Preconditions: At least one reference must be held on all pages in fr, and nothing
// writes to them. fr is page-aligned.
func (f *MemoryFile) Copy(fr memmap.FileRange, opts AllocOpts) (memmap.FileRange, error) {
	src, err := f.MapInternal(fr, hostarch.Read)
	if err != nil {
		return memmap.FileRange{}, err
	}
	opts.Huge = opts.Huge && hostarch.IsHugePageAligned(fr.Length())
	if !f.IsDiskBacked() {
		reader := safemem.BlockSeqReader{Blocks: src}
		opts.Mode, opts.ReaderFunc = AllocateAndWritePopulate, reader.ReadToBlocks
		to, err := f.Allocate(fr.Length(), opts)
		if err != nil && to.Length() != 0 {
			f.DecRef(to)
		}
		return to, err
	}
	// As tmpfs does; a disk that is full is an error then, and no signal.
	opts.Mode, opts.ReaderFunc = AllocateCallerIndirectCommit, nil
	to, err := f.Allocate(fr.Length(), opts)
	if err != nil {
		return to, err
	}
	for off := to.Start; off < to.End; {
		n, err := hostfd.Pwritev2(int32(f.FD()), src, int64(off), 0)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			f.DecRef(to)
			return memmap.FileRange{}, err
		}
		off += n
		src = src.DropFirst64(n)
	}
	return to, nil
}
