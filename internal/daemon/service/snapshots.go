package service

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// CreateSnapshot implements [sandbox.Snapshots].
func (s *Service) CreateSnapshot(ctx context.Context, ref string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "snapshot.create"), func(c *call.Call) (*sandbox.Snapshot, error) {
		if err := checkSnapshotRequest(&req); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		snap, err := s.snapshot(c.Ctx, r.ID, store.SnapshotRecord{Snapshot: sandbox.Snapshot{
			Name: req.Name, Kind: cmp.Or(req.Kind, sandbox.SnapshotMemory), Label: req.Label,
		}})
		if err != nil {
			return nil, err
		}
		c.Detail = snap.ID
		return s.viewSnapshot(&snap), nil
	})
}

// viewSnapshot is what callers see of a snapshot.
func (s *Service) viewSnapshot(r *store.SnapshotRecord) *sandbox.Snapshot {
	snap := r.Snapshot
	snap.Stored = s.stored(r.Checkpoint)
	return &snap
}

func checkSnapshotRequest(req *sandbox.CreateSnapshotRequest) error {
	switch req.Kind {
	case "", sandbox.SnapshotMemory, sandbox.SnapshotFiles:
	default:
		return validate.Errorf("kind %s is not valid; use %q or %q", validate.Quote(string(req.Kind)), sandbox.SnapshotMemory, sandbox.SnapshotFiles)
	}
	if err := validate.Text("label", req.Label); err != nil {
		return err
	}
	if n := len(req.Label); n > sandbox.MaxSnapshotLabel {
		return validate.Errorf("the label has %d bytes; use at most %d", n, sandbox.MaxSnapshotLabel)
	}
	if req.Name == "" {
		return nil
	}
	if ids.IsSnapshot(req.Name) || ids.IsSandbox(req.Name) {
		return validate.Errorf("name %s begins like an id; use one that does not begin with %q or %q", validate.Quote(req.Name), ids.Snapshot, ids.Sandbox)
	}
	return validate.Name("name", req.Name)
}

// snapshot keeps the state of a running or paused sandbox. It takes only the name, the
// kind, the label and the fields of automatic snapshots from snap.
func (s *Service) snapshot(ctx context.Context, id string, snap store.SnapshotRecord) (store.SnapshotRecord, error) {
	if err := s.needCheckpointer(); err != nil {
		return snap, err
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return snap, err
	}
	defer unlock()
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil {
		return snap, err
	}
	snap.ID, snap.CreatedAt = ids.New(ids.Snapshot), time.Now().UTC()
	recovery.SnapshotOf(&snap, &r)
	if err := s.snapshotName(ctx, &snap); err != nil {
		return snap, err
	}
	if err := s.admitSnapshot(ctx, &snap); err != nil {
		return snap, err
	}
	if snap.Automatic {
		if snap.Step, err = s.nextStep(ctx, id); err != nil {
			return snap, err
		}
	}
	opts := engine.CheckpointOptions{FilesOnly: snap.Kind == sandbox.SnapshotFiles, Label: recovery.Label(recovery.KeptSnapshot, &snap)}
	if !snap.Automatic {
		// A step of the history need not survive a power loss, since its running
		// sandbox does not either.
		opts.Durable, opts.Owner = true, snap.Team
	}
	c, release, err := s.stateOf(ctx, &r, opts)
	if err != nil {
		return snap, err
	}
	defer release()
	if !snap.Automatic {
		if err := s.Volumes.Sync(ctx, &r, "no snapshot of sandbox "+r.ID+" was made"); err != nil {
			s.collectSoon()
			return snap, err
		}
	}
	snap.Checkpoint, snap.SizeBytes = c.ID, c.SizeBytes
	if err := s.cfg.Store.CreateSnapshot(context.WithoutCancel(ctx), snap, s.cfg.Quota); err != nil {
		s.collectSoon()
		return snap, err
	}
	return snap, nil
}

// snapshotName refuses a taken name before the work is done.
func (s *Service) snapshotName(ctx context.Context, snap *store.SnapshotRecord) error {
	if snap.Name == "" {
		return nil
	}
	_, err := s.cfg.Store.SnapshotByName(ctx, snap.Team, snap.Namespace, snap.Name)
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound:
		return nil
	case "":
		return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another snapshot of the team; use another name, or delete that snapshot first", snap.Name)
	}
	return err
}

// admitSnapshot refuses a snapshot over the quota before the work is done. Steps of a
// history do not count.
func (s *Service) admitSnapshot(ctx context.Context, snap *store.SnapshotRecord) error {
	if snap.Automatic {
		return nil
	}
	if s.cfg.Quota.DiskMiB > 0 {
		// The snapshot's own size is known only once it is made.
		used, err := s.cfg.Store.SandboxUsage(ctx, snap.Team)
		if err := cmp.Or(err, s.cfg.Quota.AdmitDisk(used.DiskMiB, 1)); err != nil {
			return err
		}
	}
	if s.cfg.Quota.Snapshots == 0 {
		return nil
	}
	f := store.SnapshotFilter{Team: snap.Team, Automatic: new(bool)}
	n, page := 0, sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		some, next, err := s.cfg.Store.ListSnapshots(ctx, f, page)
		if err != nil {
			return err
		}
		if n += len(some); next == "" || n >= s.cfg.Quota.Snapshots {
			return s.cfg.Quota.AdmitSnapshot(n)
		}
		page.Cursor = next
	}
}

// stateOf returns a checkpoint of a sandbox's current state: a new checkpoint of a
// running sandbox, or the existing one of a paused sandbox. The checkpoint is held
// until the result is called.
//
// Preconditions: the caller holds the lock of the sandbox.
func (s *Service) stateOf(ctx context.Context, r *store.Record, opts engine.CheckpointOptions) (engine.Checkpoint, func(), error) {
	switch r.State {
	case sandbox.StatePaused:
		release := s.use(r.Checkpoint)
		kept, err := s.checkpointer.Checkpoints(ctx)
		if err != nil {
			release()
			return engine.Checkpoint{}, nil, err
		}
		for _, c := range kept {
			if c.ID == r.Checkpoint {
				return c, release, nil
			}
		}
		release()
		return engine.Checkpoint{}, nil, fmt.Errorf("the checkpoint %s of paused sandbox %s is gone", r.Checkpoint, r.ID)
	case sandbox.StateRunning:
		h, err := s.openRecord(ctx, r)
		if err != nil {
			return engine.Checkpoint{}, nil, err
		}
		id := ids.New(ids.Checkpoint)
		release := s.use(id)
		c, err := s.checkpointer.Checkpoint(ctx, r.Instance, id, opts)
		if err != nil {
			release()
			return c, nil, h.explain(ctx, engineError(r, err))
		}
		return c, release, nil
	}
	return engine.Checkpoint{}, nil, call.NotRunning(r)
}

// GetSnapshot implements [sandbox.Snapshots].
func (s *Service) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Snapshot, error) {
		snap, err := c.Snapshot(ref)
		if err != nil {
			return nil, err
		}
		return s.viewSnapshot(&snap), nil
	})
}

// ListSnapshots implements [sandbox.Snapshots].
func (s *Service) ListSnapshots(ctx context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Snapshot], error) {
		f := store.SnapshotFilter{Team: c.Caller.Team, Namespace: c.Caller.Namespace}
		var unknown error
		if req.Sandbox != "" {
			r, err := c.Resolve(req.Sandbox)
			switch {
			case sandbox.CodeOf(err) == sandbox.CodeNotFound && ids.IsSandbox(req.Sandbox):
				// Snapshots outlive their sandbox and its record.
				r.ID, unknown = req.Sandbox, err
			case err != nil:
				return nil, err
			}
			f.SandboxID = r.ID
		}
		if !req.Automatic {
			f.Automatic = new(bool)
		}
		records, next, err := s.cfg.Store.ListSnapshots(c.Ctx, f, req.Page)
		if err != nil {
			return nil, err
		}
		if len(records) == 0 && unknown != nil {
			return nil, unknown
		}
		list := &sandbox.List[sandbox.Snapshot]{Items: make([]sandbox.Snapshot, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = *s.viewSnapshot(&r)
		}
		return list, nil
	})
}

// DeleteSnapshot implements [sandbox.Snapshots].
func (s *Service) DeleteSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "snapshot.delete"), func(c *call.Call) (*sandbox.Snapshot, error) {
		snap, err := c.Snapshot(ref)
		if err != nil {
			return nil, err
		}
		c.Detail = snap.ID
		if err := s.cfg.Store.DeleteSnapshot(c.Ctx, snap.ID); err != nil {
			return nil, err
		}
		s.collectSoon()
		return s.viewSnapshot(&snap), nil
	})
}

// RestoreSnapshot implements [sandbox.Snapshots].
func (s *Service) RestoreSnapshot(ctx context.Context, ref string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.restore"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if (req.Snapshot == "") == (req.Step == 0) {
			return nil, validate.Errorf("set exactly one of snapshot, an id or name, and step, such as -1 for the state before the last command")
		}
		if req.Step > 0 {
			return nil, validate.Errorf("step is %d; use -1 for the state before the last command, -2 for the one before that, and so on", req.Step)
		}
		if err := s.needCheckpointer(); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		unlock, err := s.lock(c.Ctx, r.ID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if r, err = s.cfg.Store.Sandbox(c.Ctx, r.ID); err != nil {
			return nil, err
		}
		if r.State != sandbox.StateRunning && r.State != sandbox.StatePaused {
			return nil, call.NotRunning(&r)
		}
		snap, err := s.chosen(c, &r, &req)
		if err != nil {
			return nil, err
		}
		c.SandboxID, c.Detail = r.ID, snap.ID
		restored, err := s.restore(c.Ctx, &r, &snap)
		if err != nil {
			return nil, err
		}
		return s.view(restored), nil
	})
}

// chosen returns the snapshot or step that a request names.
func (s *Service) chosen(c *call.Call, r *store.Record, req *sandbox.RestoreRequest) (store.SnapshotRecord, error) {
	if req.Snapshot != "" {
		return c.Snapshot(req.Snapshot)
	}
	steps, err := s.steps(c.Ctx, r.ID)
	if err != nil {
		return store.SnapshotRecord{}, err
	}
	// Compared before the sign is changed: the smallest integer has no positive
	// counterpart.
	if req.Step >= -len(steps) {
		return steps[-req.Step-1], nil
	}
	if len(steps) == 0 {
		return store.SnapshotRecord{}, sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s has no history; to keep a step before each command, set history when you create or update it", r.ID)
	}
	return store.SnapshotRecord{}, sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s has the steps -1 to -%d; step %d is no longer kept", r.ID, len(steps), req.Step)
}

// restore makes a sandbox continue from a snapshot.
//
// Preconditions: the caller holds the lock of the sandbox.
func (s *Service) restore(ctx context.Context, r *store.Record, snap *store.SnapshotRecord) (store.Record, error) {
	defer s.use(snap.Checkpoint)()
	root, err := startup.RootOf(snap.Root)
	if err != nil {
		return *r, err
	}
	from := bootSource{root: root, checkpoint: snap.Checkpoint, filesOnly: snap.Kind == sandbox.SnapshotFiles, startup: startup.Recorded(snap.Root), foreign: snap.SandboxID != r.ID}
	before := *r
	before.Mounts = snap.Mounts
	return s.replace(ctx, &before, from, func(now *store.Record) error {
		now.Root, now.Origin, now.Template, now.Mounts = snap.Root, snap.Origin, snap.Template, snap.Mounts
		now.Kept = store.Kept{} // of a time that is over; a new one is due at once
		if !snap.Automatic {
			now.Snapshot = snap.ID
		}
		noteMoment(now, sandbox.Moment{
			Kind: sandbox.MomentRestored, At: time.Now().UTC(), SandboxID: snap.SandboxID, Snapshot: snap.ID, StateAt: &snap.CreatedAt,
		})
		return nil
	})
}
