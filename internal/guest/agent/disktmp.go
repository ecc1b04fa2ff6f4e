package agent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// tempDir is in memory, unless [useDiskForTemp] was called since the boot.
const tempDir = "/tmp"

// useDiskForTemp puts the sandbox's directory for temporary files on its disk,
// with what was on the disk there before, so that it outlives a start from files
// alone. What was made there in memory is out of sight then.
func useDiskForTemp() error {
	var st unix.Statfs_t
	if err := unix.Statfs(tempDir, &st); err != nil {
		return fmt.Errorf("look at %s: %w", tempDir, err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		return nil
	}
	if err := unix.Unmount(tempDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", tempDir, err)
	}
	fd, err := unix.Open(tempDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tempDir, err)
	}
	return errors.Join(unix.Fchmod(fd, 0o1777), unix.Close(fd))
}
