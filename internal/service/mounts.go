package service

import (
	"cmp"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// Directories on which nothing may be mounted. In those that are taken with all
// below are Cove's and the kernel's own things; without the others no program
// starts.
var (
	takenTrees = []string{"/proc", "/dev", "/sys", "/.cove", "/run/cove", "/tmp"}
	takenDirs  = []string{
		"/", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64",
		"/usr/libx32", "/etc", "/run", "/var", "/boot",
	}
)

// checkMounts refuses mounts that cannot be, whatever there is.
func checkMounts(mounts []sandbox.Mount) error {
	if len(mounts) > sandbox.MaxMounts {
		return validate.Errorf("there are %d mounts; give at most %d", len(mounts), sandbox.MaxMounts)
	}
	for i := range mounts {
		m := &mounts[i]
		if err := cmp.Or(checkTarget(m.Target), checkMountKind(m)); err != nil {
			return err
		}
		for _, other := range mounts[:i] {
			if within(m.Target, other.Target) || within(other.Target, m.Target) {
				return validate.Errorf("mount targets %s and %s are the same or one inside the other; choose places beside each other", validate.Quote(other.Target), validate.Quote(m.Target))
			}
		}
	}
	return nil
}

// within reports whether a path is a directory or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func checkTarget(target string) error {
	if err := validate.Text("mount target", target); err != nil {
		return err
	}
	switch {
	case !path.IsAbs(target) || path.Clean(target) != target || len(target) > sandbox.MaxPathBytes/4 || strings.ContainsAny(target, "\x00\n"):
		return validate.Errorf("mount target %s is not an absolute path without \".\", \"..\" and doubled slashes, of at most %d bytes; give one such as \"/data\"", validate.Quote(target), sandbox.MaxPathBytes/4)
	case slices.Contains(takenDirs, target) || slices.ContainsFunc(takenTrees, func(t string) bool { return within(target, t) }):
		return validate.Errorf("mount target %s is a place that the system needs; choose another, such as \"/data\"", validate.Quote(target))
	}
	return nil
}

func checkMountKind(m *sandbox.Mount) error {
	kinds := 0
	for _, set := range []bool{m.Volume != "", m.Host != "", m.Tmpfs} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return validate.Errorf("the mount at %s needs exactly one of volume, host and tmpfs", validate.Quote(m.Target))
	case m.SizeMiB != 0 && !m.Tmpfs:
		return validate.Errorf("the mount at %s has a size_mib, which is for tmpfs; a volume has its size from its creation", validate.Quote(m.Target))
	case m.Tmpfs && m.ReadOnly:
		return validate.Errorf("the tmpfs at %s is read-only and would stay empty; leave out read_only", validate.Quote(m.Target))
	case m.Host != "":
		return checkHostPath(m.Host)
	}
	return nil
}

func checkHostPath(p string) error {
	if err := validate.Text("mount of the host", p); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p || len(p) > sandbox.MaxPathBytes-1 || strings.ContainsAny(p, "\x00") {
		return validate.Errorf("mount of the host: %s is not an absolute path without \".\", \"..\" and doubled slashes", validate.Quote(p))
	}
	return nil
}

// mount gives a record its mounts, with the ids of volumes for their names. The
// caller's rights to each are checked.
func (s *Service) mount(c *call.Call, r *store.Record, mounts []sandbox.Mount) error {
	r.Mounts = slices.Clone(mounts)
	for i := range r.Mounts {
		m := &r.Mounts[i]
		switch {
		case m.Volume != "":
			vol, err := s.volumeFor(c, m.Volume)
			if err != nil {
				return err
			}
			m.Volume = vol.ID
			if err := s.admitWriter(c.Ctx, &vol, m); err != nil {
				return err
			}
		case m.Host != "":
			if _, err := s.hostDir(m); err != nil {
				return err
			}
		case m.SizeMiB < 0 || m.SizeMiB > r.Resources.MemoryMiB:
			return validate.Errorf("the tmpfs at %s has a size_mib of %d; give 1 to %d, the sandbox's memory", validate.Quote(m.Target), m.SizeMiB, r.Resources.MemoryMiB)
		}
	}
	return nil
}

// admitWriter refuses one more sandbox that can write to a full volume.
func (s *Service) admitWriter(ctx context.Context, vol *store.VolumeRecord, m *sandbox.Mount) error {
	if s.cfg.Volumes == nil {
		return errNoVolumes
	}
	if m.ReadOnly {
		return nil
	}
	full, err := s.measureVolume(ctx, vol)
	if err != nil {
		return err
	}
	if full.full() {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "volume %s is full: %s; delete files in a sandbox that has it, or mount it read-only and copy what you need to a larger one", validate.Quote(vol.Name), full)
	}
	return nil
}

// hostDir returns the directory of the host that a mount is of, without symbolic
// links, if the operator allows it.
func (s *Service) hostDir(m *sandbox.Mount) (string, error) {
	refused := sandbox.Errorf(sandbox.CodeForbidden, "the server's operator does not allow to mount %s; ask to have it, or a directory above it, in mounts.allow_host of the configuration", validate.Quote(m.Host))
	dir, err := filepath.EvalSymlinks(m.Host)
	if err != nil {
		// Whether it is there is nobody's business who may not have it.
		if s.allows(m.Host) == nil {
			return "", refused
		}
		return "", sandbox.Errorf(sandbox.CodeNotFound, "there is no directory %s on the server", validate.Quote(m.Host))
	}
	allowed := s.allows(dir)
	switch {
	case s.holdsState(dir):
		return "", sandbox.Errorf(sandbox.CodeForbidden, "%s has the server's own files in it, or is one of them; mount a directory beside them", validate.Quote(m.Host))
	case allowed == nil:
		return "", refused
	case !m.ReadOnly && !allowed.write:
		return "", sandbox.Errorf(sandbox.CodeForbidden, "the server's operator allows to mount %s read-only; set read_only", validate.Quote(m.Host))
	}
	return dir, nil
}

// holdsState reports whether a directory without symbolic links has the server's
// state in it, or is part of it.
func (s *Service) holdsState(dir string) bool {
	if s.cfg.StateDir == "" {
		return false
	}
	state, err := filepath.EvalSymlinks(s.cfg.StateDir)
	return err != nil || within(dir, state) || within(state, dir)
}

// hostMount is a directory of the host that may be mounted, with all below.
type hostMount struct {
	dir   string
	write bool
}

// allows returns what covers a directory, or nil: of several the one that allows
// more.
func (s *Service) allows(dir string) *hostMount {
	var best *hostMount
	for i := range s.hostMounts {
		if h := &s.hostMounts[i]; within(dir, h.dir) && (best == nil || h.write) {
			best = h
		}
	}
	return best
}

// parseHostMounts reads the operator's list: directories, with ":rw" at the end
// for those that may be written to. Symbolic links are followed once, now.
func parseHostMounts(list []string) ([]hostMount, error) {
	var all []hostMount
	for _, entry := range list {
		dir, write := strings.CutSuffix(entry, ":rw")
		dir = strings.TrimSuffix(dir, ":ro")
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "configuration: mounts.allow_host: "+validate.Quote(dir)+" is not there")
		}
		all = append(all, hostMount{resolved, write})
	}
	return all, nil
}

// mountsOf returns what the instance of a record gets to see.
func (s *Service) mountsOf(ctx context.Context, r *store.Record) ([]engine.Mount, error) {
	var all []engine.Mount
	for i := range r.Mounts {
		m := &r.Mounts[i]
		e := engine.Mount{Target: m.Target, ReadOnly: m.ReadOnly}
		switch {
		case m.Volume != "":
			if s.cfg.Volumes == nil {
				return nil, errNoVolumes
			}
			vol, err := s.cfg.Store.Volume(ctx, m.Volume)
			if err != nil || vol.Team != r.Team {
				return nil, cmp.Or(err, noVolume(m.Volume))
			}
			e.Source = s.cfg.Volumes.Path(vol.ID)
		case m.Host != "":
			dir, err := s.hostDir(m)
			if err != nil {
				return nil, err
			}
			e.Source = dir
		default:
			e.SizeBytes = cmp.Or(m.SizeMiB<<20, r.Resources.MemoryMiB<<20/2)
		}
		all = append(all, e)
	}
	return all, nil
}

// syncVolumes writes what a sandbox's volumes hold to the disk: a kept state that
// survives a loss of power counts on files that do too. Without them it is not
// kept, as with a disk that is full; the error says what has come of that.
func (s *Service) syncVolumes(ctx context.Context, r *store.Record, outcome string) error {
	for _, m := range r.Mounts {
		if m.Volume == "" || m.ReadOnly || s.cfg.Volumes == nil {
			continue
		}
		if err := s.cfg.Volumes.Sync(m.Volume); err != nil {
			s.log.Error("sync a volume", "volume", m.Volume, "sandbox", r.ID, "error", err)
			name := m.Volume
			if vol, verr := s.cfg.Store.Volume(ctx, m.Volume); verr == nil {
				name = vol.Name
			}
			return call.Unavailable(err, "what volume %s holds cannot be written to the server's disk, so %s, and the sandbox is as it was; try again, and if it stays so ask the server's operator, whose log has the cause", validate.Quote(name), outcome)
		}
	}
	return nil
}
