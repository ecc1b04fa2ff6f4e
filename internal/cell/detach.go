package cell

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// escapes decodes the escape sequences of paths in a mount table.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// detachUnused unmounts, in the cell's namespace, what neither the cell nor its sandbox
// uses. Otherwise gVisor's processes would keep copies of these mounts, which nothing can
// unmount, and the host's disks would stay busy for as long as they run. The kernel
// denies this to the cells of ordinary users. scratch is the cell's scratch directory.
func detachUnused(spec Standby, scratch string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the cell's mounts: %w", err)
	}
	// Parts of the engine's directory may be separate file systems.
	engine := filepath.Dir(filepath.Dir(spec.Dir))
	for _, point := range unused(string(table), append(neededPaths(spec), engine), []string{scratch, resolved(engine)}) {
		// A mount that cannot be unmounted stays in use until the sandbox ends.
		_ = unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return nil
}

// unused returns the mount points of a table that are neither above a needed path, nor
// below one of the whole directories or the system's.
func unused(table string, needed, whole []string) (points []string) {
	whole = append([]string{"/proc", "/sys", "/dev", "/etc", "/usr"}, whole...)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := escapes.Replace(fields[4])
		if point == "/" || holdsAny(point, needed) || isBelowAny(point, whole) {
			continue
		}
		points = append(points, point)
	}
	return points
}

// isBelowAny reports whether path is one of the directories or below one.
func isBelowAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
}

// resolved returns a path without symbolic links, if it exists.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}
