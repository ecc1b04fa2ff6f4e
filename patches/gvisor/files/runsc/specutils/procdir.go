package specutils

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// ProcDir, if set, returns the directory of a process below /proc. It is set if /proc
// belongs to another PID namespace than this process, and so has other ids.
var ProcDir func(pid int) string

// ProcPath returns the path of a file in the directory of a process below /proc.
func ProcPath(pid int, name string) string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if ProcDir != nil {
		dir = ProcDir(pid)
	}
	return filepath.Join(dir, name)
}

// SelfMapVariable is the environment variable that tells a process in a new user namespace
// which user and group there it has to map to the user that it is.
const SelfMapVariable = "GVISOR_SELF_MAP"

// mapSelf leaves it to the new process of a command to map the user of its user namespace,
// if ProcDir is set: package syscall would write the mapping to the process that has the
// new one's id in /proc. It fails for mappings that only this process may make.
func mapSelf(cmd *exec.Cmd) error {
	a := cmd.SysProcAttr
	if ProcDir == nil || len(a.UidMappings) == 0 {
		return nil
	}
	uids, gids := a.UidMappings, a.GidMappings
	if len(uids) != 1 || len(gids) != 1 || uids[0].Size != 1 || gids[0].Size != 1 ||
		uids[0].HostID != os.Geteuid() || gids[0].HostID != os.Getegid() || uids[0].ContainerID != gids[0].ContainerID {
		return fmt.Errorf("with the /proc of another PID namespace, user mappings must be of one id: %v, %v", uids, gids)
	}
	if uids[0].ContainerID == 0 {
		// Until the new process has mapped itself it is not root, and keeps only these.
		last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(last)))
		if err != nil {
			return err
		}
		for c := range n + 1 {
			a.AmbientCaps = append(a.AmbientCaps, uintptr(c))
		}
	}
	cmd.Env = append(cmd.Environ(), SelfMapVariable+"="+strconv.Itoa(uids[0].ContainerID))
	a.UidMappings, a.GidMappings, a.Credential = nil, nil, nil
	return nil
}
