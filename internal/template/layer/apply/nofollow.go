package apply

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// pathDir opens a directory and follows no symbolic link. It needs O_PATH: with
// O_DIRECTORY and without O_PATH, gVisor ignores O_NOFOLLOW. Therefore package os, with
// [os.Root] and [os.RemoveAll], follows links there.
func pathDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// OpenDir opens the directory name in the open directory at, to read it and to change its
// attributes. A symbolic link is not followed, even if it replaces the directory
// meanwhile: the error is ENOTDIR then. The caller closes the result.
func OpenDir(at int, name string) (int, error) {
	fd, err := pathDir(at, name)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// RemoveAll removes a name from the open directory at, with everything below it. It
// follows no symbolic link, whatever other processes do meanwhile. It is no error if the
// name does not exist.
func RemoveAll(at int, name string) error {
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, openErr := OpenDir(at, name)
	if errors.Is(openErr, unix.ENOENT) {
		return nil
	}
	if errors.Is(openErr, unix.ENOTDIR) {
		return err
	}
	if openErr != nil {
		return openErr
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for {
		// Read from the start each time, since removing entries moves the others.
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
		names, err := f.Readdirnames(1000)
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		}
		for _, n := range names {
			if err := RemoveAll(fd, n); err != nil {
				return err
			}
		}
	}
}
