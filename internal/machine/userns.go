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

// UserNamespaces returns nil if this user can make a user namespace and mount in it, and
// otherwise the kernel's reason. It leaves no process behind: the child never executes a
// program.
func UserNamespaces() error {
	cmd := &exec.Cmd{
		Path: "/nonexistent/cove-probe",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
			// Making a new mount namespace private needs a capability inside the
			// user namespace, which some systems deny.
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
		return nil // the namespaces were made, and only the program is missing
	}
	return fmt.Errorf("make a user namespace: %w", err)
}

// NewUserNamespace makes a user namespace that maps count user and group ids, from 0, to
// the ids from first in this namespace. It lives until the file is closed and nothing
// else uses it. Only root may map ids of other users.
func NewUserNamespace(first, count int) (*os.File, error) {
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: count}}
	// A namespace is created together with a process. Its tracer, this thread, stops the
	// process before its first instruction and kills it.
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

// ErrNoOwnerMapping means that the kernel cannot map file owners on a file system.
var ErrNoOwnerMapping = errors.New("the kernel cannot map the owners of files there")

// CloneMapped returns a detached mount of path with everything mounted below it, in which
// files have the same owners in the user namespace ns as on disk. The caller must close
// it. The error is an [ErrNoOwnerMapping] if a file system or the kernel does not support
// this.
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
