package tmpfs

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/usermem"
)

// What a file's MemoryFile has frozen is not written to, and it is mapped only for
// reading, as long as nobody has a writable mapping of the file. Before it is written to,
// the file gets a copy:
//
//   - by a system call: unfreeze, which also invalidates translations to what is frozen;
//   - by a mapping: translateFrozenLocked, which cannot do that, since other
//     MemoryManagers' locks come before dataMu. So while there are writable mappings,
//     nothing that is frozen is mapped at all: AddMapping invalidates all when it adds the
//     first one, and Translate copies before it maps, if only for reading.

// writeUnfreezeBytes is around what is written copied too, and how much is written
// before more is copied.
const writeUnfreezeBytes = 64 << 10

func (rf *regularFile) unfreezeOpts(memCgID uint32) pgalloc.AllocOpts {
	return pgalloc.AllocOpts{
		Kind:    rf.memoryUsageKind,
		MemCgID: memCgID,
		Huge:    rf.huge && rf.inode.fs.mf.HugepagesEnabled(),
	}
}

// unfreeze copies what is frozen of mr, so that it can be written to.
//
// Preconditions: rf.inode.mu must be locked. mr is page-aligned.
func (rf *regularFile) unfreeze(mr memmap.MappableRange, memCgID uint32) error {
	rf.mapsMu.Lock()
	defer rf.mapsMu.Unlock()
	rf.dataMu.Lock()
	any, err := rf.data.Unfreeze(mr, rf.inode.fs.mf, rf.unfreezeOpts(memCgID))
	rf.dataMu.Unlock()
	if any {
		rf.mappings.Invalidate(mr, memmap.InvalidateOpts{})
	}
	return err
}

// unfreezeEnd prepares for truncation, which zeroes what follows the new end in its
// page.
//
// Preconditions: rf.inode.mu must be locked.
func (rf *regularFile) unfreezeEnd(newSize, oldSize uint64) error {
	if newSize >= oldSize || hostarch.IsPageAligned(newSize) || !rf.inode.fs.mf.HasFrozen() {
		return nil
	}
	start := hostarch.PageRoundDown(newSize)
	return rf.unfreeze(memmap.MappableRange{Start: start, End: start + hostarch.PageSize}, 0)
}

// copyIn writes src to the file.
//
// Preconditions: rw.file.inode.mu must be locked.
func (rw *regularFileReadWriter) copyIn(ctx context.Context, src usermem.IOSequence) (int64, error) {
	done := int64(0)
	for src.NumBytes() != 0 && rw.file.inode.fs.mf.HasFrozen() {
		start := rw.off &^ (writeUnfreezeBytes - 1)
		end := start + writeUnfreezeBytes
		if end < start {
			break // beyond what any file has
		}
		if err := rw.file.unfreeze(memmap.MappableRange{Start: start, End: end}, rw.memCgID); err != nil {
			if done != 0 {
				err = nil
			}
			return done, err
		}
		piece := src.TakeFirst64(int64(end - rw.off))
		n, err := piece.CopyInTo(ctx, rw)
		done += n
		if err != nil || n < piece.NumBytes() {
			return done, err
		}
		src = src.DropFirst64(n)
	}
	if src.NumBytes() == 0 {
		return done, nil
	}
	n, err := src.CopyInTo(ctx, rw)
	return done + n, err
}

// translateFrozenLocked returns what of optional may be translated for an access, and for
// which accesses.
//
// Preconditions: rf.dataMu must be locked for writing.
func (rf *regularFile) translateFrozenLocked(required, optional memmap.MappableRange, at hostarch.AccessType, memCgID uint32) (memmap.MappableRange, hostarch.AccessType, error) {
	unit := fsutil.UnfreezeRange(required, optional)
	if !at.Write && rf.writableMappingPages == 0 {
		return unit, hostarch.ReadExecute, nil
	}
	_, err := rf.data.Unfreeze(unit, rf.inode.fs.mf, rf.unfreezeOpts(memCgID))
	if err != nil {
		unit = required
		_, err = rf.data.Unfreeze(unit, rf.inode.fs.mf, rf.unfreezeOpts(memCgID))
	}
	return unit, hostarch.AnyAccess, err
}

// invalidateFrozen invalidates all translations if the file has anything that is frozen.
//
// Preconditions: rf.mapsMu must be locked.
func (rf *regularFile) invalidateFrozen() {
	if rf.inode.fs.mf.HasFrozen() && rf.hasFrozen() {
		rf.mappings.InvalidateAll(memmap.InvalidateOpts{})
	}
}

func (rf *regularFile) hasFrozen() bool {
	rf.dataMu.RLock()
	defer rf.dataMu.RUnlock()
	for seg := rf.data.FirstSegment(); seg.Ok(); seg = seg.NextSegment() {
		if _, frozen := rf.inode.fs.mf.FrozenPart(seg.FileRange()); frozen {
			return true
		}
	}
	return false
}
