package control

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sync"
)

// A save writes all memory while the kernel is paused. With these methods, most of it
// can be written afterwards:
//
//	AccountMemory, then the kernel is paused
//	Freezable     tells what can be written later
//	              the kernel is saved, without some of that
//	Freeze        freezes that; then the kernel is unpaused
//	              it is read from the MemoryFiles, and written
//	Thaw
//
// Freeze comes after the save, and a later save leaves out what is still frozen: its
// references would otherwise be in the saved state, for ever.

// maxFrozenRanges bounds the ranges of a file in a call.
const maxFrozenRanges = 1 << 16

// frozen are the MemoryFiles of which something is frozen, by the number of the call.
var frozen struct {
	mu    sync.Mutex
	files map[uint64][]*pgalloc.MemoryFile // guarded by mu
}

// errNotPaused is returned by methods that need a paused kernel.
var errNotPaused = errors.New("the kernel is not paused")

// AccountMemory finds out which pages are committed. A save reads the others to find out.
func (s *State) AccountMemory(_, _ *struct{}) error {
	for _, mf := range s.Kernel.MemoryFiles(s.Kernel.SupervisorContext()) {
		mf.AccountData()
	}
	return s.Kernel.MemoryFile().UpdateUsageNow()
}

// FreezableOpts are options to Freezable.
type FreezableOpts struct {
	// MaxRanges is how many ranges of a file are returned, the longest ones if there are more.
	MaxRanges int `json:"max_ranges"`
}

// FileRanges are ranges of a MemoryFile.
type FileRanges struct {
	// Device and Inode are those of the file.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`

	// Ranges are starts and ends of ranges of the file, sorted. They do not touch
	// each other.
	Ranges []uint64 `json:"ranges"`
}

// FreezableResult is the result of Freezable.
type FreezableResult struct {
	// Files are the main MemoryFile, and then others.
	Files []FileRanges `json:"files"`
}

// Freezable returns the ranges of MemoryFiles that Freeze can freeze: those that programs
// have as private memory, and those with data of files and of shared memory.
func (s *State) Freezable(o *FreezableOpts, r *FreezableResult) error {
	mms := s.Kernel.PausedMemoryManagers()
	if mms == nil {
		return errNotPaused
	}
	for i, mf := range s.Kernel.MemoryFiles(s.Kernel.SupervisorContext()) {
		var st unix.Stat_t
		if err := unix.Fstat(mf.FD(), &st); err != nil {
			return err
		}
		var rs []memmap.FileRange
		if i == 0 {
			for _, m := range mms {
				rs = m.AppendFreezable(rs)
			}
		}
		if !anyPinned(mms) {
			rs = mf.AppendFileRanges(rs)
		}
		rs = pgalloc.JoinRanges(rs)
		if most := max(0, min(o.MaxRanges, maxFrozenRanges)); len(rs) > most {
			sort.Slice(rs, func(i, j int) bool { return rs[i].Length() > rs[j].Length() })
			rs = pgalloc.JoinRanges(rs[:most])
		}
		r.Files = append(r.Files, FileRanges{Device: uint64(st.Dev), Inode: st.Ino, Ranges: flatten(rs)})
	}
	return nil
}

// anyPinned returns true if devices may write to pages of files that are mapped.
func anyPinned(mms []*mm.MemoryManager) bool {
	return slices.ContainsFunc(mms, (*mm.MemoryManager).HasPinned)
}

// FreezeOpts are options to Freeze.
type FreezeOpts struct {
	// ID is a number by which Thaw knows what this call freezes.
	ID uint64 `json:"id"`

	// Files are to be frozen. They are as in FreezableResult.
	Files []FileRanges `json:"files"`
}

// FreezeResult is the result of Freeze.
type FreezeResult struct {
	// Whole is whether all ranges are frozen. Others are when no program has them as
	// private memory, and no file.
	Whole bool `json:"whole"`
}

// Freeze keeps ranges of MemoryFiles as they are until Thaw: programs that write to their
// memory in them get copies, and so do files. Of what is frozen already, more can be frozen.
func (s *State) Freeze(o *FreezeOpts, r *FreezeResult) error {
	mms := s.Kernel.PausedMemoryManagers()
	if mms == nil {
		return errNotPaused
	}
	frozen.mu.Lock()
	defer frozen.mu.Unlock()
	if _, ok := frozen.files[o.ID]; ok {
		return fmt.Errorf("memory is frozen as %d already", o.ID)
	}
	asked := make(map[[2]uint64][]memmap.FileRange)
	for _, f := range o.Files {
		rs, err := unflatten(f.Ranges)
		if err != nil {
			return err
		}
		asked[[2]uint64{f.Device, f.Inode}] = rs
	}
	defer func() {
		for _, m := range mms {
			m.InvalidateFrozen()
		}
	}()
	found := 0
	r.Whole = true
	for i, mf := range s.Kernel.MemoryFiles(s.Kernel.SupervisorContext()) {
		var st unix.Stat_t
		if err := unix.Fstat(mf.FD(), &st); err != nil {
			return err
		}
		rs, ok := asked[[2]uint64{uint64(st.Dev), st.Ino}]
		if !ok {
			continue
		}
		found++
		var all []memmap.FileRange
		if !anyPinned(mms) {
			all = append(all, mf.FreezeFiles(o.ID, rs)...)
		}
		if i == 0 {
			var held []memmap.FileRange
			for _, m := range mms {
				held = m.FreezeRanges(rs, held)
			}
			mf.HoldMemory(o.ID, held)
			all = append(all, held...)
		}
		if len(all) != 0 {
			if frozen.files == nil {
				frozen.files = make(map[uint64][]*pgalloc.MemoryFile)
			}
			frozen.files[o.ID] = append(frozen.files[o.ID], mf)
		}
		r.Whole = r.Whole && len(subtractRanges(rs, pgalloc.JoinRanges(all))) == 0
	}
	r.Whole = r.Whole && found == len(asked)
	return nil
}

// ThawOpts are options to Thaw.
type ThawOpts struct {
	// Keep are the numbers of calls of Freeze that Thaw does not end.
	Keep []uint64 `json:"keep"`
}

// Thaw ends all calls of Freeze but those of Keep.
func (s *State) Thaw(o *ThawOpts, _ *struct{}) error {
	frozen.mu.Lock()
	defer frozen.mu.Unlock()
	for id, files := range frozen.files {
		if slices.Contains(o.Keep, id) {
			continue
		}
		for _, mf := range files {
			mf.Thaw(id)
		}
		delete(frozen.files, id)
	}
	return nil
}

// subtractRanges returns what of rs is not in others. Both are sorted, and the ranges of
// each do not overlap.
func subtractRanges(rs, others []memmap.FileRange) []memmap.FileRange {
	var left []memmap.FileRange
	for _, fr := range rs {
		for len(others) > 0 && others[0].End <= fr.Start {
			others = others[1:]
		}
		for _, other := range others {
			if other.Start >= fr.End {
				break
			}
			if other.Start > fr.Start {
				left = append(left, memmap.FileRange{Start: fr.Start, End: other.Start})
			}
			fr.Start = min(other.End, fr.End)
		}
		if fr.Start < fr.End {
			left = append(left, fr)
		}
	}
	return left
}

func flatten(rs []memmap.FileRange) []uint64 {
	flat := make([]uint64, 0, 2*len(rs))
	for _, fr := range rs {
		flat = append(flat, fr.Start, fr.End)
	}
	return flat
}

// unflatten returns an error unless the ranges are page-aligned, sorted and apart.
func unflatten(flat []uint64) ([]memmap.FileRange, error) {
	if len(flat)%2 != 0 || len(flat) > 2*maxFrozenRanges {
		return nil, fmt.Errorf("%d numbers are no ranges", len(flat))
	}
	rs := make([]memmap.FileRange, 0, len(flat)/2)
	end := uint64(0)
	for ; len(flat) > 0; flat = flat[2:] {
		fr := memmap.FileRange{Start: flat[0], End: flat[1]}
		if fr.Start >= fr.End || fr.Start < end || !hostarch.IsPageAligned(fr.Start) || !hostarch.IsPageAligned(fr.End) {
			return nil, fmt.Errorf("invalid range %v", fr)
		}
		end = fr.End
		rs = append(rs, fr)
	}
	return rs, nil
}
