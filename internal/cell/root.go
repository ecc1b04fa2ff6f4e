package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
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

// setUpMounts makes the cell's mount namespace its own, with a /proc of its own
// process ids. What the host unmounts goes from the cell too, which would keep
// the disk in use otherwise; nothing goes the other way.
func setUpMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc (is /proc masked, as in a container?): %w", err)
	}
	return nil
}

// setUpScratch mounts a scratch directory with a short name and puts the
// sandbox's root together in it, for the user namespace of the sandbox. An error
// leaves nothing mounted.
func setUpScratch(spec Standby, u *userNS) (s scratch, err error) {
	dir, err := scratchDir(spec)
	if err != nil {
		return s, err
	}
	// What is shown is opened before the scratch space may hide it.
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
	return s, letGo(spec, dir)
}

// scratchDir picks a directory to hide under the scratch mount: one that holds
// nothing the cell needs.
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

// neededPaths are what the cell uses by name.
func neededPaths(spec Standby) []string {
	// The gateway asks the host's resolvers, which a link may name.
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
	for _, p := range paths {
		if resolved, err := filepath.EvalSymlinks(p); err == nil {
			p = resolved
		}
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// assembleRoot puts the template and the host's directories together at root,
// read-only.
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
	// In a user namespace, flags that the source has must stay.
	keep := uintptr(st.Flags) & (unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME)
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|keep, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", source, err)
	}
	return nil
}
