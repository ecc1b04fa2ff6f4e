package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// UserNamespaces returns nil if this user can make a user namespace in which
// it may mount, and otherwise the kernel's reason. No process stays behind: the
// child never gets as far as running a program.
func UserNamespaces() error {
	cmd := &exec.Cmd{
		Path: "/nonexistent/cove-probe",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
			// A new mount namespace, made private, needs a capability inside
			// the user namespace, which some systems take away.
			Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		},
	}
	err := cmd.Start()
	if err == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil
	}
	if errors.Is(err, syscall.ENOENT) {
		return nil // all namespaces were made; only the program is missing
	}
	return fmt.Errorf("make a user namespace: %w", err)
}

// NewUserNamespace makes a user namespace that maps the user and group ids from
// 0 to count ids of this one from first. It lives until the file is closed and
// nothing else uses it. Only root may map ids that are not its own.
func NewUserNamespace(first, count int) (*os.File, error) {
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: count}}
	// A namespace begins with a process: one that its tracer, this thread, stops
	// before its first instruction, and ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"cove-userns"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping,
			Ptrace: true, Pdeathsig: unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	ns, err := os.Open(filepath.Join("/proc", strconv.Itoa(p.Pid), "ns/user"))
	killErr := p.Kill()
	_, waitErr := p.Wait()
	if err := errors.Join(err, killErr, waitErr); err != nil {
		if ns != nil {
			ns.Close()
		}
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	return ns, nil
}

// ErrNoOwnerMapping says that the kernel cannot map the owners of files on a
// file system.
var ErrNoOwnerMapping = errors.New("the kernel cannot map the owners of files there")

// CloneMapped returns a mount that is attached nowhere and shows path, with all
// that is mounted below it. Files have the owners in the user namespace ns that
// they have on the disk. The caller closes it. The error is an
// [ErrNoOwnerMapping] where a file system or the kernel does not support that.
func CloneMapped(path string, ns *os.File) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("clone the mount of %s: %w", path, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w: %w", path, ErrNoOwnerMapping, err)
	}
	return fd, nil
}
