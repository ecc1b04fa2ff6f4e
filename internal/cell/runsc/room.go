package runsc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ScanBytes is the disk space, in bytes, that gVisor temporarily needs to find pages of
// zeros: it touches pages, up to one huge page of 2 MiB at a time, and releases them
// again. The same amount is reserved for what is written meanwhile.
const ScanBytes = 4 << 20

// RoomError means that there is too little disk space to save a sandbox.
type RoomError struct {
	Need, Free int64 // bytes
}

// Error returns the reason, with its numbers, for the sandbox's owner.
func (e *RoomError) Error() string {
	return fmt.Sprintf("saving this sandbox takes up to %d MiB of disk space, and %d MiB are free", (e.Need+1<<20-1)>>20, e.Free>>20)
}

// Unwrap returns [unix.ENOSPC].
func (e *RoomError) Unwrap() error { return unix.ENOSPC }

// RoomToSave returns a [RoomError] if a checkpoint in dir may fill the tmpfs that the
// sandbox writes to: gVisor would die of SIGBUS when it touches a page for which there is
// no space. memory is the memory of gVisor's processes in bytes, including the written
// files.
func (s *Sandbox) RoomToSave(dir string, memory int64) error {
	var files, target unix.Stat_t
	if err := unix.Fstat(int(s.filestore.Fd()), &files); err != nil {
		return fmt.Errorf("stat the file of writes: %w", err)
	}
	if err := unix.Stat(dir, &target); err != nil {
		return fmt.Errorf("stat the checkpoint's directory: %w", err)
	}
	need := int64(ScanBytes)
	if files.Dev == target.Dev {
		need += max(memory, files.Blocks*512)
	}
	return s.room(need)
}

// reservation reserves the disk space of a checkpoint's written files for a sandbox that
// continues from it: they are loaded when they are touched, and the disk may be full by
// then.
type reservation struct {
	dev, ino uint64 // of the sandbox's file of writes
	ranges   []pageRange
}

// reservation returns the disk space that the sandbox needs to continue from the
// checkpoint in dir.
func (s *Sandbox) reservation(dir string) (*reservation, error) {
	table, _, err := readFilesTable(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // earlier versions did not keep it
	}
	if err != nil {
		return nil, err
	}
	ranges, _, err := parseTable(table, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.filestore.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat the file of writes: %w", err)
	}
	r := &reservation{dev: st.Dev, ino: st.Ino}
	for _, next := range ranges {
		if last := len(r.ranges) - 1; last >= 0 && r.ranges[last].End == next.Start {
			r.ranges[last].End = next.End
			continue
		}
		r.ranges = append(r.ranges, next)
	}
	return r, nil
}

// make reserves the space if fd, which gVisor is about to load, is the file of writes.
func (r *reservation) make(fd int, st *unix.Stat_t) error {
	if r == nil || st.Dev != r.dev || st.Ino != r.ino {
		return nil
	}
	for _, at := range r.ranges {
		err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, at.Start, at.End-at.Start)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // the file system does not support reservations
		}
		if err != nil {
			return fmt.Errorf("reserve disk space for the written files: %w", err)
		}
	}
	return nil
}

// FreeDisk returns how many bytes are free on the disk that the sandbox writes to, and
// false if that is unknown, or if it is in memory. It may be called at any time.
func (s *Sandbox) FreeDisk() (free int64, onDisk bool) {
	var st unix.Statfs_t
	if unix.Fstatfs(int(s.filestore.Fd()), &st) != nil || st.Type == unix.TMPFS_MAGIC {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}

// room returns a [RoomError] if the sandbox writes to a tmpfs that has less than need
// bytes free.
func (s *Sandbox) room(need int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.filestore.Fd()), &st); err != nil {
		return fmt.Errorf("check disk space: %w", err)
	}
	if st.Type != unix.TMPFS_MAGIC || st.Blocks == 0 { // a tmpfs without blocks is unlimited
		return nil
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return &RoomError{Need: need, Free: free}
	}
	return nil
}
