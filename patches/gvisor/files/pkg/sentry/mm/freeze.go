package mm

import (
	"sort"

	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// A frozen range of programs' memory in the main MemoryFile is not written to until it is
// thawed: all private pmas in it are copy-on-write, as after Fork, and there is one more
// reference on it for each of them, as if a child of Fork held it. It may be frozen again
// before it is thawed. What is frozen of files
// is copied by what Translate does; see MemoryFile.FreezeFiles.

// freezableLocked returns true if Fork would make pseg copy-on-write as a whole. It
// differs from Fork only in that it leaves out all of a pma with a pinned page,
// where Fork leaves out that page.
//
// Preconditions: mm.activeMu must be locked.
func (mm *MemoryManager) freezableLocked(pseg pmaIterator) bool {
	pma := pseg.ValuePtr()
	if !pma.private {
		return false
	}
	if mm.hasPinned && !pma.needCOW {
		if _, shared := mm.mf.FirstSharedRange(pseg.fileRange()); shared {
			return false
		}
	}
	return true
}

// AppendFreezable appends to rs what FreezeRanges could freeze of mm's memory.
func (mm *MemoryManager) AppendFreezable(rs []memmap.FileRange) []memmap.FileRange {
	mm.activeMu.RLock()
	defer mm.activeMu.RUnlock()
	for pseg := mm.pmas.FirstSegment(); pseg.Ok(); pseg = pseg.NextSegment() {
		if mm.freezableLocked(pseg) {
			rs = append(rs, pseg.fileRange())
		}
	}
	return rs
}

// FreezeRanges makes mm's private memory in rs copy-on-write, and appends the ranges
// on which it has taken a reference to held.
//
// Preconditions: rs is sorted, its ranges are page-aligned and do not overlap. The
// kernel is paused.
func (mm *MemoryManager) FreezeRanges(rs, held []memmap.FileRange) []memmap.FileRange {
	mm.mappingMu.RLock()
	defer mm.mappingMu.RUnlock()
	mm.activeMu.Lock()
	defer mm.activeMu.Unlock()
	// As in Fork, only what was writable is unmapped, in as few calls as possible. What
	// is between is unmapped too, unless it is large: it is mapped again when it is
	// touched, while each hole is one more mapping of the host, which bounds them.
	var unmapAR hostarch.AddrRange
	for pseg := mm.pmas.FirstSegment(); pseg.Ok(); pseg = pseg.NextSegment() {
		if !mm.freezableLocked(pseg) {
			continue
		}
		fr := firstOverlap(rs, pseg.fileRange())
		if fr.Length() == 0 {
			continue
		}
		// What follows fr in the pma is visited next.
		start := pseg.Start() + hostarch.Addr(fr.Start-pseg.ValuePtr().off)
		pseg = mm.pmas.Isolate(pseg, hostarch.AddrRange{Start: start, End: start + hostarch.Addr(fr.Length())})
		if pma := pseg.ValuePtr(); !pma.needCOW {
			pma.needCOW = true
			if pma.effectivePerms.Write {
				if unmapAR.Length() != 0 && pseg.Start()-unmapAR.End <= hostarch.HugePageSize {
					unmapAR.End = pseg.End()
				} else {
					mm.unmapASLocked(unmapAR)
					unmapAR = pseg.Range()
				}
				pma.effectivePerms.Write = false
			}
			pma.maxPerms.Write = false
		}
		mm.mf.IncRef(fr, 0 /* memCgID */)
		held = append(held, fr)
	}
	mm.unmapASLocked(unmapAR)
	return held
}

// HasPinned returns true if pages of mm may be pinned: these are written to whatever is
// frozen.
func (mm *MemoryManager) HasPinned() bool {
	mm.activeMu.RLock()
	defer mm.activeMu.RUnlock()
	return mm.hasPinned
}

// InvalidateFrozen invalidates translations to what MemoryFiles have frozen of files.
func (mm *MemoryManager) InvalidateFrozen() {
	mm.activeMu.Lock()
	defer mm.activeMu.Unlock()
	var ars []hostarch.AddrRange
	for pseg := mm.pmas.FirstSegment(); pseg.Ok(); pseg = pseg.NextSegment() {
		pma := pseg.ValuePtr()
		mf, ok := pma.file.(*pgalloc.MemoryFile)
		if pma.private || !ok {
			continue
		}
		if _, frozen := mf.FrozenPart(pseg.fileRange()); !frozen {
			continue
		}
		if last := len(ars) - 1; last >= 0 && ars[last].End == pseg.Start() {
			ars[last].End = pseg.End()
		} else {
			ars = append(ars, pseg.Range())
		}
	}
	for _, ar := range ars {
		mm.invalidateLocked(ar, false /* invalidatePrivate */, true /* invalidateShared */)
	}
}

// firstOverlap returns the first part of fr that is in rs, which is sorted.
func firstOverlap(rs []memmap.FileRange, fr memmap.FileRange) memmap.FileRange {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].End > fr.Start })
	if i == len(rs) || rs[i].Start >= fr.End {
		return memmap.FileRange{}
	}
	return rs[i].Intersect(fr)
}
