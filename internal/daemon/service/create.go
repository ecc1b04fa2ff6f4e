package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// creation is a Create that is under way in this process.
type creation struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when Create no longer uses the sandbox
}

// errKilled is the cause of the cancellation of a Create by [Service.Kill].
var errKilled = errors.New("killed while it was being created")

// Create implements [sandbox.Sandboxes].
func (s *Service) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.create"), func(c *call.Call) (_ *sandbox.Sandbox, err error) {
		if err := checkCreate(&req, &c.Caller); err != nil {
			return nil, err
		}
		if req.Namespace, err = c.Namespace(req.Namespace); err != nil {
			return nil, err
		}
		if req.Dedicated == nil {
			req.Dedicated = &s.cfg.Dedicated
		}
		capacity, err := s.capacityFor(*req.Dedicated)
		if err != nil {
			return nil, err
		}
		if req.FitResources {
			req.Resources = capacity.Fit(req.Resources)
		}
		if err := capacity.Check("resources.", req.Resources); err != nil {
			return nil, err
		}
		if err := s.checkPauses(req.OnTimeout); err != nil {
			return nil, err
		}
		if req.History > 0 || req.CheckpointIntervalSeconds != nil && *req.CheckpointIntervalSeconds > 0 {
			if err := s.needCheckpointer(); err != nil {
				return nil, err
			}
		}
		r, from, err := s.draft(c, &req)
		if err != nil {
			return nil, err
		}
		defer from.release()
		c.SandboxID = r.ID
		if err := s.Secrets.BindAll(c, &r, req.Secrets); err != nil {
			return nil, err
		}
		headerBindings, err := s.Secrets.HeaderBindings(c, r.Network, r.Bindings)
		if err == nil {
			err = secrets.ReplaceHeaderBindings(&r, headerBindings)
		}
		if err != nil {
			return nil, err
		}
		if err := s.slot(c.Ctx); err != nil {
			return nil, err
		}
		defer func() { <-s.slots }()
		ports, err := s.Ports.Listen(c.Ctx, &r)
		if err != nil {
			return nil, err
		}
		made, err := s.create(c.Ctx, r, from)
		if err != nil {
			s.Ports.Close(r.ID)
			return nil, err
		}
		s.Ports.Serve(ports)
		return s.view(made), nil
	})
}

// queueTimeout is how long Create waits in the queue.
const queueTimeout = 30 * time.Second

// slot waits for one of the limited places for creations; the caller returns it.
func (s *Service) slot(ctx context.Context) error {
	select {
	case s.slots <- struct{}{}:
		return nil
	default:
	}
	t := time.NewTimer(queueTimeout)
	defer t.Stop()
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		err := sandbox.Errorf(sandbox.CodeQuotaExceeded, "the server is busy creating other sandboxes; retry in a few seconds")
		err.RetryAfter = 5 * time.Second
		return err
	}
}

// create records and starts a sandbox, and undoes everything if a step fails.
func (s *Service) create(ctx context.Context, r store.Record, from bootSource) (store.Record, error) {
	ctx, finished := s.beginCreating(ctx, r)
	defer finished()
	// A change of a secret waits for this lock, because create may have read the old
	// value.
	unlock, err := s.lock(ctx, r.ID)
	if err != nil {
		return r, err
	}
	defer unlock()
	if err := s.Builder.Admit(ctx, r.Team, usageOf(r)); err != nil {
		return r, s.rollbackCreate(ctx, &r, err, false)
	}
	if err := s.cfg.Store.CreateSandbox(ctx, r, s.cfg.Quota); err != nil {
		return r, s.rollbackCreate(ctx, &r, call.RetryLater(err), false)
	}
	spec, err := s.spec(ctx, &from, &r)
	if err != nil {
		return r, s.rollbackCreate(ctx, &r, err, false)
	}
	instance, err := s.cfg.Engine.Create(ctx, spec)
	if errors.Is(err, engine.ErrNoRoom) {
		return r, s.rollbackCreate(ctx, &r, err, false)
	}
	if err != nil && from.fresh && ctx.Err() == nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
		instance, err = s.bootInstead(ctx, spec, err)
		from.checkpoint = ""
	}
	if err == nil {
		err = from.startIn(ctx, instance)
	}
	if err != nil {
		return r, s.rollbackCreate(ctx, &r, err, true)
	}
	running, err := s.markRunning(ctx, []store.Record{r}, []engine.Instance{instance}, "")
	if err != nil {
		return r, s.rollbackCreate(ctx, &r, err, true)
	}
	return running[0], nil
}

// bootInstead boots an instance that could not be started from its golden checkpoint.
// If that works, the checkpoint is broken.
func (s *Service) bootInstead(ctx context.Context, spec engine.Spec, why error) (engine.Instance, error) {
	golden := spec.Checkpoint
	spec.Checkpoint, spec.Fresh = "", false
	instance, err := s.cfg.Engine.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	s.golden.spoil(golden, why)
	return instance, nil
}

// beginCreating records that these sandboxes are being created, so that killing one
// cancels the creation of all of them.
func (s *Service) beginCreating(ctx context.Context, records ...store.Record) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &creation{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.creating[r.ID] = c
	}
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range records {
			delete(s.creating, r.ID)
		}
		close(c.done)
		cancel(nil)
	}
}

// markRunning records in one transaction that all the new sandboxes run. forkPoint is
// the checkpoint of their fork, if they are forks.
func (s *Service) markRunning(ctx context.Context, records []store.Record, instances []engine.Instance, forkPoint string) ([]store.Record, error) {
	// The handles come first: the end of a sandbox changes the record and then drops
	// the handle, and would miss a handle that is added later.
	s.mu.Lock()
	for i := range records {
		s.handles[records[i].ID] = newHandle(&records[i], instances[i])
	}
	s.mu.Unlock()
	running := idsOf(records)
	updated, err := s.cfg.Store.UpdateSandboxes(ctx, running, func(all map[string]*store.Record) error {
		for i, id := range running {
			r := all[id]
			if r.State != sandbox.StateCreating {
				return call.NotRunning(r)
			}
			now := time.Now().UTC()
			r.State, r.StartedAt, r.LastActiveAt, r.ForkPoint = sandbox.StateRunning, &now, now, forkPoint
			r.Unenforced = slices.Clone(instances[i].Unenforced())
		}
		return nil
	})
	if err != nil {
		for _, id := range running {
			s.drop(id, err)
		}
		return records, err
	}
	for i, id := range running {
		records[i] = updated[id]
	}
	return records, nil
}

// rollbackCreate undoes a failed create, and returns the error for the caller. What
// cannot be undone now is left in the record as failed, for [Service.Repair].
func (s *Service) rollbackCreate(ctx context.Context, r *store.Record, err error, made bool) error {
	clean, cancel := call.Teardown(ctx)
	defer cancel()
	var derr error
	if made {
		if derr = s.cfg.Engine.Destroy(clean, r.Instance); derr != nil {
			s.log.Error("remove what a failed create left", "sandbox", r.ID, "error", derr)
		}
	}
	if errors.Is(context.Cause(ctx), errKilled) {
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s was killed while it was being created; create a new one", r.ID)
	}
	if derr == nil && (!made || ctx.Err() != nil) {
		if rerr := s.cfg.Store.DeleteSandbox(clean, r.ID); rerr != nil {
			s.log.Error("remove the record of a failed create", "sandbox", r.ID, "error", rerr)
		}
	} else {
		s.recordFailure(clean, r.ID, failureText(err), derr != nil)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// recordFailure records that a sandbox has failed, unless it has already ended; held
// says whether the engine may still hold something of it.
func (s *Service) recordFailure(ctx context.Context, id, reason string, held bool) {
	_, err := s.cfg.Store.UpdateSandbox(ctx, id, store.Change{Apply: func(r *store.Record) error {
		if !r.State.Final() {
			now := time.Now().UTC()
			r.State, r.Reason, r.EndedAt = sandbox.StateFailed, reason, &now
		}
		r.Held = held
		return nil
	}})
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		s.log.Error("record a failed sandbox", "sandbox", id, "error", err)
	}
}

// failureText returns the part of an error that the sandbox's owner may read.
func failureText(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Message
	}
	return "it could not be started; see the server's log for details"
}

// usageOf returns what new sandboxes add to their team's usage.
func usageOf(records ...store.Record) store.Usage {
	var u store.Usage
	for i := range records {
		u.Sandboxes++
		u.VCPUs += records[i].Resources.VCPUs
		u.MemoryMiB += records[i].Resources.MemoryMiB
	}
	return u
}

func idsOf(records []store.Record) []string {
	ids := make([]string, len(records))
	for i := range records {
		ids[i] = records[i].ID
	}
	return ids
}
