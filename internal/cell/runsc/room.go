package runsc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ScanBytes is the disk space, in bytes, that gVisor needs for a moment to find pages of
// zeros: it touches pages, up to one huge page of 2 MiB at a time, and releases them
// again. As much again is reserved for what is written meanwhile.
const ScanBytes = 4 << 20

// RoomError says that there is too little disk space to save a sandbox.
type RoomError struct {
	Need, Free int64 // bytes
}

// Error returns the reason with its figures, for the sandbox's owner.
func (e *RoomError) Error() string {
	return fmt.Sprintf("saving this sandbox takes up to %d MiB of disk space, and %d MiB are free", (e.Need+1<<20-1)>>20, e.Free>>20)
}

// Unwrap makes it [unix.ENOSPC].
func (e *RoomError) Unwrap() error { return unix.ENOSPC }

// RoomToSave returns a [RoomError] if a checkpoint in dir may fill the tmpfs that the
// sandbox writes to: gVisor would die of SIGBUS when it touches a page without room.
// Memory is the memory of gVisor's processes in bytes, with the written files.
func (s *Sandbox) RoomToSave(dir string, memory int64) error {
	var files, target unix.Stat_t
	if err := unix.Fstat(int(s.filestore.Fd()), &files); err != nil {
		return fmt.Errorf("look at the written files: %w", err)
	}
	if err := unix.Stat(dir, &target); err != nil {
		return fmt.Errorf("look at the checkpoint's directory: %w", err)
	}
	need := int64(ScanBytes)
	if files.Dev == target.Dev {
		need += max(memory, files.Blocks*512)
	}
	return s.room(need)
}

// room returns a [RoomError] if the sandbox writes to a tmpfs with less free
// than need, in bytes.
func (s *Sandbox) room(need int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.filestore.Fd()), &st); err != nil {
		return fmt.Errorf("look for disk space: %w", err)
	}
	if st.Type != unix.TMPFS_MAGIC || st.Blocks == 0 { // a tmpfs without blocks is unlimited
		return nil
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return &RoomError{Need: need, Free: free}
	}
	return nil
}
