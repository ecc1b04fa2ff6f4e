package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// reflink tries to make one file share another's blocks. The files have no names, so
// nothing is left behind.
func (p probe) reflink() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "reflink", Status: sandbox.CheckOK}
	switch err := tryReflink(nearest(p.stateDir)); {
	case err == nil:
		c.Detail = "file copies share their blocks"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EXDEV):
		c.Detail = "not supported by this file system, so copies take time and space (XFS and btrfs support it)"
		c.Fix = p.offerReflink()
	default:
		c.Detail = "could not be tested: " + cause(err)
	}
	return c
}

func tryReflink(dir string) error {
	from, err := unnamed(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := unnamed(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := from.Write(make([]byte, 4096)); err != nil {
		return err
	}
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
}

func unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// leastReflinkGiB is the smallest disk that is offered. XFS takes 300 MiB or more.
const leastReflinkGiB = 4

// plainPath matches paths that mean the same in a shell and in /etc/fstab.
var plainPath = lazyregexp.New(`^/[A-Za-z0-9._/-]+$`)

// offerReflink returns what gives the state directory a file system whose files share
// blocks, of half of the free disk; empty if this user or this machine cannot have one.
func (p probe) offerReflink() string {
	var st unix.Statfs_t
	dir := filepath.Clean(p.stateDir)
	if !p.root || !plainPath.MatchString(dir) || unix.Statfs(nearest(dir), &st) != nil {
		return ""
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil { // as in many containers
		return ""
	}
	gib := int64(st.Bavail) * st.Bsize >> 31
	if gib < leastReflinkGiB {
		return ""
	}
	commands := reflinkCommands(dir, gib)
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		commands = "apt install xfsprogs && " + commands
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Sprintf("forks, pauses and snapshots of sandboxes that wrote much are faster on XFS: end the daemon, run \"mv %[1]s %[1]s.old\", then %q, then \"cp -a %[1]s.old/. %[1]s\"; see docs/server.md", dir, commands)
	}
	return fmt.Sprintf("forks, pauses and snapshots of sandboxes that wrote much are faster on XFS: run %q; see docs/server.md", commands)
}

// reflinkCommands returns commands of a shell that make an XFS disk of so many GiB in the
// file DIR.xfs, mount it at DIR now and whenever the machine starts. The file's room is
// allocated: XFS takes errors of the disk below for damage, such as no room for a block
// that it was promised.
func reflinkCommands(dir string, gib int64) string {
	image := dir + ".xfs"
	return fmt.Sprintf("fallocate -l %dG %s && mkfs.xfs -q %s && mkdir -p %s && mount -o loop %s %s && chmod 700 %s && echo '%s %s xfs loop,nofail 0 0' >>/etc/fstab",
		gib, image, image, dir, image, dir, dir, image, dir)
}
