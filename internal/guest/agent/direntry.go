package agent

import (
	"cmp"
	"crypto/rand"
	"errors"
	"os"
	"path"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// dirEntry is a name in an open directory. Programs in the sandbox cannot redirect it
// by changing the path of that directory.
type dirEntry struct {
	dir  int
	name string
}

func (p dirEntry) close() { _ = unix.Close(p.dir) }

// openEntry opens the directory that path is in; path is clean and not "/".
func openEntry(file string) (dirEntry, error) {
	dir, name := path.Split(file)
	return openEntryAt(unix.AT_FDCWD, dir, name)
}

func openEntryAt(at int, dir, name string) (dirEntry, error) {
	fd, err := unix.Openat(at, cmp.Or(dir, "."), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return dirEntry{}, err
	}
	return dirEntry{dir: fd, name: name}, nil
}

func (p dirEntry) lstat() (st unix.Stat_t, err error) {
	err = unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// follow resolves p while it is a symbolic link. It closes p unless it returns p.
func (p dirEntry) follow() (dirEntry, error) {
	for range 40 { // what Linux allows
		st, err := p.lstat()
		if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return p, nil
		}
		var next dirEntry
		if err == nil {
			next, err = p.target()
		}
		p.close()
		if err != nil {
			return dirEntry{}, err
		}
		p = next
	}
	p.close()
	return dirEntry{}, unix.ELOOP
}

// target opens the entry that p, a symbolic link, points to.
func (p dirEntry) target() (dirEntry, error) {
	target, err := readSymlink(p.dir, p.name)
	if err != nil {
		return dirEntry{}, err
	}
	// Not cleaned: the kernel decides what ".." means.
	dir, name := path.Split(strings.TrimRight(target, "/"))
	if name == "" || name == "." || name == ".." {
		return dirEntry{}, unix.EISDIR
	}
	return openEntryAt(p.dir, dir, name)
}

// tempPrefix and tempSuffix mark the names of temporary files.
const tempPrefix, tempSuffix = ".cove-", ".tmp"

func tempName() string { return tempPrefix + strings.ToLower(rand.Text()) + tempSuffix }

func isTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

// createTemp makes a new, empty file in the directory of p that only its owner can read.
func (p dirEntry) createTemp() (*os.File, string, error) {
	name := tempName()
	fd, err := unix.Openat(p.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), name), name, nil
}

// makeDir makes the directory p, which only the agent's user may enter, and opens it.
// Owner and mode are then set through the descriptor: code that may write to the parent
// directory could replace the name in the meantime.
func (p dirEntry) makeDir() (int, error) {
	if p.name == "" { // the root
		return -1, unix.EEXIST
	}
	if err := unix.Mkdirat(p.dir, p.name, 0o700); err != nil {
		return -1, err
	}
	fd, err := apply.OpenDir(p.dir, p.name)
	if err == nil {
		if err = isNew(fd); err == nil {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	return -1, fail(connect.CodeAborted, "the new directory %s was replaced by another program at once; try again", p.name)
}

// isNew fails unless an open directory looks newly made: owned by this process's
// user, closed to others, and empty.
func isNew(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var buf [1 << 10]byte
	n, err := unix.ReadDirent(fd, buf[:])
	if err != nil {
		return err
	}
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	if int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o700 || len(names) > 0 {
		return unix.EEXIST
	}
	return nil
}

// replace renames the file temp to p. With exclusive set it fails with EEXIST if p
// exists.
func (p dirEntry) replace(temp string, exclusive bool) error {
	if !exclusive {
		return unix.Renameat(p.dir, temp, p.dir, p.name)
	}
	return renameNew(p.dir, temp, p.dir, p.name)
}

// renameNew renames a file unless the new name is taken.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	// Not every file system supports RENAME_NOREPLACE. EINVAL may also mean that a
	// directory is moved into itself; then the rename below fails.
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err == nil {
		return unix.Unlinkat(fromDir, from, 0)
	} else if errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(toDir, to, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	}
	return unix.Renameat(fromDir, from, toDir, to)
}
