package validate

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Directories on which nothing may be mounted. Those that are reserved with everything
// below belong to Cove or the kernel; without the others no program starts.
var (
	takenTrees = []string{"/proc", "/dev", "/sys", "/.cove", "/run/cove", "/tmp"}
	takenDirs  = []string{
		"/", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64",
		"/usr/libx32", "/etc", "/run", "/var", "/boot",
	}
)

// Mounts refuses mounts that are invalid on any server.
func Mounts(mounts []sandbox.Mount) error {
	if len(mounts) > sandbox.MaxMounts {
		return Errorf("there are %d mounts; use at most %d", len(mounts), sandbox.MaxMounts)
	}
	for i := range mounts {
		m := &mounts[i]
		if err := cmp.Or(mountTarget(m.Target), mountKind(m)); err != nil {
			return err
		}
		for _, other := range mounts[:i] {
			if Within(m.Target, other.Target) || Within(other.Target, m.Target) {
				return Errorf("mount targets %s and %s are the same, or one is inside the other; choose separate targets", Quote(other.Target), Quote(m.Target))
			}
		}
	}
	return nil
}

// Within reports whether a path is a directory or below it.
func Within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func mountTarget(target string) error {
	if err := Text("mount target", target); err != nil {
		return err
	}
	switch {
	case !path.IsAbs(target) || path.Clean(target) != target || len(target) > sandbox.MaxPathBytes/4 || strings.ContainsAny(target, "\x00\n"):
		return Errorf("mount target %s must be an absolute path of at most %d bytes without \".\", \"..\" and doubled slashes, such as \"/data\"", Quote(target), sandbox.MaxPathBytes/4)
	case slices.Contains(takenDirs, target) || slices.ContainsFunc(takenTrees, func(t string) bool { return Within(target, t) }):
		return Errorf("mount target %s is a directory that the system needs; choose another, such as \"/data\"", Quote(target))
	}
	return nil
}

func mountKind(m *sandbox.Mount) error {
	kinds := 0
	for _, set := range []bool{m.Volume != "", m.Host != "", m.Tmpfs} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return Errorf("the mount at %s needs exactly one of volume, host and tmpfs", Quote(m.Target))
	case m.SizeMiB != 0 && !m.Tmpfs:
		return Errorf("the mount at %s has a size_mib, which works only with tmpfs; a volume gets its size when it is created", Quote(m.Target))
	case m.Tmpfs && m.ReadOnly:
		return Errorf("the tmpfs at %s is read-only and would stay empty; leave out read_only", Quote(m.Target))
	case m.Host != "":
		return hostPath(m.Host)
	}
	return nil
}

func hostPath(p string) error {
	if err := Text("mount of the host", p); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p || len(p) > sandbox.MaxPathBytes-1 || strings.ContainsAny(p, "\x00") {
		return Errorf("mount of the host: %s must be an absolute path without \".\", \"..\" and doubled slashes", Quote(p))
	}
	return nil
}
