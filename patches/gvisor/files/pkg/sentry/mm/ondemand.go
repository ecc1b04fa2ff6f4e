package mm

import (
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// isLoaded returns true if pseg's pages at ar hold their data. ar may reach
// beyond pseg.
//
// Preconditions: mm.activeMu must be locked. pseg.Range() overlaps ar.
func (pseg pmaIterator) isLoaded(ar hostarch.AddrRange) bool {
	mf, ok := pseg.ValuePtr().file.(*pgalloc.MemoryFile)
	return !ok || !mf.IsAsyncLoading() || mf.IsLoaded(pseg.fileRangeOf(pseg.Range().Intersect(ar)))
}

// mapLoadingLocked does what getInternalMappingsLocked does if pseg's file is
// a MemoryFile that is being loaded: it waits for what is at ar, and not for
// all of pseg, which may be the whole heap. Otherwise it returns false.
//
// Preconditions: mm.activeMu must be locked for writing. ar is in pseg.Range().
func (pseg pmaIterator) mapLoadingLocked(ar hostarch.AddrRange) (bool, error) {
	pma := pseg.ValuePtr()
	mf, ok := pma.file.(*pgalloc.MemoryFile)
	if !ok || !mf.IsAsyncLoading() {
		return false, nil
	}
	mask := hostarch.Addr(mf.LoadUnit() - 1)
	unit := hostarch.AddrRange{Start: ar.Start &^ mask, End: ar.End}
	if end := (ar.End + mask) &^ mask; end > ar.End {
		unit.End = end
	}
	if err := mf.AwaitLoad(pseg.fileRangeOf(unit.Intersect(pseg.Range()))); err != nil {
		return true, err
	}
	if pma.internalMappings.IsEmpty() {
		pma.internalMappings = mf.MapInternalUnloaded(pseg.fileRange())
	}
	return true, nil
}
