package runsc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/cove-sh/cove/internal/machine/procfs"
)

// procDirs is what container.Args implements where gVisor has the patch that lets it find
// processes in the /proc of another process-id namespace.
type procDirs interface {
	SetProcDir(dir func(pid int) string)
}

// WorksInForeignProc reports whether gVisor in this program has the patches of
// patches/gvisor that let it work with the /proc of a container.
func WorksInForeignProc() bool {
	_, ok := any(container.Args{}).(procDirs)
	return ok
}

// UseForeignProc makes gVisor work with the /proc that this process sees, which belongs to
// a process-id namespace above its own. It must be called before [Create].
func UseForeignProc() error {
	args, ok := any(container.Args{}).(procDirs)
	if !ok {
		return errors.New("gVisor in this program is not patched to work with the /proc of a container (use a program built with 'make build')")
	}
	if _, err := procfs.Own(); err != nil {
		return fmt.Errorf("read /proc: %w", err)
	}
	args.SetProcDir(func(pid int) string {
		dir, err := procfs.Dir(pid)
		if err != nil {
			return filepath.Join(procfs.Root, "0") // no process has this id
		}
		return dir
	})
	return nil
}

// fdDir returns the directory with the descriptors of a process.
func fdDir(id int) (string, error) {
	dir, err := procfs.Dir(id)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "fd"), nil
}

// selfMapVariable is specutils.SelfMapVariable of a patched gVisor: the user and group in
// a new user namespace that a process of gVisor has to map to the user that it is.
const selfMapVariable = "GVISOR_SELF_MAP"

// mapSelf maps the user in this process's new user namespace, if its parent, the cell,
// could not, because it has a foreign /proc. The kernel lets a process map itself to its
// own user. Root then executes the program again, with the capabilities of root.
func mapSelf() error {
	id, ok := os.LookupEnv(selfMapVariable)
	if !ok {
		return nil
	}
	if err := os.Unsetenv(selfMapVariable); err != nil {
		return err
	}
	const dir = procfs.Root + "/self/"
	for _, f := range [][2]string{{"setgroups", "deny"}, {"uid_map", id + " 0 1"}, {"gid_map", id + " 0 1"}} {
		if err := os.WriteFile(dir+f[0], []byte(f[1]), 0); err != nil {
			return err
		}
	}
	if id != "0" {
		return nil
	}
	// The capabilities that it has kept until here must not outlive those of root.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if err := dropInheritable(); err != nil {
		return err
	}
	return unix.Exec(dir+"exe", os.Args, os.Environ())
}

// dropInheritable clears the thread's inheritable capabilities.
func dropInheritable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	caps[0].Inheritable, caps[1].Inheritable = 0, 0
	return unix.Capset(&header, &caps[0])
}
