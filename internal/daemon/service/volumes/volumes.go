// Package volumes keeps directories that outlive the sandboxes that mount them. It
// makes and deletes volumes, decides which volumes and directories of the host a
// sandbox can mount, and ends sandboxes that fill a volume far beyond its size.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// ErrNone is the error of a server without volumes.
var ErrNone = sandbox.Errorf(sandbox.CodeUnsupported, "this server has no volumes")

// living are the states of a sandbox that may have a volume mounted.
var living = []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping}

// Config says what [Volumes] work with.
type Config struct {
	Gate   *call.Gate
	Store  store.Store
	Engine engine.Engine
	Log    *slog.Logger
	Quota  store.Quota
	// Dir has the files of volumes. Without it there are no volumes.
	Dir *volume.Dir
	// Orphans keeps volumes that no record names for OrphanRetention. Without it they
	// are removed at once.
	Orphans         *orphan.Dir
	OrphanRetention time.Duration
	// HostMounts are directories of the host that sandboxes may mount.
	HostMounts HostMounts
	// StateDir is the server's own directory, which no sandbox can mount.
	StateDir string
	// Kill ends a sandbox.
	Kill func(ctx context.Context, id, reason string) error
}

// Volumes implements [sandbox.Volumes]. It is safe for concurrent use.
type Volumes struct {
	cfg    Config
	usages usages
}

// New returns the volumes of a server. [Volumes.Reconcile] repairs what a crash has
// left.
func New(cfg Config) *Volumes { return &Volumes{cfg: cfg} }

// CreateVolume implements [sandbox.Volumes].
func (vs *Volumes) CreateVolume(ctx context.Context, req sandbox.CreateVolumeRequest) (*sandbox.Volume, error) {
	return call.Do(ctx, vs.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "volume.create"), func(c *call.Call) (*sandbox.Volume, error) {
		if vs.cfg.Dir == nil {
			return nil, ErrNone
		}
		if ids.IsVolume(req.Name) {
			return nil, validate.Errorf("name %s begins like an id; use one that does not begin with %q", validate.Quote(req.Name), ids.Volume)
		}
		req.SizeMiB = cmp.Or(req.SizeMiB, sandbox.DefaultVolumeMiB)
		if err := cmp.Or(validate.Name("name", req.Name), validate.Range("size_mib", req.SizeMiB, 1, sandbox.MaxDiskMiB)); err != nil {
			return nil, err
		}
		r := store.VolumeRecord{Team: c.Caller.Team, Volume: sandbox.Volume{
			ID: ids.New(ids.Volume), Name: req.Name, SizeMiB: req.SizeMiB, CreatedAt: time.Now().UTC(),
		}}
		c.Detail = r.ID + " named " + r.Name
		// The files first: the next start removes files without a record.
		if err := vs.cfg.Dir.Create(r.ID, label(&r)); err != nil {
			return nil, errors.Join(err, vs.cfg.Dir.Remove(r.ID))
		}
		if err := vs.cfg.Store.CreateVolume(c.Ctx, r, vs.cfg.Quota); err != nil {
			if rerr := vs.cfg.Dir.Remove(r.ID); rerr != nil {
				vs.cfg.Log.Error("remove the files of a volume that could not be made", "volume", r.ID, "error", rerr)
			}
			return nil, err
		}
		return &r.Volume, nil
	})
}

// find returns the record of the caller's volume with this id or name.
func (vs *Volumes) find(c *call.Call, ref string) (store.VolumeRecord, error) {
	if ref == "" {
		return store.VolumeRecord{}, validate.Errorf("no volume is named; set its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("volume", ref) != nil {
		return store.VolumeRecord{}, noVolume(ref)
	}
	var r store.VolumeRecord
	var err error
	if ids.IsVolume(ref) {
		r, err = vs.cfg.Store.Volume(c.Ctx, ref)
	} else {
		r, err = vs.cfg.Store.VolumeByName(c.Ctx, c.Caller.Team, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.Team != c.Caller.Team {
		return store.VolumeRecord{}, noVolume(ref)
	}
	return r, err
}

func noVolume(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no volume %s; list the volumes to see which exist", validate.Quote(ref))
}

// GetVolume implements [sandbox.Volumes]. It measures the volume now.
func (vs *Volumes) GetVolume(ctx context.Context, ref string) (*sandbox.Volume, error) {
	return call.Do(ctx, vs.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Volume, error) {
		r, err := vs.find(c, ref)
		if err != nil {
			return nil, err
		}
		if vs.cfg.Dir != nil {
			f, err := vs.measure(c.Ctx, &r)
			if err != nil {
				return nil, err
			}
			r.UsedBytes = f.used
		}
		by, err := vs.mounted(c.Ctx, store.SandboxFilter{Team: r.Team, Namespace: c.Caller.Namespace, VolumeID: r.ID})
		if err != nil {
			return nil, err
		}
		r.Sandboxes = by[r.ID]
		return &r.Volume, nil
	})
}

// ListVolumes implements [sandbox.Volumes].
func (vs *Volumes) ListVolumes(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Volume], error) {
	return call.Do(ctx, vs.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Volume], error) {
		records, next, err := vs.cfg.Store.ListVolumes(c.Ctx, c.Caller.Team, page)
		if err != nil {
			return nil, err
		}
		by, err := vs.mounted(c.Ctx, store.SandboxFilter{Team: c.Caller.Team, Namespace: c.Caller.Namespace, Mounted: true})
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Volume]{Items: make([]sandbox.Volume, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = r.Volume
			list.Items[i].Sandboxes = by[r.ID]
		}
		return list, nil
	})
}

// mounted returns the living sandboxes of each volume, among those that a filter
// selects.
func (vs *Volumes) mounted(ctx context.Context, f store.SandboxFilter) (map[string][]string, error) {
	by := map[string][]string{}
	f.States = living
	err := vs.each(ctx, f, func(r *store.Record) {
		for _, m := range r.Mounts {
			if m.Volume != "" && !slices.Contains(by[m.Volume], r.ID) {
				by[m.Volume] = append(by[m.Volume], r.ID)
			}
		}
	})
	return by, err
}

// each calls f for the sandboxes that a filter selects.
func (vs *Volumes) each(ctx context.Context, filter store.SandboxFilter, f func(*store.Record)) error {
	for r, err := range store.All(ctx, vs.cfg.Store.ListSandboxes, filter) {
		if err != nil {
			return err
		}
		f(&r)
	}
	return nil
}

// DeleteVolume implements [sandbox.Volumes].
func (vs *Volumes) DeleteVolume(ctx context.Context, ref string) error {
	return call.Run(ctx, vs.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "volume.delete"), func(c *call.Call) error {
		r, err := vs.find(c, ref)
		if err != nil {
			return err
		}
		c.Detail = r.ID + " named " + r.Name
		if err := vs.cfg.Store.DeleteVolume(c.Ctx, r.ID); err != nil {
			return err
		}
		vs.usages.forget(r.ID)
		if vs.cfg.Dir == nil {
			return nil
		}
		// The volume is deleted; files that cannot be removed now are removed at the
		// next start.
		if err := vs.remove(c.Ctx, r.ID); err != nil {
			vs.cfg.Log.Error("remove the files of a deleted volume", "volume", r.ID, "error", err)
		}
		return nil
	})
}

// remove removes the files of a volume that was deleted.
func (vs *Volumes) remove(ctx context.Context, id string) error {
	if err := vs.cfg.Dir.Remove(id); err != nil {
		return err
	}
	return vs.cfg.Store.ForgetNamed(ctx, id)
}

// Reconcile removes the files of volumes that were being deleted when the daemon ended,
// and sets aside others without a record.
func (vs *Volumes) Reconcile(ctx context.Context) error {
	if vs.cfg.Dir == nil {
		return nil
	}
	known := map[string]bool{}
	for r, err := range store.All(ctx, vs.cfg.Store.ListVolumes, "") {
		if err != nil {
			return err
		}
		known[r.ID] = true
		if vs.cfg.Dir.Label(r.ID) != nil {
			continue
		}
		// The volume was made before volumes had labels.
		if err := vs.cfg.Dir.SetLabel(r.ID, label(&r)); err != nil {
			vs.cfg.Log.Warn("say in a volume's directory what it is", "volume", r.ID, "error", err)
		}
	}
	ids, err := vs.cfg.Dir.IDs()
	if err != nil {
		vs.cfg.Log.Error("remove what is left of deleted volumes", "error", err)
	}
	for _, id := range ids {
		if known[id] {
			continue
		}
		if err := vs.discard(ctx, id); err != nil {
			vs.cfg.Log.Error("remove the files of a volume without a record", "volume", id, "error", err)
		}
	}
	return nil
}

// measure measures the content of a volume, and stores the result.
func (vs *Volumes) measure(ctx context.Context, r *store.VolumeRecord) (usage, error) {
	size := r.SizeMiB << 20
	used, err := vs.cfg.Dir.Used(ctx, r.ID, overfull*size)
	f := usage{name: r.Name, used: used, size: size, blind: errors.Is(err, volume.ErrUnmeasured)}
	if err != nil && !f.blind {
		return f, fmt.Errorf("measure volume %s: %w", r.ID, err)
	}
	vs.usages.note(r.ID, f)
	if used == r.UsedBytes {
		return f, nil
	}
	return f, vs.cfg.Store.MeasureVolume(ctx, r.ID, used)
}
