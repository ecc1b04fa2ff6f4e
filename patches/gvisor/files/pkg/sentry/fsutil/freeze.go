package fsutil

import (
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// maxUnfreezeBytes is how much is copied at once.
const maxUnfreezeBytes = hostarch.HugePageSize

// Unfreeze replaces what is frozen of mr by copies. It returns true if there was any. After
// an error, some of it may be replaced.
//
// Preconditions: mr is page-aligned. No writable translations to what is frozen exist.
func (s *FileRangeSet) Unfreeze(mr memmap.MappableRange, mf *pgalloc.MemoryFile, opts pgalloc.AllocOpts) (bool, error) {
	any := false
	for seg := s.LowerBoundSegment(mr.Start); seg.Ok() && seg.Start() < mr.End; {
		part, frozen := mf.FrozenPart(seg.FileRangeOf(seg.Range().Intersect(mr)))
		if !frozen {
			seg = seg.NextSegment()
			continue
		}
		any = true
		part.End = min(part.End, part.Start+maxUnfreezeBytes)
		to, err := mf.Copy(part, opts)
		if err != nil {
			return any, err
		}
		start := seg.Start() + (part.Start - seg.Value())
		seg = s.Isolate(seg, memmap.MappableRange{Start: start, End: start + part.Length()})
		seg.SetValue(to.Start)
		mf.DecRef(part)
		// What follows is in seg now, or in the next segment.
		seg = s.Unisolate(seg)
	}
	return any, nil
}

// UnfreezeRange returns what of optional Translate should give to a mapping that needs
// required: what is copied together.
func UnfreezeRange(required, optional memmap.MappableRange) memmap.MappableRange {
	unit := memmap.MappableRange{Start: hostarch.HugePageRoundDown(required.Start), End: required.End}
	if end, ok := hostarch.HugePageRoundUp(required.End); ok {
		unit.End = end
	}
	return unit.Intersect(optional)
}
