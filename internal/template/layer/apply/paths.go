package apply

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const maxDepth = 255

// cleanName turns "./etc/hosts" into "etc/hosts", and the root into ".".
func cleanName(name string) (string, error) {
	name = strings.TrimSuffix(name, "/")
	if name == "." {
		return name, nil
	}
	name = strings.TrimPrefix(name, "./")
	if len(name) > unix.PathMax || strings.Count(name, "/") >= maxDepth || strings.IndexByte(name, 0) >= 0 {
		return "", errors.New("the name is too long, too deep, or has a NUL byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return "", errors.New("the name is not clean")
		}
	}
	if strings.HasPrefix(name, StagingPrefix) {
		return "", errors.New("the name is reserved for the preparation of a merge")
	}
	return name, nil
}

// parent opens the directory that contains name, relative to root. It follows no symbolic
// link: a link in the path means that the file system has changed since the merge was
// planned. The caller closes the result.
func parent(root int, name string) (int, string, error) {
	dir, err := pathDir(root, ".")
	if err != nil {
		return -1, "", err
	}
	at, base := path.Split(name)
	for part := range strings.SplitSeq(strings.Trim(at, "/"), "/") {
		if part == "" {
			break
		}
		next, err := pathDir(dir, part)
		_ = unix.Close(dir)
		if err != nil {
			return -1, "", &fs.PathError{Op: "open directory", Path: "/" + at, Err: err}
		}
		dir = next
	}
	return dir, base, nil
}

// lstat describes a name, or returns nil if it does not exist.
func lstat(dir int, name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return &st, err
}

func isDir(st *unix.Stat_t) bool { return st != nil && st.Mode&unix.S_IFMT == unix.S_IFDIR }

// attributes are the metadata of a file.
type attributes struct {
	Mode     uint32
	UID, GID int
	Sec      int64
	Nsec     int64
}

func attributesOf(st *unix.Stat_t) *attributes {
	return &attributes{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}
}

// set applies the attributes to a name, which is in the staging directory or is "." in an
// open directory.
func (a *attributes) set(dir int, name string, link bool) error {
	st, err := lstat(dir, name)
	if err != nil || st == nil {
		return errors.Join(err, errors.New("the file is gone"))
	}
	if int(st.Uid) != a.UID || int(st.Gid) != a.GID {
		if err := unix.Fchownat(dir, name, a.UID, a.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	// After the owner, since chown clears setuid. A symbolic link has no mode.
	if !link {
		if err := unix.Fchmodat(dir, name, a.Mode, 0); err != nil {
			return err
		}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: a.Sec, Nsec: a.Nsec}}
	return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
}
