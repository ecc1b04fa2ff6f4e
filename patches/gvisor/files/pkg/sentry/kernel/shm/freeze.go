package shm

import (
	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// unfreezeLocked returns what of optional may be translated. What the MemoryFile has frozen
// of it is copied first: most mappings of segments are writable, so nothing that is frozen
// is mapped at all; compare tmpfs.
//
// Preconditions: s.dataMu must be locked.
func (s *Shm) unfreezeLocked(required, optional memmap.MappableRange, memCgID uint32) (memmap.MappableRange, error) {
	all := memmap.MappableRange{Start: 0, End: s.effectiveSize}
	if !s.mf.HasFrozen() {
		return optional.Intersect(all), nil
	}
	unit := fsutil.UnfreezeRange(required, optional).Intersect(all)
	_, err := s.data.Unfreeze(unit, s.mf, pgalloc.AllocOpts{Kind: usage.Tmpfs, MemCgID: memCgID})
	return unit, err
}
