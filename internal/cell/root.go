package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// scratch is a file system in memory that only this cell sees.
type scratch struct {
	state  string // gVisor's records
	bundle string
	root   string // the assembled root file system
	writes string // on disk: the cell's directory
	agent  string // the directory with the agent's binary
	mounts []runsc.Mount
}

// setUpMounts separates the cell's mounts from the host's, and mounts a /proc of the
// cell's process-id namespace. Unmounts of the host still apply in the cell, which would
// keep disks busy otherwise; mounts of the cell do not apply on the host.
func setUpMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate mounts from the host's: %w", err)
	}
	err := unix.Mount("proc", procfs.Root, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if errors.Is(err, unix.EPERM) {
		// The kernel shows no more of /proc to this user than there is already. If that has
		// masks, as in a container, the cell works with it.
		if refused := runsc.UseForeignProc(); refused != nil {
			err = fmt.Errorf("%w; %w", err, refused)
		} else {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// setUpScratch mounts a scratch directory with a short path and assembles the sandbox's
// root in it, for the sandbox's user namespace. After an error, nothing is mounted.
func setUpScratch(spec Standby, u *userNS) (s scratch, err error) {
	dir, err := scratchDir(spec)
	if err != nil {
		return s, err
	}
	// The sources are opened first, since the scratch directory may hide them.
	sources, err := openSources(spec.Mounts)
	if err != nil {
		return s, err
	}
	defer closeAll(sources)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return s, fmt.Errorf("mount scratch on %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}()
	s = scratch{
		state:  filepath.Join(dir, "s"),
		bundle: filepath.Join(dir, "b"),
		root:   filepath.Join(dir, "r"),
		writes: filepath.Join(spec.Dir, "writes"),
		agent:  filepath.Join(dir, "a"),
	}
	for _, d := range []string{s.state, s.bundle, s.root, s.agent} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return s, err
		}
	}
	if err := os.MkdirAll(s.writes, 0o700); err != nil {
		return s, err
	}
	if err := u.bind(spec.AgentDir, s.agent); err != nil {
		return s, err
	}
	if err := assembleRoot(spec, u, s.root); err != nil {
		return s, err
	}
	if s.mounts, err = setUpShown(spec.Mounts, sources, u, dir, s.root); err != nil {
		return s, err
	}
	return s, detachUnused(spec, dir)
}

// scratchDir picks a directory that the scratch mount may hide: one that contains nothing
// the cell needs.
func scratchDir(spec Standby) (string, error) {
	needed := neededPaths(spec)
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt", "/run", "/tmp", "/home", "/var"} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || holdsAny(dir, needed) {
			continue
		}
		return dir, nil
	}
	return "", errors.New("found no directory to mount scratch space on: make an empty /mnt")
}

// neededPaths are the paths that the cell uses.
func neededPaths(spec Standby) []string {
	// The gateway reads the host's resolvers from resolv.conf, which may be a link.
	needed := []string{spec.Dir, spec.AgentDir, spec.Root.Dir, "/etc/resolv.conf"}
	for _, b := range spec.Root.Binds {
		needed = append(needed, b.Source)
	}
	if exe, err := os.Executable(); err == nil {
		needed = append(needed, exe)
	}
	return needed
}

func holdsAny(dir string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return isBelowAny(resolved(p), []string{dir}) })
}

// assembleRoot assembles the template and the host's directories at root, read-only.
func assembleRoot(spec Standby, u *userNS, root string) error {
	if err := bindReadOnly(u, spec.Root.Dir, root); err != nil {
		return err
	}
	for _, b := range spec.Root.Binds {
		target := filepath.Join(root, b.Target)
		err := bindReadOnly(u, b.Source, target)
		if b.Mask && errors.Is(err, fs.ErrNotExist) && isGone(target) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func bindReadOnly(u *userNS, source, target string) error {
	if err := u.bind(source, target); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return fmt.Errorf("stat %s: %w", target, err)
	}
	// In a user namespace, the flags of the source must be kept.
	keep := uintptr(st.Flags) & (unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME)
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|keep, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", source, err)
	}
	return nil
}
