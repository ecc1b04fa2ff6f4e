package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/ids"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/internal/volume"
	"github.com/cove-sh/cove/sandbox"
)

var errNoVolumes = sandbox.Errorf(sandbox.CodeUnsupported, "this server keeps no volumes")

// CreateVolume implements [sandbox.Volumes].
func (s *Service) CreateVolume(ctx context.Context, req sandbox.CreateVolumeRequest) (*sandbox.Volume, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "volume.create"), func(c *call.Call) (*sandbox.Volume, error) {
		if s.cfg.Volumes == nil {
			return nil, errNoVolumes
		}
		if ids.IsVolume(req.Name) {
			return nil, validate.Errorf("name %s begins like an id; choose one that does not begin with %q", validate.Quote(req.Name), ids.Volume)
		}
		req.SizeMiB = cmp.Or(req.SizeMiB, sandbox.DefaultVolumeMiB)
		if err := cmp.Or(validate.Name("name", req.Name), validate.Range("size_mib", req.SizeMiB, 1, sandbox.MaxDiskMiB)); err != nil {
			return nil, err
		}
		r := store.VolumeRecord{Team: c.Caller.Team, Volume: sandbox.Volume{
			ID: ids.New(ids.Volume), Name: req.Name, SizeMiB: req.SizeMiB, CreatedAt: time.Now().UTC(),
		}}
		c.Detail = r.ID + " named " + r.Name
		// The files first: what has no record is removed at the next start.
		if err := s.cfg.Volumes.Create(r.ID, volumeLabel(&r)); err != nil {
			return nil, errors.Join(err, s.cfg.Volumes.Remove(r.ID))
		}
		if err := s.cfg.Store.CreateVolume(c.Ctx, r, s.cfg.Quota); err != nil {
			if rerr := s.cfg.Volumes.Remove(r.ID); rerr != nil {
				s.log.Error("remove the files of a volume that could not be made", "volume", r.ID, "error", rerr)
			}
			return nil, err
		}
		return &r.Volume, nil
	})
}

// volumeFor returns the record of the caller's volume with this id or name.
func (s *Service) volumeFor(c *call.Call, ref string) (store.VolumeRecord, error) {
	if ref == "" {
		return store.VolumeRecord{}, validate.Errorf("no volume is named; give its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("volume", ref) != nil {
		return store.VolumeRecord{}, noVolume(ref)
	}
	var r store.VolumeRecord
	var err error
	if ids.IsVolume(ref) {
		r, err = s.cfg.Store.Volume(c.Ctx, ref)
	} else {
		r, err = s.cfg.Store.VolumeByName(c.Ctx, c.Caller.Team, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.Team != c.Caller.Team {
		return store.VolumeRecord{}, noVolume(ref)
	}
	return r, err
}

func noVolume(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no volume %s; list the volumes to see which there are", validate.Quote(ref))
}

// GetVolume implements [sandbox.Volumes]. It looks at what the volume holds now.
func (s *Service) GetVolume(ctx context.Context, ref string) (*sandbox.Volume, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Volume, error) {
		r, err := s.volumeFor(c, ref)
		if err != nil {
			return nil, err
		}
		if s.cfg.Volumes != nil {
			f, err := s.measureVolume(c.Ctx, &r)
			if err != nil {
				return nil, err
			}
			r.UsedBytes = f.used
		}
		by, err := s.mounted(c.Ctx, store.SandboxFilter{Team: r.Team, Namespace: c.Caller.Namespace, VolumeID: r.ID})
		if err != nil {
			return nil, err
		}
		r.Sandboxes = by[r.ID]
		return &r.Volume, nil
	})
}

// ListVolumes implements [sandbox.Volumes].
func (s *Service) ListVolumes(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Volume], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Volume], error) {
		records, next, err := s.cfg.Store.ListVolumes(c.Ctx, c.Caller.Team, page)
		if err != nil {
			return nil, err
		}
		by, err := s.mounted(c.Ctx, store.SandboxFilter{Team: c.Caller.Team, Namespace: c.Caller.Namespace, Mounted: true})
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

// mounted returns the living sandboxes of each volume, of those that a filter
// selects.
func (s *Service) mounted(ctx context.Context, f store.SandboxFilter) (map[string][]string, error) {
	by := map[string][]string{}
	f.States = everyLiving.States
	err := s.each(ctx, f, func(r *store.Record) {
		for _, m := range r.Mounts {
			if m.Volume != "" && !slices.Contains(by[m.Volume], r.ID) {
				by[m.Volume] = append(by[m.Volume], r.ID)
			}
		}
	})
	return by, err
}

// each calls f for the sandboxes that a filter selects.
func (s *Service) each(ctx context.Context, filter store.SandboxFilter, f func(*store.Record)) error {
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		records, next, err := s.cfg.Store.ListSandboxes(ctx, filter, page)
		if err != nil {
			return err
		}
		for i := range records {
			f(&records[i])
		}
		if next == "" {
			return nil
		}
		page.Cursor = next
	}
}

// DeleteVolume implements [sandbox.Volumes].
func (s *Service) DeleteVolume(ctx context.Context, ref string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "volume.delete"), func(c *call.Call) error {
		r, err := s.volumeFor(c, ref)
		if err != nil {
			return err
		}
		c.Detail = r.ID + " named " + r.Name
		if err := s.cfg.Store.DeleteVolume(c.Ctx, r.ID); err != nil {
			return err
		}
		s.fill.forget(r.ID)
		if s.cfg.Volumes == nil {
			return nil
		}
		// It is deleted; what cannot be removed now is removed at the next start.
		if err := s.removeVolume(c.Ctx, r.ID); err != nil {
			s.log.Error("remove the files of a deleted volume", "volume", r.ID, "error", err)
		}
		return nil
	})
}

// removeVolume removes the files of a volume that was deleted.
func (s *Service) removeVolume(ctx context.Context, id string) error {
	if err := s.cfg.Volumes.Remove(id); err != nil {
		return err
	}
	return s.cfg.Store.ForgetNamed(ctx, id)
}

// reconcileVolumes removes the files of volumes that were deleted when the daemon
// ended, and sets others without a record aside.
func (s *Service) reconcileVolumes(ctx context.Context) error {
	if s.cfg.Volumes == nil {
		return nil
	}
	known := map[string]bool{}
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		records, next, err := s.cfg.Store.ListVolumes(ctx, "", page)
		if err != nil {
			return err
		}
		for _, r := range records {
			known[r.ID] = true
			if label := s.cfg.Volumes.Label(r.ID); label != nil {
				continue
			}
			// It was made before volumes said what they are.
			if err := s.cfg.Volumes.SetLabel(r.ID, volumeLabel(&r)); err != nil {
				s.log.Warn("say in a volume's directory what it is", "volume", r.ID, "error", err)
			}
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	ids, err := s.cfg.Volumes.IDs()
	if err != nil {
		s.log.Error("remove what is left of deleted volumes", "error", err)
	}
	for _, id := range ids {
		if known[id] {
			continue
		}
		if err := s.discardVolume(ctx, id); err != nil {
			s.log.Error("remove the files of a volume without a record", "volume", id, "error", err)
		}
	}
	return nil
}

// measureVolume looks at what a volume holds, and notes it.
func (s *Service) measureVolume(ctx context.Context, r *store.VolumeRecord) (fullness, error) {
	size := r.SizeMiB << 20
	used, err := s.cfg.Volumes.Used(ctx, r.ID, overfull*size)
	f := fullness{name: r.Name, used: used, size: size, blind: errors.Is(err, volume.ErrUnmeasured)}
	if err != nil && !f.blind {
		return f, fmt.Errorf("measure volume %s: %w", r.ID, err)
	}
	s.fill.note(r.ID, f)
	if used == r.UsedBytes {
		return f, nil
	}
	return f, s.cfg.Store.MeasureVolume(ctx, r.ID, used)
}
