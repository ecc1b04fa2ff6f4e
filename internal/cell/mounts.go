package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
)

// maxSiblings is the maximum number of entries of a directory in which a mount point is
// made.
const maxSiblings = 4096

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// openSources opens the directories that mounts show; nil stands for a directory in
// memory. A sandbox may change an allowed directory at any moment, so no symbolic link
// is followed.
func openSources(mounts []engine.Mount) (_ []*os.File, err error) {
	files := make([]*os.File, len(mounts))
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for i, m := range mounts {
		if m.Source == "" {
			continue
		}
		fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return files, refuse("what is to be mounted at %s is not there any more, or is no directory: %v", m.Target, err)
		}
		files[i] = os.NewFile(uintptr(fd), m.Source)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// setUpShown binds each mount to a directory of its own in the scratch directory,
// read-only or writable as the mount says, and makes its mount point in the root.
func setUpShown(mounts []engine.Mount, sources []*os.File, u *userNS, dir, root string) ([]runsc.Mount, error) {
	if len(mounts) == 0 {
		return nil, nil
	}
	shown := make([]runsc.Mount, 0, len(mounts))
	for i, m := range mounts {
		r := runsc.Mount{Target: m.Target, Bytes: m.SizeBytes, ReadOnly: m.ReadOnly}
		if sources[i] != nil {
			r.Source = filepath.Join(dir, "m"+strconv.Itoa(i))
			if err := bindShown(sources[i], u, r.Source, m.ReadOnly); err != nil {
				return nil, fmt.Errorf("show %s at %s: %w", m.Source, m.Target, err)
			}
		}
		if err := makeMountPoint(root, m.Target, u.root(), filepath.Join(dir, "p"+strconv.Itoa(i))); err != nil {
			return nil, err
		}
		shown = append(shown, r)
	}
	return shown, nil
}

// bindShown binds an open directory with everything mounted below it.
func bindShown(source *os.File, u *userNS, target string, readOnly bool) error {
	if err := u.checkOwner(source); err != nil {
		return err
	}
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	if err := u.bind("/proc/self/fd/"+strconv.Itoa(int(source.Fd())), target); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	return unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr)
}

// makeMountPoint makes sure that the read-only root has a directory at target. It
// covers the nearest existing directory above target with spare, a directory in memory
// that shows the same entries plus the new directory, which belongs to owner.
func makeMountPoint(root, target string, owner int, spare string) error {
	there, missing, err := splitTarget(root, target)
	if err != nil || missing == "" {
		return err
	}
	if err := showAgain(filepath.Join(root, there), spare); err != nil {
		return fmt.Errorf("make a mount point at %s: %w", target, err)
	}
	made := spare
	for part := range strings.SplitSeq(missing, "/") {
		made = filepath.Join(made, part)
		if err := errors.Join(os.Mkdir(made, 0o755), os.Lchown(made, owner, owner)); err != nil {
			return fmt.Errorf("make a mount point at %s: %w", target, err)
		}
	}
	if err := unix.Mount(spare, filepath.Join(root, there), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("cover /%s: %w", there, err)
	}
	return nil
}

// splitTarget splits a target into the part that exists in root and the part that is
// missing.
func splitTarget(root, target string) (there, missing string, err error) {
	parts := strings.Split(strings.Trim(target, "/"), "/")
	for i, part := range parts {
		info, err := os.Lstat(filepath.Join(root, there, part))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return there, filepath.Join(parts[i:]...), nil
		case err != nil:
			return "", "", err
		case info.Mode()&fs.ModeSymlink != 0:
			return "", "", refuse("mount target %q: %q is a symbolic link in the template; give the path that it leads to", target, "/"+filepath.Join(there, part))
		case !info.IsDir():
			return "", "", refuse("mount target %q: %q is a file in the template; choose another path", target, "/"+filepath.Join(there, part))
		}
		there = filepath.Join(there, part)
	}
	return there, "", nil
}

// showAgain makes the directory to and shows the entries of from in it.
func showAgain(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if len(entries) > maxSiblings {
		return refuse("a mount point cannot be made in a directory of the template with %d entries; choose a target elsewhere, or one that is there already", len(entries))
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if err := showEntry(e, filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	if err := copyOwner(from, to); err != nil {
		return err
	}
	return unix.Chmod(to, st.Mode&0o7777)
}

// copyOwner gives to the owner of from. It does not follow symbolic links.
func copyOwner(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	// An ordinary user cannot give files away.
	_ = os.Lchown(to, int(st.Uid), int(st.Gid))
	return nil
}

func showEntry(e fs.DirEntry, from, to string) error {
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(link, to); err != nil {
			return err
		}
		return copyOwner(from, to)
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	case e.Type().IsRegular():
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
	default:
		return nil // sockets and the like are of no use in a root
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}

// goferRoot is the sandbox's root as gVisor's processes see it.
const goferRoot = "/root"

// deletedBytes returns the size of files in shown directories that were deleted but that
// the process of a directory below /proc still holds open, by mount target. The kernel
// shows the name under which each file was deleted, below its mount point.
func deletedBytes(process string, mounts []engine.Mount) map[string]int64 {
	links, err := filepath.Glob(filepath.Join(process, "fd", "*"))
	if err != nil {
		return nil
	}
	sum := map[string]int64{}
	counted := map[[2]uint64]bool{} // one file may be open several times
	for _, l := range links {
		name, err := os.Readlink(l)
		if err != nil {
			continue
		}
		for _, m := range mounts {
			var st unix.Stat_t
			if m.Source == "" || m.ReadOnly || !strings.HasPrefix(name, goferRoot+m.Target+"/") {
				continue
			}
			if unix.Stat(l, &st) == nil && st.Nlink == 0 && !counted[[2]uint64{st.Dev, st.Ino}] {
				counted[[2]uint64{st.Dev, st.Ino}] = true
				sum[m.Target] += st.Blocks * 512
			}
		}
	}
	return sum
}
