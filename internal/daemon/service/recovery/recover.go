package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/service/volumes"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// unnamedVolume is the name of a recovered volume without a label.
const unnamedVolume = "recovered"

// view returns an orphan as callers see it.
func (s *Recovery) view(it *orphan.Item) sandbox.Orphan {
	return sandbox.Orphan{
		ID: it.ID, Kind: sandbox.OrphanKind(it.Kind), Team: it.Team, Name: it.Name, SandboxID: it.SandboxID,
		SizeBytes: it.SizeBytes, Reason: it.Why, Since: it.Since, EndsAt: s.endOf(it),
	}
}

// maySeeFor reports whether the caller may see an orphan. One that does not say whose
// it is is visible only to the user who runs the server.
func (s *Recovery) maySeeFor(c *call.Call, it *orphan.Item) bool {
	return c.Caller.KeyID == call.LocalKeyID || it.Team == c.Caller.Team
}

// ListOrphans implements [sandbox.Orphans].
func (s *Recovery) ListOrphans(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Orphan], error) {
	return call.Do(ctx, s.cfg.Gate, call.Unaudited(sandbox.ScopeAdmin), func(c *call.Call) (*sandbox.List[sandbox.Orphan], error) {
		if err := c.NeedTeam("what is set aside"); err != nil {
			return nil, err
		}
		var seen []sandbox.Orphan
		if s.cfg.Dir != nil {
			all, err := s.cfg.Dir.List()
			if err != nil {
				return nil, err
			}
			for i := range all {
				if s.maySeeFor(c, &all[i]) {
					seen = append(seen, s.view(&all[i]))
				}
			}
		}
		return call.PageOf("orphans", seen, page, func(o *sandbox.Orphan) store.Place { return store.PlaceAt(o.Since, o.ID) })
	})
}

// RecoverOrphan implements [sandbox.Orphans].
func (s *Recovery) RecoverOrphan(ctx context.Context, id string) (*sandbox.Recovered, error) {
	return call.Do(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "orphan.recover"), func(c *call.Call) (*sandbox.Recovered, error) {
		if err := c.NeedTeam("what is set aside"); err != nil {
			return nil, err
		}
		if err := validate.Text("the id", id); err != nil {
			return nil, err
		}
		if s.cfg.Dir == nil {
			return nil, noOrphan(id)
		}
		s.changing.Lock()
		defer s.changing.Unlock()
		it, found, err := s.cfg.Dir.Find(id)
		if err != nil {
			return nil, err
		}
		if !found || !s.maySeeFor(c, &it) {
			return nil, noOrphan(id)
		}
		c.Detail = string(it.Kind) + " " + it.ID
		out := &sandbox.Recovered{Orphan: s.view(&it)}
		// From here on the orphan is being moved, which must be completed even if the
		// caller goes away.
		clean := context.WithoutCancel(c.Ctx)
		switch it.Kind {
		case orphan.Checkpoint:
			out.Snapshot, err = s.recoverCheckpoint(clean, c, &it)
		case orphan.Volume:
			out.Volume, err = s.recoverVolume(clean, c, &it)
		default:
			err = sandbox.Errorf(sandbox.CodeUnsupported, "this version of cove does not know a %s; use the version that set it aside", validate.Quote(string(it.Kind)))
		}
		if err != nil {
			return nil, err
		}
		return out, nil
	})
}

func noOrphan(id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "no data with the id %s is set aside; list it with cove recover", validate.Quote(id))
}

// recoverVolume makes a volume from an orphan.
func (s *Recovery) recoverVolume(ctx context.Context, c *call.Call, it *orphan.Item) (*sandbox.Volume, error) {
	if s.cfg.VolumeFiles == nil {
		return nil, volumes.ErrNone
	}
	var r store.VolumeRecord
	if json.Unmarshal(it.Record, &r) != nil || r.Team == "" {
		r = store.VolumeRecord{Team: c.Caller.Team, Volume: sandbox.Volume{Name: unnamedVolume, CreatedAt: it.Since}}
	}
	r.ID, r.UsedBytes = it.ID, it.SizeBytes
	r.SizeMiB = cmp.Or(r.SizeMiB, max(sandbox.DefaultVolumeMiB, it.SizeBytes>>20+1))
	if _, err := s.cfg.Store.VolumeByName(ctx, r.Team, r.Name); err == nil {
		r.Name = renamed(r.Name, r.ID)
	}
	if err := s.cfg.Dir.Take(*it, func(from string) error { return s.cfg.VolumeFiles.MoveIn(r.ID, from) }); err != nil {
		return nil, err
	}
	if err := s.cfg.Store.CreateVolume(ctx, r, store.Quota{}); err != nil {
		return nil, errors.Join(err, s.cfg.SetVolumeAside(ctx, r.ID, it.Why))
	}
	return &r.Volume, nil
}

// renamed returns a new name for an orphan whose own name is taken.
func renamed(name, id string) string {
	end := "-" + id[max(0, len(id)-8):]
	return name[:min(len(name), sandbox.MaxNameLength-len(end))] + end
}

// recoverCheckpoint makes a snapshot from an orphan.
func (s *Recovery) recoverCheckpoint(ctx context.Context, v *call.Call, it *orphan.Item) (*sandbox.Snapshot, error) {
	if s.cfg.Checkpointer == nil {
		return nil, call.ErrNoCheckpoints
	}
	snap, err := s.snapshotAgain(ctx, v, it)
	if err != nil {
		return nil, err
	}
	defer s.cfg.Hold(it.ID)()
	var c engine.Checkpoint
	err = s.cfg.Dir.Take(*it, func(from string) (err error) {
		c, err = s.cfg.Checkpointer.BringBack(ctx, it.ID, from)
		return err
	})
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return nil, e // for example, the checkpoint is damaged
	}
	if err == nil {
		err = s.recordAgain(ctx, &snap, &c)
		if err != nil {
			err = errors.Join(err, s.SetAside(ctx, &c, it.Why))
		}
	}
	if err != nil {
		return nil, err
	}
	return &snap.Snapshot, nil
}

// snapshotAgain returns the new record of a checkpoint, as far as its label says.
func (s *Recovery) snapshotAgain(ctx context.Context, c *call.Call, it *orphan.Item) (store.SnapshotRecord, error) {
	var known keptAs
	if json.Unmarshal(it.Record, &known) != nil || known.Snapshot.Team == "" {
		known = keptAs{}
		known.Snapshot.Team, known.Snapshot.Label = c.Caller.Team, "recovered"
		// Its network policy is unknown.
		known.Snapshot.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	}
	snap := known.Snapshot
	// Labels from before snapshots had namespaces do not name one.
	snap.Namespace = cmp.Or(snap.Namespace, sandbox.DefaultNamespace)
	if snap.Automatic { // its history is gone
		snap.Automatic, snap.Step = false, 0
		if snap.Label != "" {
			snap.Label = "before: " + snap.Label
			snap.Label = strings.ToValidUTF8(snap.Label[:min(len(snap.Label), sandbox.MaxSnapshotLabel)], "")
		}
	}
	if snap.ID != "" {
		switch _, err := s.cfg.Store.Snapshot(ctx, snap.ID); sandbox.CodeOf(err) {
		case sandbox.CodeNotFound:
		case "":
			snap.ID = ""
		default:
			return snap, err
		}
	}
	if snap.ID == "" {
		snap.ID = ids.New(ids.Snapshot)
	}
	if snap.Name != "" {
		if _, err := s.cfg.Store.SnapshotByName(ctx, snap.Team, snap.Namespace, snap.Name); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			snap.Name = renamed(snap.Name, snap.ID)
		}
	}
	for _, m := range snap.Mounts {
		if m.Volume == "" {
			continue
		}
		if r, err := s.cfg.Store.Volume(ctx, m.Volume); err != nil || r.Team != snap.Team {
			return snap, sandbox.Errorf(sandbox.CodeConflict, "it has the volume %s mounted, which has no record; recover the volume first", m.Volume)
		}
	}
	return snap, nil
}

// recordAgain records the snapshot of a checkpoint that was moved back to its place.
func (s *Recovery) recordAgain(ctx context.Context, snap *store.SnapshotRecord, c *engine.Checkpoint) error {
	snap.Checkpoint, snap.SizeBytes = c.ID, c.SizeBytes
	snap.Kind = sandbox.SnapshotMemory
	if c.FilesOnly {
		snap.Kind = sandbox.SnapshotFiles
	}
	if len(snap.Root) == 0 { // the checkpoint has no label
		data, err := json.Marshal(startup.Provenance{Root: c.Root})
		if err != nil {
			return fmt.Errorf("encode the root of a snapshot: %w", err)
		}
		snap.Root, snap.Origin, snap.Resources, snap.CreatedAt = data, c.Root.Digest, c.Resources, c.CreatedAt
		snap.User, snap.WorkDir = "root", "/"
	}
	if snap.CreatedAt.IsZero() {
		snap.CreatedAt = time.Now().UTC()
	}
	return s.cfg.Store.CreateSnapshot(ctx, *snap, store.Quota{})
}
