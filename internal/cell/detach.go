package cell

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// escapes are those of paths in a table of mounts.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// letGo unmounts, in the cell's namespace, what neither the cell nor its sandbox
// uses: gVisor's processes have a copy of it that nobody can unmount, and that
// keeps the host's disks in use for as long as they run. Where an ordinary user
// runs the cell the kernel refuses that. Scratch is the cell's scratch directory.
func letGo(spec Standby, scratch string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the cell's mounts: %w", err)
	}
	// Parts of the engine's directory may be file systems of their own.
	engine := filepath.Dir(filepath.Dir(spec.Dir))
	for _, place := range unused(string(table), append(neededPaths(spec), engine), []string{scratch, resolved(engine)}) {
		// What is refused stays in use until the sandbox ends.
		_ = unix.Unmount(place, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return nil
}

// unused returns the places of mounts in a table that are not on the way to a
// needed path, and not below whole directories or those of the system.
func unused(table string, needed, whole []string) (places []string) {
	whole = append([]string{"/proc", "/sys", "/dev", "/etc", "/usr"}, whole...)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		place := escapes.Replace(fields[4])
		if place == "/" || holdsAny(place, needed) || isBelowAny(place, whole) {
			continue
		}
		places = append(places, place)
	}
	return places
}

// isBelowAny reports whether path is one of the directories or below one.
func isBelowAny(path string, dirs []string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// resolved is a path without symbolic links, if it is there.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}
