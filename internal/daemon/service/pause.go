package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// wakeTimeout limits a resume that a call needs. The resume continues when the caller
// leaves, since other callers may wait for it.
const wakeTimeout = 2 * time.Minute

// Pause implements [sandbox.Snapshots].
func (s *Service) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.pause"), func(c *call.Call) (*sandbox.Sandbox, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		paused, err := s.pause(c.Ctx, r.ID, nothing)
		if err != nil {
			return nil, err
		}
		return s.view(paused), nil
	})
}

// A settle is called when only the record of a change remains to be written, and
// decides whether to write it. The function that it returns is called afterwards.
type settle func() (done func(), err error)

// nothing is the [settle] that always agrees.
func nothing() (done func(), err error) { return func() {}, nil }

// pause keeps the state of a running sandbox and ends its instance.
func (s *Service) pause(ctx context.Context, id string, settle settle) (store.Record, error) {
	if err := s.needCheckpointer(); err != nil {
		return store.Record{}, err
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	defer unlock()
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil || r.State == sandbox.StatePaused {
		return r, err
	}
	h, err := s.openRecord(ctx, &r)
	if err != nil {
		return r, err
	}
	checkpoint := ids.New(ids.Checkpoint)
	defer s.use(checkpoint)()
	var paused store.Record
	_, err = s.checkpointer.Checkpoint(ctx, r.Instance, checkpoint, engine.CheckpointOptions{
		Durable: true, Owner: r.Team,
		Label: recovery.SandboxLabel(recovery.KeptPause, &r),
		Commit: func(c engine.Checkpoint) (err error) {
			if err := s.Volumes.Sync(ctx, &r, "sandbox "+r.ID+" was not paused"); err != nil {
				return err
			}
			done, err := settle()
			if err != nil {
				return err
			}
			defer done()
			paused, err = s.commitPause(ctx, &r, &c)
			return err
		},
	})
	if err != nil {
		return r, h.explain(ctx, engineError(&r, err))
	}
	s.storing(&paused)
	s.collectSoon() // the automatic checkpoint before this one
	return paused, nil
}

// commitPause records that a sandbox is paused. From then on it is, whatever happens to
// its instance.
func (s *Service) commitPause(ctx context.Context, r *store.Record, c *engine.Checkpoint) (store.Record, error) {
	last := r.LastActiveAt
	s.mu.Lock()
	if h := s.handles[r.ID]; h != nil {
		if at, _ := h.lastActive(); at.After(last) {
			last = at
		}
	}
	s.mu.Unlock()
	defer s.holdCalls(r.ID, r.Instance)()
	paused, err := s.cfg.Store.UpdateSandbox(ctx, r.ID, store.Change{
		From: []sandbox.State{sandbox.StateRunning},
		Apply: func(now *store.Record) error {
			if now.Instance != r.Instance {
				return changedMeanwhile(r.ID)
			}
			at := time.Now().UTC()
			now.State, now.Checkpoint, now.PausedAt = sandbox.StatePaused, c.ID, &at
			if now.CheckpointIntervalSeconds > 0 {
				// It stays after the resume, when it is as good as an automatic one.
				s.keepState(now, store.KeptState{Checkpoint: c.ID, At: at, SizeBytes: c.SizeBytes})
			}
			now.PausedExpiresAt = expiry(at, now.PausedLifetimeSeconds)
			noteMoment(now, sandbox.Moment{Kind: sandbox.MomentPaused, At: at})
			now.LastActiveAt = last.UTC()
			return nil
		},
	})
	if errors.Is(err, store.ErrInDoubt) {
		now, nerr := s.outcome(ctx, r.ID)
		switch {
		case nerr != nil:
			s.settlePaused(r, c.ID)
			return paused, errors.Join(err, engine.ErrUndecided)
		case isPausedIn(&now, r.Instance, c.ID):
			paused, err = now, nil
		default:
			err = notStored(err)
		}
	}
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
			err = call.NotRunning(&paused)
		}
		return paused, err
	}
	s.dropPaused(r)
	return paused, nil
}

func changedMeanwhile(id string) error {
	return sandbox.Errorf(sandbox.CodeConflict, "sandbox %s was restored or merged at the same time; check its state and try again", id)
}

// engineError explains an error of the engine about a sandbox.
func engineError(r *store.Record, err error) error {
	if errors.Is(err, engine.ErrNotFound) {
		return call.Unavailable(err, "sandbox %s is not responding; try again", r.ID)
	}
	return err
}

// Resume implements [sandbox.Snapshots].
func (s *Service) Resume(ctx context.Context, ref string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.resume"), func(c *call.Call) (*sandbox.Sandbox, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		switch r.State {
		case sandbox.StateRunning:
			if req.FilesOnly {
				return nil, sandbox.Errorf(sandbox.CodeConflict, "sandbox %s is running; pause it, then resume it with files_only", r.ID)
			}
			return s.view(r), nil
		case sandbox.StatePaused:
		default:
			return nil, call.NotRunning(&r)
		}
		if req.FilesOnly {
			c.Detail = "files only"
			r, err = s.resume(c.Ctx, r.ID, true)
		} else {
			r, err = s.wake(c.Ctx, &r)
		}
		if err != nil {
			return nil, err
		}
		return s.view(r), nil
	})
}

// wake resumes a paused sandbox, once for all callers that ask at the same time.
func (s *Service) wake(ctx context.Context, r *store.Record) (store.Record, error) {
	done := s.waking.DoChan(r.ID, func() (any, error) {
		leave, err := s.gate.Begin()
		if err != nil {
			return nil, err
		}
		defer leave()
		ctx, cancel := context.WithTimeout(s.gate.Context(), wakeTimeout)
		defer cancel()
		return s.resume(ctx, r.ID, false)
	})
	select {
	case res := <-done:
		if res.Err != nil {
			return *r, res.Err
		}
		return res.Val.(store.Record), nil
	case <-ctx.Done():
		return *r, ctx.Err()
	}
}

// resume continues a paused sandbox in a new instance. The sandbox stays paused until
// the new instance answers.
func (s *Service) resume(ctx context.Context, id string, filesOnly bool) (store.Record, error) {
	if err := s.needCheckpointer(); err != nil {
		return store.Record{}, err
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	defer unlock()
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil || r.State == sandbox.StateRunning {
		return r, err
	}
	if r.State != sandbox.StatePaused {
		return r, call.NotRunning(&r)
	}
	defer s.use(r.Checkpoint)()
	root, err := startup.RootOf(r.Root)
	if err != nil {
		return r, err
	}
	from := bootSource{root: root, checkpoint: r.Checkpoint, filesOnly: filesOnly, startup: startup.Recorded(r.Root)}
	began := time.Now()
	running, err := s.replace(ctx, &r, from, func(now *store.Record) error {
		if now.State != sandbox.StatePaused || now.Checkpoint != r.Checkpoint {
			return call.NotRunning(now)
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	s.gate.System(&running, "sandbox.resumed", fmt.Sprintf("in %s", time.Since(began).Round(time.Millisecond)))
	return running, nil
}

// replace makes a new instance for a running or paused sandbox, and lets the sandbox
// continue in it. Check is called while the record is locked and may change the record
// further; its error stops the change. On an error the sandbox is as it was before.
//
// Preconditions: the caller holds the lock of the sandbox.
func (s *Service) replace(ctx context.Context, r *store.Record, from bootSource, check func(*store.Record) error) (store.Record, error) {
	if err := s.admitResume(ctx, r); err != nil {
		return *r, err
	}
	next := *r
	next.Instance = ids.New(ids.Sandbox)
	died, forget := s.expect(next.Instance)
	defer forget()
	spec, err := s.spec(ctx, &from, &next)
	if err != nil {
		return *r, err
	}
	instance, err := s.cfg.Engine.Create(ctx, spec)
	if err != nil {
		return *r, err
	}
	if err := from.startIn(ctx, instance); err != nil && ctx.Err() == nil {
		// The caller asked for the files. A start command that the files have broken
		// can only be repaired inside the sandbox.
		s.gate.System(r, "sandbox.start_failed", sandbox.MessageOf(err))
	}
	h := newHandle(&next, instance)
	running, err := *r, died()
	if err == nil {
		running, err = s.continueRecord(ctx, r, instance, check)
	}
	if err != nil {
		h.client.Close()
		if errors.Is(err, store.ErrInDoubt) {
			s.settleContinued(r, next.Instance)
		} else {
			s.destroy(ctx, next.Instance)
		}
		return *r, call.RetryLater(err)
	}
	h.history.Store(int32(running.History))
	h.checkpoints.set(&running)
	s.swap(&running, h)
	s.fenceKept(h)
	s.endInstance(ctx, r)
	if err := died(); err != nil {
		_, _ = s.fail(ctx, &running, sandbox.MessageOf(err)) // what fails is logged, and tried again
	}
	return running, nil
}

// fenceTimeout bounds how long a node may take to fence an instance, and fencesAtOnce is how
// many are fenced at the same time.
const (
	fenceTimeout = 10 * time.Second
	fencesAtOnce = 16
)

// fenceKept fences the instance of a sandbox that could go back to a state from before the
// instance, such as that of a pause: if the instance is lost, it must not run on unseen.
func (s *Service) fenceKept(h *handle) {
	f, ok := s.cfg.Engine.(engine.Fencer)
	if !ok || !h.checkpoints.beginFence() {
		return
	}
	if !s.gate.Go(func() {
		ctx, cancel := context.WithTimeout(s.gate.Context(), fenceTimeout)
		defer cancel()
		err := s.fences.Acquire(ctx, 1)
		if err == nil {
			err = f.Fence(ctx, h.instance.ID())
			s.fences.Release(1)
		}
		if err != nil && s.gate.Context().Err() == nil {
			s.log.Debug("fence a sandbox; it is tried again", "sandbox", h.id, "error", err)
		}
		h.checkpoints.endFence(err == nil)
	}) {
		h.checkpoints.endFence(false)
	}
}

// admitResume refuses, before the work is done, to resume a sandbox over the quota.
func (s *Service) admitResume(ctx context.Context, r *store.Record) error {
	if r.State != sandbox.StatePaused {
		return nil
	}
	used, err := s.cfg.Store.SandboxUsage(ctx, r.Team)
	if err != nil {
		return err
	}
	more := store.Usage{VCPUs: r.Resources.VCPUs, MemoryMiB: r.Resources.MemoryMiB}
	if err := s.cfg.Quota.Admit(used, more); err != nil {
		return call.RetryLater(err)
	}
	return s.Builder.Admit(ctx, r.Team, more)
}

// expect registers an instance that no record has yet. Died returns the reason if the
// instance has ended.
func (s *Service) expect(instance string) (died func() error, forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[instance] = ""
	died = func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if why := s.coming[instance]; why != "" {
			return sandbox.Errorf(sandbox.CodeUnavailable, "the machine that the sandbox was to continue on ended at once: %s; try again", why)
		}
		return nil
	}
	return died, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.coming, instance)
	}
}

// continueRecord records that a sandbox continues in a new instance.
func (s *Service) continueRecord(ctx context.Context, r *store.Record, instance engine.Instance, check func(*store.Record) error) (store.Record, error) {
	running, err := s.cfg.Store.UpdateSandbox(ctx, r.ID, store.Change{
		From:  []sandbox.State{sandbox.StateRunning, sandbox.StatePaused},
		Quota: s.cfg.Quota,
		Apply: func(now *store.Record) error {
			if now.Instance != r.Instance {
				return changedMeanwhile(r.ID)
			}
			if err := check(now); err != nil {
				return err
			}
			s.continueIn(now, instance)
			return nil
		},
	})
	if errors.Is(err, store.ErrInDoubt) {
		if now, nerr := s.outcome(ctx, r.ID); nerr == nil {
			running = now
			if err = notStored(err); isIn(&now, instance.ID()) {
				err = nil
			}
		}
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning && running.State != sandbox.StatePaused {
		err = call.NotRunning(&running)
	}
	return running, err
}

// continueIn changes a record to say that the sandbox runs in an instance.
func (s *Service) continueIn(r *store.Record, instance engine.Instance) {
	now := time.Now().UTC()
	if r.State == sandbox.StatePaused && r.OnTimeout == sandbox.ActionPause {
		r.ExpiresAt = expiry(now, r.LifetimeSeconds)
	}
	endPause(r, now)
	r.State, r.Instance, r.Checkpoint, r.PausedAt = sandbox.StateRunning, instance.ID(), "", nil
	r.PausedExpiresAt = nil
	if r.Kept.Newest().Checkpoint != "" {
		r.Kept.Since = now
	}
	r.LastActiveAt, r.BootID, r.Held, r.Applying = now, s.cfg.Boot.ID, true, false
	r.Unenforced = instance.Unenforced()
}

// swap replaces the handle of a sandbox's old instance, whose calls end, by the handle
// of its new one. If a call that has seen the record has already opened the new
// instance, the handle of that call stays.
func (s *Service) swap(r *store.Record, h *handle) {
	h.noteJobs()
	s.mu.Lock()
	old := s.handles[r.ID]
	same := old != nil && old.instance.ID() == h.instance.ID()
	if !same {
		s.handles[r.ID] = h
	}
	s.mu.Unlock()
	switch {
	case same:
		h.client.Close()
	case old != nil:
		old.end(sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s changed its state during the call; check its state and try again", r.ID))
	}
	// The sandbox may have been killed since the record was changed. Whoever kills a
	// sandbox changes the record first and drops the handle second.
	ctx, cancel := call.Teardown(s.gate.Context())
	defer cancel()
	if now, err := s.cfg.Store.Sandbox(ctx, r.ID); err == nil && (now.State != sandbox.StateRunning || now.Instance != r.Instance) {
		s.dropInstance(r, r.Instance, call.NotRunning(&now))
	}
	if !same {
		s.announceFound(h)
	}
}
