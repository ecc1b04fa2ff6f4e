package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
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
