package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
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
	// and checkpointsAtOnce how many are made at once on each machine.
	checkpointLook    = 5 * time.Second
	checkpointsAtOnce = 2
	// checkpointAgain is when an automatic checkpoint is tried again that has made way, and
	// checkpointTimeout bounds one, so that a sandbox that hangs keeps none of the others waiting.
	checkpointAgain   = 15 * time.Second
	checkpointTimeout = 15 * time.Minute
	usageTimeout      = 10 * time.Second
	// openEvery is how often sandboxes are opened whose node was away when the server started:
	// one that nobody calls has automatic checkpoints, too.
	openEvery = time.Minute
)

// checkpointLoop keeps the states of running sandboxes at their intervals.
func (s *Service) checkpointLoop() {
	t := time.NewTicker(cmp.Or(s.cfg.checkpointLook, checkpointLook))
	defer t.Stop()
	opened := time.Now()
	for {
		select {
		case <-s.gate.Context().Done():
			return
		case <-t.C:
		}
		s.settleStored(s.gate.Context())
		if time.Since(opened) >= openEvery {
			s.openKept(s.gate.Context())
			opened = time.Now()
		}
		for _, h := range s.running() {
			s.fenceKept(h)
		}
		s.checkpointDue()
	}
}

// openKept opens running sandboxes with automatic checkpoints that nobody has used since the
// server has started.
func (s *Service) openKept(ctx context.Context) {
	if _, several := s.cfg.Engine.(engine.Fencer); !several {
		return // all were opened at the start
	}
	var late []store.Record
	err := s.held(ctx, []sandbox.State{sandbox.StateRunning}, func(r store.Record) {
		if r.CheckpointIntervalSeconds > 0 && !s.isOpen(r.ID) {
			late = append(late, r)
		}
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("look for sandboxes with automatic checkpoints", "error", err)
	}
	for _, r := range late {
		if _, err := s.openRecord(ctx, &r); err != nil {
			s.log.Debug("open a sandbox with automatic checkpoints", "sandbox", r.ID, "error", err)
		}
	}
}

// checkpointQueue has, for each machine, the sandboxes whose automatic checkpoint is due, and
// the number of workers that make these. It is safe for concurrent use.
type checkpointQueue struct {
	mu      sync.Mutex
	due     map[string][]*handle // guarded by mu; the longest overdue first
	workers map[string]int       // guarded by mu
}

// fill replaces what is due.
func (q *checkpointQueue) fill(due map[string][]*handle) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.due = due
}

// hire reports whether a machine has work for another worker, who takes it with next.
func (q *checkpointQueue) hire(place string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.due[place]) == 0 || q.workers[place] >= checkpointsAtOnce {
		return false
	}
	q.workers[place]++
	return true
}

// next returns what a worker does next. It is nil when there is nothing left to do, or if the
// worker is to stop: then the worker is none any more.
func (q *checkpointQueue) next(place string, stop bool) *handle {
	q.mu.Lock()
	defer q.mu.Unlock()
	for list := q.due[place]; len(list) > 0 && !stop; list = q.due[place] {
		q.due[place] = list[1:]
		if list[0].checkpoints.begin(time.Now()) {
			return list[0]
		}
	}
	if q.workers[place]--; q.workers[place] == 0 {
		delete(q.workers, place)
	}
	return nil
}

// checkpointDue has workers make the automatic checkpoints that are due.
func (s *Service) checkpointDue() {
	now := time.Now()
	placer, _ := s.cfg.Engine.(engine.Placer)
	due := map[string][]*handle{}
	for _, h := range s.running() {
		if !h.checkpoints.due(now) {
			continue
		}
		place := ""
		if placer != nil {
			place = placer.PlaceOf(engine.Source{Instance: h.instance.ID()})
		}
		due[place] = append(due[place], h)
	}
	for _, list := range due {
		slices.SortFunc(list, func(a, b *handle) int { return a.checkpoints.next().Compare(b.checkpoints.next()) })
	}
	places := slices.Collect(maps.Keys(due))
	s.keeping.fill(due)
	for _, place := range places {
		for s.keeping.hire(place) {
			if !s.gate.Go(func() { s.makeCheckpoints(place) }) {
				s.keeping.next(place, true)
				return
			}
		}
	}
}

// makeCheckpoints makes the automatic checkpoints that are due on a machine.
func (s *Service) makeCheckpoints(place string) {
	ctx := s.gate.Context()
	for {
		h := s.keeping.next(place, ctx.Err() != nil)
		if h == nil {
			return
		}
		h.checkpoints.end(s.checkpointOne(ctx, h))
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
	limited, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	err = s.takeCheckpoint(limited, h)
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
	limited, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if st, err := h.instance.Stats(limited); err == nil {
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
