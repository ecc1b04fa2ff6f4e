package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// checkpointLook is how often sandboxes are looked for whose automatic checkpoint is due,
	// and checkpointsAtOnce how many are made at once.
	checkpointLook    = 5 * time.Second
	checkpointsAtOnce = 2
	// checkpointAgain is when an automatic checkpoint is tried again that has made way.
	checkpointAgain = 15 * time.Second
)

// checkpointLoop keeps the states of running sandboxes at their intervals.
func (s *Service) checkpointLoop() {
	t := time.NewTicker(checkpointLook)
	defer t.Stop()
	for {
		select {
		case <-s.gate.Context().Done():
			return
		case <-t.C:
		}
		s.settleStored(s.gate.Context())
		s.checkpointDue()
	}
}

// checkpointDue begins the automatic checkpoints that are due, the longest overdue first, as
// far as there are places.
func (s *Service) checkpointDue() {
	now := time.Now()
	var due []*handle
	for _, h := range s.running() {
		if h.checkpoints.due(now) {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *handle) int { return a.checkpoints.next().Compare(b.checkpoints.next()) })
	for _, h := range due {
		select {
		case s.keeping <- struct{}{}:
		default:
			return // they are still due at the next look
		}
		h.checkpoints.begin()
		began := s.gate.Go(func() {
			defer func() { <-s.keeping }()
			h.checkpoints.end(s.checkpointOne(s.gate.Context(), h))
		})
		if !began {
			<-s.keeping
			return
		}
	}
}

// checkpointOne makes an automatic checkpoint if the sandbox was in use since the last one,
// and returns when to look again.
func (s *Service) checkpointOne(ctx context.Context, h *handle) time.Time {
	now := time.Now()
	interval := h.checkpoints.interval()
	r, err := s.cfg.Store.Sandbox(ctx, h.id)
	if err != nil || r.State != sandbox.StateRunning || r.Instance != h.instance.ID() {
		return now.Add(interval)
	}
	if kept := s.replicator(); kept != nil && r.Kept.Next.Checkpoint != "" {
		if waits, failure := kept.Waits(r.Kept.Next.Checkpoint); waits && failure == nil {
			return now.Add(checkpointLook) // or it would never be stored
		}
	}
	cpu, used := s.usedSince(ctx, h, &r)
	if !used {
		return now.Add(interval)
	}
	err = s.takeCheckpoint(ctx, h)
	switch {
	case err == nil:
		h.checkpoints.used(now, cpu)
		s.metrics.checkpoint("kept")
	case ctx.Err() != nil || sandbox.CodeOf(err) == sandbox.CodeNotRunning || errors.Is(err, errMoved):
	case errors.Is(err, errMadeWay):
		s.metrics.checkpoint("deferred")
		return now.Add(min(interval, checkpointAgain))
	default:
		s.metrics.checkpoint("failed")
		s.noteCheckpointFailure(ctx, &r, err)
	}
	return now.Add(interval)
}

// usedSince reports whether a sandbox was in use since its last automatic checkpoint: it was
// called, a command ran, or it used more than a little processor time.
func (s *Service) usedSince(ctx context.Context, h *handle, r *store.Record) (cpu int64, used bool) {
	now := time.Now()
	if st, err := h.instance.Stats(ctx); err == nil {
		cpu = st.CPUNanos
		used = h.checkpoints.busy(now, cpu)
	}
	last, err := s.lastUse(ctx, r, now)
	return cpu, used || err != nil || r.Kept.Newest().Checkpoint == "" || last.After(r.Kept.Newest().At)
}

// takeCheckpoint makes an automatic checkpoint of a running sandbox. It makes way for every
// other transition.
func (s *Service) takeCheckpoint(ctx context.Context, h *handle) error {
	if err := s.needCheckpointer(); err != nil {
		return err
	}
	ctx, done, ok := s.weakLock(ctx, h.id)
	if !ok {
		return errMadeWay
	}
	defer done()
	err := s.takeCheckpointLocked(ctx, h)
	if err != nil && errors.Is(context.Cause(ctx), errMadeWay) {
		return errMadeWay
	}
	return err
}

func (s *Service) takeCheckpointLocked(ctx context.Context, h *handle) error {
	r, err := s.cfg.Store.Sandbox(ctx, h.id)
	if err != nil {
		return err
	}
	if r.State != sandbox.StateRunning || r.Instance != h.instance.ID() || r.CheckpointIntervalSeconds == 0 {
		return errMoved
	}
	if s.cfg.Quota.DiskMiB > 0 {
		// Its own size is known only once it is made.
		used, err := s.cfg.Store.SandboxUsage(ctx, r.Team)
		if err := cmp.Or(err, s.cfg.Quota.AdmitDisk(used.DiskMiB, 1)); err != nil {
			return err
		}
	}
	// It is only of use if the instance cannot run on unseen.
	if f, ok := s.cfg.Engine.(engine.Fencer); ok {
		if err := f.Fence(ctx, r.Instance); err != nil {
			return err
		}
	}
	id := ids.New(ids.Checkpoint)
	defer s.collectSoon() // of it if it is not recorded, or of the one before it
	defer s.use(id)()
	at := time.Now().UTC()
	c, err := s.checkpointer.Checkpoint(ctx, r.Instance, id, engine.CheckpointOptions{
		Durable: true, Owner: r.Team, Label: recovery.SandboxLabel(recovery.KeptAutomatic, &r),
	})
	if err != nil {
		return h.explain(ctx, engineError(&r, err))
	}
	if err := s.Volumes.Sync(ctx, &r, "no automatic checkpoint of sandbox "+r.ID+" was made"); err != nil {
		return err
	}
	kept, err := s.cfg.Store.UpdateSandbox(context.WithoutCancel(ctx), r.ID, store.Change{
		From:  []sandbox.State{sandbox.StateRunning},
		Quota: s.cfg.Quota,
		Apply: func(now *store.Record) error {
			if now.Instance != r.Instance || now.CheckpointIntervalSeconds == 0 {
				return errMoved
			}
			s.keepState(now, store.KeptState{Checkpoint: id, At: at, SizeBytes: c.SizeBytes})
			return nil
		},
	})
	if err == nil {
		s.storing(&kept)
	}
	return err
}

// noteCheckpointFailure records why an automatic checkpoint was not made.
func (s *Service) noteCheckpointFailure(ctx context.Context, r *store.Record, why error) {
	s.log.Warn("no automatic checkpoint was made; it is tried again at the next interval", "sandbox", r.ID, "error", call.Detailed(why))
	_, err := s.cfg.Store.UpdateSandbox(ctx, r.ID, store.Change{
		From: []sandbox.State{sandbox.StateRunning},
		Apply: func(now *store.Record) error {
			if now.Instance != r.Instance {
				return errMoved
			}
			now.Kept.FailedAt, now.Kept.Failure = time.Now().UTC(), failureText(why)
			return nil
		},
	})
	if err != nil && ctx.Err() == nil && sandbox.CodeOf(err) != sandbox.CodeNotRunning && sandbox.CodeOf(err) != sandbox.CodeNotFound && !errors.Is(err, errMoved) {
		s.log.Error("record why no automatic checkpoint was made", "sandbox", r.ID, "error", err)
	}
}

// settleStored notes which newest automatic checkpoints are stored elsewhere by now. Those
// before them are no longer needed.
func (s *Service) settleStored(ctx context.Context) {
	s.mu.Lock()
	unstored := maps.Clone(s.unstored)
	s.mu.Unlock()
	kept := s.replicator()
	for id, checkpoint := range unstored {
		if kept != nil {
			if at := kept.Kept(checkpoint); at != engine.PlaceStored && at != engine.PlaceRemote {
				if r, err := s.cfg.Store.Sandbox(ctx, id); err == nil && !r.State.Final() && r.Kept.Next.Checkpoint == checkpoint {
					continue
				}
			}
		}
		_, err := s.cfg.Store.UpdateSandbox(ctx, id, store.Change{Apply: func(r *store.Record) error {
			if r.Kept.Next.Checkpoint == checkpoint && !r.State.Final() {
				r.Kept.Last, r.Kept.Next = r.Kept.Next, store.KeptState{}
			}
			return nil
		}})
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			if ctx.Err() == nil {
				s.log.Error("note that an automatic checkpoint is stored", "sandbox", id, "error", err)
			}
			continue
		}
		s.mu.Lock()
		if s.unstored[id] == checkpoint {
			delete(s.unstored, id)
		}
		s.mu.Unlock()
		s.collectSoon()
	}
}
