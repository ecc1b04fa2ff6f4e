package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// maxTreeDepth bounds how deep directories are followed.
const maxTreeDepth = 200

// copyTree copies a file, directory or link with its owner, mode and times. It works
// on descriptors: other programs may be able to write to either directory, and a name
// may mean another file from one system call to the next.
func copyTree(ctx context.Context, from, to dirEntry, depth int) error {
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	if depth > maxTreeDepth {
		return invalid("%s is nested too deep to be moved to another file system", from.name)
	}
	st, err := from.lstat()
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return copyLink(from, to, &st)
	case unix.S_IFDIR:
		return copyDir(ctx, from, to, depth)
	case unix.S_IFREG:
		return copyFile(from, to)
	}
	return invalid("%s is neither file, directory nor link, so it cannot be moved to another file system; delete it first", from.name)
}

func copyLink(from, to dirEntry, st *unix.Stat_t) error {
	target, err := readSymlink(from.dir, from.name)
	if err != nil {
		return err
	}
	fd, err := newSymlink(target, to.dir, to.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return keepOwner(unix.Fchownat(fd, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH))
}

func copyDir(ctx context.Context, from, to dirEntry, depth int) error {
	src, err := openDir(from.dir, from.name)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := to.makeDir()
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	for {
		names, err := src.Readdirnames(256)
		for _, name := range names {
			if err := copyTree(ctx, dirEntry{int(src.Fd()), name}, dirEntry{dst, name}, depth+1); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return copyAttributes(int(src.Fd()), dst)
		}
		if err != nil {
			return err
		}
	}
}

func copyFile(from, to dirEntry) error {
	src, _, err := openRegular(from.dir, from.name, from.name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := unix.Openat(to.dir, to.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), to.name)
	_, err = io.Copy(dst, src)
	if err == nil {
		err = copyAttributes(int(src.Fd()), fd)
	}
	return errors.Join(err, dst.Close())
}

// copyAttributes gives an open file the owner, mode and times of another.
func copyAttributes(from, to int) error {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if err := keepOwner(unix.Fchown(to, int(st.Uid), int(st.Gid))); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	times := [2]unix.Timespec{st.Atim, st.Mtim}
	// Without a name the call applies to the descriptor. Package unix has no such function.
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(to), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// keepOwner ignores that an agent that is not root cannot change owners.
func keepOwner(err error) error {
	if os.Geteuid() != 0 && errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// openDir opens the directory name in the directory at. It does not follow a link.
func openDir(at int, name string) (*os.File, error) {
	fd, err := apply.OpenDir(at, name)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
