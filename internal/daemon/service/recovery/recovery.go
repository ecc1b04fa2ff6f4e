package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// DefaultOrphanRetention is how long what no record names is kept aside.
const DefaultOrphanRetention = 7 * 24 * time.Hour

const (
	// lowPart and lowMost say when the disk is low: less than one part of it is
	// free, or that many bytes.
	lowPart = 20
	lowMost = 2 << 30
	// saveTimeout bounds how long the state of a sandbox without a record may
	// take to be kept, measureTimeout how long its volume is measured.
	saveTimeout = time.Minute
)

// What the state of a sandbox was kept for.
const (
	keptSnapshot = "snapshot"
	keptPause    = "pause"
	keptFork     = "fork"
	keptRunning  = "running" // it was not kept until its record was found missing
)

// keptAs is what a checkpoint says of itself, for the case that its record is
// lost.
type keptAs struct {
	For      string               `json:"for"`
	Snapshot store.SnapshotRecord `json:"snapshot"`
}

func label(what string, snap *store.SnapshotRecord) json.RawMessage {
	data, err := json.Marshal(keptAs{what, *snap})
	if err != nil {
		return nil // it is kept all the same
	}
	return data
}

// sandboxLabel is the label of a sandbox's state that is not a snapshot.
func sandboxLabel(what string, r *store.Record) json.RawMessage {
	snap := store.SnapshotRecord{Snapshot: sandbox.Snapshot{Kind: sandbox.SnapshotMemory, CreatedAt: time.Now().UTC()}}
	snapshotOf(&snap, r)
	if r.Name != "" {
		snap.Label = "sandbox " + r.Name
	}
	return label(what, &snap)
}

// instanceLabel is the label of a running sandbox. What the sandbox may reach can
// change while it runs, so that the label allows nothing.
func instanceLabel(r *store.Record) json.RawMessage {
	closed := *r
	closed.Network, closed.Bindings = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, nil
	return sandboxLabel(keptRunning, &closed)
}

// setCheckpointAside keeps a checkpoint for whoever misses it.
func (s *Service) setCheckpointAside(ctx context.Context, c *engine.Checkpoint, why string) error {
	it := orphan.Item{ID: c.ID, Kind: orphan.Checkpoint, SizeBytes: c.SizeBytes, Why: why, Record: c.Label}
	var known keptAs
	if json.Unmarshal(c.Label, &known) == nil {
		it.Team, it.Name, it.SandboxID = known.Snapshot.Team, known.Snapshot.Name, known.Snapshot.SandboxID
	}
	it, err := s.cfg.Orphans.Put(it, func(to string) error { return s.checkpointer.SetAside(ctx, c.ID, to) })
	if err != nil {
		return err
	}
	s.log.Warn("set aside the state of a sandbox; cove recover brings it back", "checkpoint", c.ID, "why", why, "sandbox", it.SandboxID, "team", it.Team, "until", s.orphanEnd(&it))
	return nil
}

// setAsideOrLeave is setCheckpointAside for one that stays where it is if that
// fails, as on another file system, so that others are looked at. It says so
// once.
func (s *Service) setAsideOrLeave(ctx context.Context, c *engine.Checkpoint, why string) {
	err := s.setCheckpointAside(ctx, c, why)
	s.mu.Lock()
	said := s.stuck[c.ID]
	if err == nil {
		delete(s.stuck, c.ID)
	} else {
		s.stuck[c.ID] = true
	}
	s.mu.Unlock()
	if err != nil && !said && ctx.Err() == nil {
		s.log.Error("the state of a sandbox that no record names cannot be set aside and stays where it is", "checkpoint", c.ID, "error", err)
	}
}

// endUnknown ends an instance that no record names. One that was somebody's
// sandbox has its state kept first, if it can be.
func (s *Service) endUnknown(ctx context.Context, st engine.Status) error {
	if st.Running && st.Label != nil && s.checkpointer != nil && s.cfg.Orphans != nil {
		err := s.saveUnknown(ctx, &st)
		if err == nil {
			return nil
		}
		s.log.Error("the state of a sandbox without a record could not be kept; it is ended", "sandbox", st.ID, "error", call.Detailed(err))
	}
	if err := s.cfg.Engine.Destroy(ctx, st.ID); err != nil {
		return fmt.Errorf("remove unknown instance %s: %w", st.ID, err)
	}
	s.log.Warn("removed an instance without a record", "sandbox", st.ID)
	return nil
}

func (s *Service) saveUnknown(ctx context.Context, st *engine.Status) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	c, err := s.checkpointer.Checkpoint(ctx, st.ID, ids.New(ids.Checkpoint), engine.CheckpointOptions{
		Durable: true, Label: st.Label, Commit: func(engine.Checkpoint) error { return nil },
	})
	if err != nil {
		return err
	}
	s.setAsideOrLeave(context.WithoutCancel(ctx), &c, "it ran, and no record named it")
	return nil
}

func (s *Service) orphanEnd(it *orphan.Item) time.Time {
	return it.Since.Add(s.cfg.OrphanRetention)
}

// trimOrphans removes what was aside for long enough and, while the disk is low,
// the rest, the oldest first.
func (s *Service) trimOrphans(now time.Time) error {
	if s.cfg.Orphans == nil {
		return nil
	}
	all, err := s.cfg.Orphans.List()
	if err != nil {
		return err
	}
	s.recovering.Lock()
	defer s.recovering.Unlock()
	var errs []error
	for i := range all {
		why := "its time is over"
		if now.Before(s.orphanEnd(&all[i])) {
			low, err := s.diskLow()
			if err != nil || !low {
				errs = append(errs, err)
				break
			}
			why = "the disk is nearly full"
		}
		if err := s.cfg.Orphans.Remove(all[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		s.log.Info("removed what was set aside", "id", all[i].ID, "kind", all[i].Kind, "since", all[i].Since, "why", why)
	}
	return errors.Join(errs...)
}

// diskLow reports whether the disk is so full that what is set aside must go.
func (s *Service) diskLow() (bool, error) {
	free, total, err := s.cfg.Room()
	if err != nil {
		return false, fmt.Errorf("look how much of the disk is free: %w", err)
	}
	return free < min(total/lowPart, lowMost), nil
}

// roomOf tells what is free of a disk, and its size, in bytes.
func roomOf(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// orphanRoots returns the digests of root file systems that are needed by what is
// aside.
func (s *Service) orphanRoots() (map[string]bool, error) {
	roots := map[string]bool{}
	if s.cfg.Orphans == nil {
		return roots, nil
	}
	all, err := s.cfg.Orphans.List()
	for i := range all {
		var known keptAs
		if json.Unmarshal(all[i].Record, &known) == nil && known.Snapshot.Origin != "" {
			roots[known.Snapshot.Origin] = true
		}
	}
	return roots, err
}
