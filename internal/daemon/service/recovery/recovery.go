// Package recovery keeps what no record names: checkpoints that are found without a
// record are set aside for a while, as volumes are, and it recovers both on request.
package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/internal/engine"
)

// DefaultRetention is how long an orphan is kept.
const DefaultRetention = 7 * 24 * time.Hour

const (
	// lowPart and lowMost say when the disk is low: less than one part of it is
	// free, or that many bytes.
	lowPart = 20
	lowMost = 2 << 30
	// saveTimeout bounds keeping the state of a sandbox without a record, and
	// measureTimeout measuring its volume.
	saveTimeout = time.Minute
)

// Config says what [Recovery] works with.
type Config struct {
	Gate   *call.Gate
	Store  store.Store
	Engine engine.Engine
	// Checkpointer is the engine, or nil if it keeps no state.
	Checkpointer engine.Checkpointer
	Log          *slog.Logger
	// Dir keeps orphans for Retention; without it there are none.
	Dir       *orphan.Dir
	Retention time.Duration
	// Room returns the free and the total bytes of the disk of Dir.
	Room func() (free, total int64, err error)
	// VolumeFiles has the files of volumes; nil if there are none. SetVolumeAside
	// sets a volume aside again.
	VolumeFiles    *volume.Dir
	SetVolumeAside func(ctx context.Context, id, why string) error
	// Hold keeps a checkpoint in place until the result is called.
	Hold func(checkpoint string) (release func())
}

// Recovery implements [sandbox.Orphans]. It is safe for concurrent use.
type Recovery struct {
	cfg Config
	// changing is held while orphans are added, recovered or removed.
	changing sync.Mutex

	mu sync.Mutex
	// stuck are the checkpoints that could not be set aside. Guarded by mu.
	stuck map[string]bool
}

// New returns the recovery of a server.
func New(cfg Config) *Recovery { return &Recovery{cfg: cfg, stuck: map[string]bool{}} }

// SetAside makes an orphan of a checkpoint, so that it can be recovered.
func (s *Recovery) SetAside(ctx context.Context, c *engine.Checkpoint, why string) error {
	it := orphan.Item{ID: c.ID, Kind: orphan.Checkpoint, SizeBytes: c.SizeBytes, Why: why, Record: c.Label}
	var known keptAs
	if json.Unmarshal(c.Label, &known) == nil {
		it.Team, it.Name, it.SandboxID = known.Snapshot.Team, known.Snapshot.Name, known.Snapshot.SandboxID
	}
	it, err := s.cfg.Dir.Put(it, func(to string) error { return s.cfg.Checkpointer.SetAside(ctx, c.ID, to) })
	if err != nil {
		return err
	}
	s.cfg.Log.Warn("set aside the state of a sandbox; cove recover brings it back", "checkpoint", c.ID, "why", why, "sandbox", it.SandboxID, "team", it.Team, "until", s.endOf(&it))
	return nil
}

// SetAsideOrLeave is SetAside, but leaves the checkpoint where it is if that fails, for
// example because it is on another file system. It logs that once per checkpoint.
func (s *Recovery) SetAsideOrLeave(ctx context.Context, c *engine.Checkpoint, why string) {
	err := s.SetAside(ctx, c, why)
	s.mu.Lock()
	said := s.stuck[c.ID]
	if err == nil {
		delete(s.stuck, c.ID)
	} else {
		s.stuck[c.ID] = true
	}
	s.mu.Unlock()
	if err != nil && !said && ctx.Err() == nil {
		s.cfg.Log.Error("the state of a sandbox that no record names cannot be set aside and stays where it is", "checkpoint", c.ID, "error", err)
	}
}

// EndUnknown ends an instance that no record names. If it was somebody's sandbox, its
// state is kept first if possible.
func (s *Recovery) EndUnknown(ctx context.Context, st engine.Status) error {
	if st.Running && st.Label != nil && s.cfg.Checkpointer != nil && s.cfg.Dir != nil {
		err := s.saveUnknown(ctx, &st)
		if err == nil {
			return nil
		}
		s.cfg.Log.Error("the state of a sandbox without a record could not be kept; it is ended", "sandbox", st.ID, "error", call.Detailed(err))
	}
	if err := s.cfg.Engine.Destroy(ctx, st.ID); err != nil {
		return fmt.Errorf("remove unknown instance %s: %w", st.ID, err)
	}
	s.cfg.Log.Warn("removed an instance without a record", "sandbox", st.ID)
	return nil
}

func (s *Recovery) saveUnknown(ctx context.Context, st *engine.Status) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	c, err := s.cfg.Checkpointer.Checkpoint(ctx, st.ID, ids.New(ids.Checkpoint), engine.CheckpointOptions{
		Durable: true, Label: st.Label, Commit: func(engine.Checkpoint) error { return nil },
	})
	if err != nil {
		return err
	}
	s.SetAsideOrLeave(context.WithoutCancel(ctx), &c, "it was running, and no record named it")
	return nil
}

func (s *Recovery) endOf(it *orphan.Item) time.Time {
	return it.Since.Add(s.cfg.Retention)
}

// Trim removes orphans whose retention is over and, while the disk is low, the others,
// oldest first.
func (s *Recovery) Trim(now time.Time) error {
	if s.cfg.Dir == nil {
		return nil
	}
	all, err := s.cfg.Dir.List()
	if err != nil {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	var errs []error
	for i := range all {
		why := "its retention has ended"
		if now.Before(s.endOf(&all[i])) {
			low, err := s.diskLow()
			if err != nil || !low {
				errs = append(errs, err)
				break
			}
			why = "the disk is nearly full"
		}
		if err := s.cfg.Dir.Remove(all[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		s.cfg.Log.Info("removed what was set aside", "id", all[i].ID, "kind", all[i].Kind, "since", all[i].Since, "why", why)
	}
	return errors.Join(errs...)
}

// diskLow reports whether the disk is so full that orphans must be removed.
func (s *Recovery) diskLow() (bool, error) {
	free, total, err := s.cfg.Room()
	if err != nil {
		return false, fmt.Errorf("look how much of the disk is free: %w", err)
	}
	return free < min(total/lowPart, lowMost), nil
}

// RoomOf returns the free and the total bytes of the disk of a directory.
func RoomOf(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Roots returns the digests of root file systems that orphans need.
func (s *Recovery) Roots() (map[string]bool, error) {
	roots := map[string]bool{}
	if s.cfg.Dir == nil {
		return roots, nil
	}
	all, err := s.cfg.Dir.List()
	for i := range all {
		var known keptAs
		if json.Unmarshal(all[i].Record, &known) == nil && known.Snapshot.Origin != "" {
			roots[known.Snapshot.Origin] = true
		}
	}
	return roots, err
}
