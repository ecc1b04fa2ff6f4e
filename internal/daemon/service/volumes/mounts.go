package volumes

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Mount gives a record its mounts, and replaces names of volumes with their ids. It
// checks the caller's rights to each.
func (vs *Volumes) Mount(c *call.Call, r *store.Record, mounts []sandbox.Mount) error {
	r.Mounts = slices.Clone(mounts)
	for i := range r.Mounts {
		m := &r.Mounts[i]
		switch {
		case m.Volume != "":
			vol, err := vs.find(c, m.Volume)
			if err != nil {
				return err
			}
			m.Volume = vol.ID
			if err := vs.admitWriter(c.Ctx, &vol, m); err != nil {
				return err
			}
		case m.Host != "":
			if _, err := vs.hostDir(m); err != nil {
				return err
			}
		case m.SizeMiB < 0 || m.SizeMiB > r.Resources.MemoryMiB:
			return validate.Errorf("the tmpfs at %s has a size_mib of %d; use 1 to %d, the sandbox's memory", validate.Quote(m.Target), m.SizeMiB, r.Resources.MemoryMiB)
		}
	}
	return nil
}

// admitWriter refuses another sandbox that can write to a full volume.
func (vs *Volumes) admitWriter(ctx context.Context, vol *store.VolumeRecord, m *sandbox.Mount) error {
	if vs.cfg.Dir == nil {
		return ErrNone
	}
	if m.ReadOnly {
		return nil
	}
	full, err := vs.measure(ctx, vol)
	if err != nil {
		return err
	}
	if full.full() {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "volume %s is full: %s; delete files in a sandbox that mounts it, or mount it read-only and copy what you need to a larger one", validate.Quote(vol.Name), full)
	}
	return nil
}

// hostDir returns the directory of the host for a mount, with symbolic links resolved,
// if the operator allows it.
func (vs *Volumes) hostDir(m *sandbox.Mount) (string, error) {
	refused := sandbox.Errorf(sandbox.CodeForbidden, "the server's operator does not allow mounting %s; ask to have it, or a directory above it, added to mounts.allow_host in the configuration", validate.Quote(m.Host))
	dir, err := filepath.EvalSymlinks(m.Host)
	if err != nil {
		// A caller who may not have the directory must not learn whether it exists.
		if vs.allows(m.Host) == nil {
			return "", refused
		}
		return "", sandbox.Errorf(sandbox.CodeNotFound, "there is no directory %s on the server", validate.Quote(m.Host))
	}
	allowed := vs.allows(dir)
	switch {
	case vs.holdsState(dir):
		return "", sandbox.Errorf(sandbox.CodeForbidden, "%s contains the server's own files, or is one of them; mount another directory", validate.Quote(m.Host))
	case allowed == nil:
		return "", refused
	case !m.ReadOnly && !allowed.write:
		return "", sandbox.Errorf(sandbox.CodeForbidden, "the server's operator allows mounting %s only read-only; set read_only", validate.Quote(m.Host))
	}
	return dir, nil
}

// holdsState reports whether a directory, with symbolic links resolved, contains the
// server's state or is part of it.
func (vs *Volumes) holdsState(dir string) bool {
	if vs.cfg.StateDir == "" {
		return false
	}
	state, err := filepath.EvalSymlinks(vs.cfg.StateDir)
	return err != nil || validate.Within(dir, state) || validate.Within(state, dir)
}

// hostMount is a directory of the host that may be mounted, with everything below it.
type hostMount struct {
	dir   string
	write bool
}

// allows returns the entry that covers a directory, or nil. Of several, it returns the
// one that allows more.
func (vs *Volumes) allows(dir string) *hostMount {
	var best *hostMount
	for i := range vs.cfg.HostMounts {
		if h := &vs.cfg.HostMounts[i]; validate.Within(dir, h.dir) && (best == nil || h.write) {
			best = h
		}
	}
	return best
}

// HostMounts are the directories of the host that sandboxes may mount.
type HostMounts []hostMount

// ParseHostMounts reads the operator's list: directories, with ":rw" at the end
// for those that may be written to. Symbolic links are followed once, now.
func ParseHostMounts(list []string) (HostMounts, error) {
	var all HostMounts
	for _, entry := range list {
		dir, write := strings.CutSuffix(entry, ":rw")
		dir = strings.TrimSuffix(dir, ":ro")
		resolved, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "configuration: mounts.allow_host: "+validate.Quote(dir)+" does not exist")
		}
		all = append(all, hostMount{resolved, write})
	}
	return all, nil
}

// InstanceMounts returns the mounts of a record's instance.
func (vs *Volumes) InstanceMounts(ctx context.Context, r *store.Record) ([]engine.Mount, error) {
	var all []engine.Mount
	for i := range r.Mounts {
		m := &r.Mounts[i]
		e := engine.Mount{Target: m.Target, ReadOnly: m.ReadOnly}
		switch {
		case m.Volume != "":
			if vs.cfg.Dir == nil {
				return nil, ErrNone
			}
			vol, err := vs.cfg.Store.Volume(ctx, m.Volume)
			if err != nil || vol.Team != r.Team {
				return nil, cmp.Or(err, noVolume(m.Volume))
			}
			e.Source = vs.cfg.Dir.Path(vol.ID)
		case m.Host != "":
			dir, err := vs.hostDir(m)
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

// Sync writes the content of a sandbox's volumes to the disk: a kept state that
// survives a power loss needs files that survive it too. If Sync fails, as it does on a
// full disk, the state must not be kept; outcome is the part of the error that says
// what happened instead.
func (vs *Volumes) Sync(ctx context.Context, r *store.Record, outcome string) error {
	for _, m := range r.Mounts {
		if m.Volume == "" || m.ReadOnly || vs.cfg.Dir == nil {
			continue
		}
		if err := vs.cfg.Dir.Sync(m.Volume); err != nil {
			vs.cfg.Log.Error("sync a volume", "volume", m.Volume, "sandbox", r.ID, "error", err)
			name := m.Volume
			if vol, verr := vs.cfg.Store.Volume(ctx, m.Volume); verr == nil {
				name = vol.Name
			}
			return call.Unavailable(err, "the data of volume %s cannot be written to the server's disk, so %s, and the sandbox did not change; try again, and if the error stays, ask the server's operator to look at its log", validate.Quote(name), outcome)
		}
	}
	return nil
}
