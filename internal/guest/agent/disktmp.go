package agent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// tempDir is in memory, unless [useDiskForTemp] was called since the boot.
const tempDir = "/tmp"

// useDiskForTemp moves the sandbox's directory for temporary files to its disk, so
// that its files survive a boot from the files alone. What the disk has there becomes
// visible, and what was made in memory is hidden.
func useDiskForTemp() error {
	var st unix.Statfs_t
	if err := unix.Statfs(tempDir, &st); err != nil {
		return fmt.Errorf("inspect %s: %w", tempDir, err)
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
