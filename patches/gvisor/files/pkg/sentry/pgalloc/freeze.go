package pgalloc

import (
	"io"
	"slices"
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

// freeze is what one caller has frozen. It has a reference on each range; where ranges
// overlap, on each of them.
type freeze struct {
	memory, files []memmap.FileRange
}

// FreezeFiles keeps data of files in rs as it is until Thaw(id), and returns where that is.
// Files get copies to write to, by Copy. There is one more reference on what is frozen.
//
// Preconditions: rs is sorted, its ranges are page-aligned and do not overlap. The kernel
// is paused, and all translations to what is frozen are invalidated before it goes on.
func (f *MemoryFile) FreezeFiles(id uint64, rs []memmap.FileRange) []memmap.FileRange {
	f.mu.Lock()
	defer f.mu.Unlock()
	var held []memmap.FileRange
	for _, fr := range rs {
		held = f.appendFileRangesLocked(held, fr)
	}
	for _, fr := range held {
		f.incRefLocked(fr) // pages without references are accounted as usage.System
	}
	z := f.freezes[id]
	z.files = append(z.files, held...)
	f.setFreezeLocked(id, z)
	return held
}

// HoldMemory makes Thaw(id) release the caller's references on memory of programs.
func (f *MemoryFile) HoldMemory(id uint64, held []memmap.FileRange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	z := f.freezes[id]
	z.memory = append(z.memory, held...)
	f.setFreezeLocked(id, z)
}

// Thaw ends FreezeFiles and HoldMemory with this id, if anything is frozen.
func (f *MemoryFile) Thaw(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thawLocked(id)
}

// thawLocked is Thaw. No save may begin before all references are released: it would take
// those that are left for references of something else.
//
// Preconditions: f.mu must be locked.
func (f *MemoryFile) thawLocked(id uint64) {
	if f.isSaving {
		f.thawed = append(f.thawed, id) // when the references are back
		return
	}
	z := f.freezes[id]
	f.setFreezeLocked(id, freeze{})
	for _, fr := range slices.Concat(z.memory, z.files) {
		f.decRefLocked(fr)
	}
}

// Preconditions: f.mu must be locked.
func (f *MemoryFile) setFreezeLocked(id uint64, z freeze) {
	if f.freezes == nil {
		f.freezes = make(map[uint64]freeze)
	}
	f.freezes[id] = z
	if len(z.memory)+len(z.files) == 0 {
		delete(f.freezes, id)
	}
	var all []memmap.FileRange
	for _, z := range f.freezes {
		all = append(all, z.files...)
	}
	if len(all) == 0 {
		f.frozen.Store(nil)
		return
	}
	all = JoinRanges(all)
	f.frozen.Store(&all)
}

// JoinRanges sorts rs, and joins those that touch or overlap. It changes rs.
func JoinRanges(rs []memmap.FileRange) []memmap.FileRange {
	sort.Slice(rs, func(i, j int) bool { return rs[i].Start < rs[j].Start })
	joined := rs[:0]
	for _, fr := range rs {
		if last := len(joined) - 1; last >= 0 && fr.Start <= joined[last].End {
			joined[last].End = max(joined[last].End, fr.End)
		} else {
			joined = append(joined, fr)
		}
	}
	return joined
}

// What is frozen is no part of the state that is saved: the restored kernel could never
// thaw it. So a save takes the references away for as long as it lasts. Pages that have no
// others, since programs and files have copies of them, are saved as pages without
// references, and without their data; LoadFrom releases them.

// withdrawFreezesLocked takes away the references of all freezes, and marks the pages that
// have no others.
//
// Preconditions: f.mu must be locked. The kernel is paused.
func (f *MemoryFile) withdrawFreezesLocked() {
	f.eachFrozenLocked(func(seg unfreeIterator) {
		uf := seg.ValuePtr()
		if uf.refs--; uf.refs == 0 {
			f.setFrozenOnlyLocked(seg.Range(), true)
		}
	})
}

// returnFreezesLocked undoes withdrawFreezesLocked, and thaws what was to be thawed since.
//
// Preconditions: f.mu must be locked. f.isSaving is false.
func (f *MemoryFile) returnFreezesLocked() {
	f.eachFrozenLocked(func(seg unfreeIterator) {
		uf := seg.ValuePtr()
		if uf.refs++; uf.refs == 1 {
			f.setFrozenOnlyLocked(seg.Range(), false)
		}
	})
	thawed := f.thawed
	f.thawed = nil
	for _, id := range thawed {
		f.thawLocked(id)
	}
}

// eachFrozenLocked calls fn for each reference of a freeze.
//
// Preconditions: f.mu must be locked.
func (f *MemoryFile) eachFrozenLocked(fn func(unfreeIterator)) {
	for _, z := range f.freezes {
		for _, fr := range slices.Concat(z.memory, z.files) {
			f.forEachChunk(fr, func(chunk *chunkInfo, chunkFR memmap.FileRange) bool {
				f.unfreeOf(chunk).MutateFullRange(chunkFR, func(seg unfreeIterator) bool {
					fn(seg)
					return true
				})
				return true
			})
		}
	}
}

func (f *MemoryFile) unfreeOf(chunk *chunkInfo) *unfreeSet {
	if chunk.huge {
		return &f.unfreeHuge
	}
	return &f.unfreeSmall
}

// Preconditions: f.mu must be locked.
func (f *MemoryFile) setFrozenOnlyLocked(fr memmap.FileRange, only bool) {
	f.memAcct.MutateFullRange(fr, func(seg memAcctIterator) bool {
		seg.ValuePtr().frozenOnly = only
		return true
	})
}

// releaseUnreferenced releases the pages that only freezes had when f was saved. All other
// pages that are accounted have references.
func (f *MemoryFile) releaseUnreferenced() {
	f.mu.Lock()
	var rs []memmap.FileRange
	for maseg := f.memAcct.FirstSegment(); maseg.Ok(); maseg = maseg.NextSegment() {
		f.forEachChunk(maseg.Range(), func(chunk *chunkInfo, fr memmap.FileRange) bool {
			for seg := f.unfreeOf(chunk).LowerBoundSegment(fr.Start); seg.Ok() && seg.Start() < fr.End; seg = seg.NextSegment() {
				if seg.ValuePtr().refs == 0 {
					rs = append(rs, seg.Range().Intersect(fr))
				}
			}
			return true
		})
	}
	for _, fr := range rs {
		f.forEachChunk(fr, func(chunk *chunkInfo, chunkFR memmap.FileRange) bool {
			f.unfreeOf(chunk).MutateFullRange(chunkFR, func(seg unfreeIterator) bool {
				seg.ValuePtr().refs = 1
				return true
			})
			return true
		})
	}
	f.mu.Unlock()
	for _, fr := range rs {
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
