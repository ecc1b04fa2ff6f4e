package service

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// Update implements [sandbox.Sandboxes].
func (s *Service) Update(ctx context.Context, ref string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.update"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if err := checkUpdate(&req); err != nil {
			return nil, err
		}
		var more sandbox.Resources
		if req.VCPUs != nil {
			more.VCPUs = *req.VCPUs
		}
		if req.MemoryMiB != nil {
			more.MemoryMiB = *req.MemoryMiB
		}
		if err := s.cfg.Capacity.Check("", more); err != nil {
			return nil, err
		}
		if req.OnTimeout != nil {
			if err := s.checkPauses(*req.OnTimeout); err != nil {
				return nil, err
			}
		}
		if req.History != nil && *req.History > 0 || req.CheckpointIntervalSeconds != nil && *req.CheckpointIntervalSeconds > 0 {
			if err := s.needCheckpointer(); err != nil {
				return nil, err
			}
		}
		if r, done, err := s.updatePaused(c, ref, &req); done || err != nil {
			if err != nil {
				return nil, err
			}
			return s.view(r), nil
		}
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		select {
		case h.updating <- struct{}{}:
			defer func() { <-h.updating }()
		case <-c.Ctx.Done():
			return nil, c.Ctx.Err()
		}
		// Without the lock, an instance that takes over meanwhile would keep the old
		// values.
		unlock, err := s.lock(c.Ctx, h.id)
		if err != nil {
			return nil, err
		}
		defer unlock()
		select {
		case <-h.gone:
			return nil, h.why
		default:
		}
		c.Detail = "changed " + strings.Join(changes(&req), ", ")
		r, err := s.update(c.Ctx, h, &req)
		if err != nil {
			return nil, err
		}
		if req.History != nil {
			h.history.Store(int32(r.History))
			if err := s.forgetSteps(c.Ctx, r.ID, r.History); err != nil {
				return nil, err
			}
		}
		if req.CheckpointIntervalSeconds != nil {
			h.checkpoints.set(&r)
			s.collectSoon()
		}
		return s.view(r), nil
	})
}

// updatePaused changes the record of a paused sandbox without resuming it; the next
// resume applies the record. Done is false if the sandbox is not paused.
func (s *Service) updatePaused(c *call.Call, ref string, req *sandbox.UpdateRequest) (_ store.Record, done bool, err error) {
	r, err := c.Resolve(ref)
	if err != nil || r.State != sandbox.StatePaused {
		return r, false, err
	}
	unlock, err := s.lock(c.Ctx, r.ID)
	if err != nil {
		return r, false, err
	}
	defer unlock()
	c.Detail = "changed " + strings.Join(changes(req), ", ")
	r, err = s.cfg.Store.UpdateSandbox(c.Ctx, r.ID, store.Change{
		From:  []sandbox.State{sandbox.StatePaused},
		Apply: func(r *store.Record) error { change(r, req); return secrets.CheckBindings(r) },
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
		return r, false, nil // it was resumed, or has ended
	}
	if err == nil && req.History != nil {
		err = s.forgetSteps(c.Ctx, r.ID, r.History)
	}
	if req.CheckpointIntervalSeconds != nil {
		s.collectSoon()
	}
	return r, err == nil, err
}

func checkUpdate(req *sandbox.UpdateRequest) error {
	if req.Name != nil && *req.Name != "" {
		if err := validate.SandboxName(*req.Name); err != nil {
			return err
		}
	}
	if req.OnTimeout != nil {
		if err := validate.TimeoutAction(*req.OnTimeout); err != nil {
			return err
		}
	}
	if req.VCPUs != nil {
		if err := validate.Range("vcpus", int64(*req.VCPUs), 1, sandbox.MaxVCPUs); err != nil {
			return err
		}
	}
	if req.MemoryMiB != nil {
		if err := validate.Range("memory_mib", *req.MemoryMiB, sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB); err != nil {
			return err
		}
	}
	if req.MaxPIDs != nil {
		if err := validate.Range("max_pids", *req.MaxPIDs, sandbox.MinPIDs, sandbox.MaxPIDsLimit); err != nil {
			return err
		}
	}
	if req.History != nil {
		if err := validate.Range("history", int64(*req.History), 0, sandbox.MaxHistory); err != nil {
			return err
		}
	}
	return cmp.Or(validate.Metadata(req.Metadata), validate.Env(req.Env),
		validate.Seconds("lifetime_seconds", req.LifetimeSeconds), validate.Seconds("idle_timeout_seconds", req.IdleTimeoutSeconds),
		validate.Seconds("paused_lifetime_seconds", req.PausedLifetimeSeconds), validate.Interval("checkpoint_interval_seconds", req.CheckpointIntervalSeconds))
}

// changes names the fields that a request sets, for the audit record.
func changes(req *sandbox.UpdateRequest) []string {
	var all []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"name", req.Name != nil}, {"metadata", req.Metadata != nil}, {"env", req.Env != nil}, {"vcpus", req.VCPUs != nil},
		{"memory_mib", req.MemoryMiB != nil}, {"max_pids", req.MaxPIDs != nil}, {"lifetime_seconds", req.LifetimeSeconds != nil},
		{"idle_timeout_seconds", req.IdleTimeoutSeconds != nil}, {"on_timeout", req.OnTimeout != nil}, {"history", req.History != nil},
		{"paused_lifetime_seconds", req.PausedLifetimeSeconds != nil}, {"checkpoint_interval_seconds", req.CheckpointIntervalSeconds != nil},
	} {
		if f.set {
			all = append(all, f.name)
		}
	}
	if len(all) == 0 {
		return []string{"nothing"}
	}
	return all
}

// change applies a request to a record.
func change(r *store.Record, req *sandbox.UpdateRequest) {
	set(&r.Name, req.Name)
	if req.Metadata != nil {
		r.Metadata = req.Metadata
	}
	if req.Env != nil {
		r.Env = req.Env
	}
	set(&r.Resources.VCPUs, req.VCPUs)
	set(&r.Resources.MemoryMiB, req.MemoryMiB)
	set(&r.Resources.MaxPIDs, req.MaxPIDs)
	if req.LifetimeSeconds != nil {
		r.LifetimeSeconds = *req.LifetimeSeconds
		r.ExpiresAt = expiry(time.Now().UTC(), r.LifetimeSeconds)
	}
	set(&r.IdleTimeoutSeconds, req.IdleTimeoutSeconds)
	set(&r.OnTimeout, req.OnTimeout)
	set(&r.History, req.History)
	if req.CheckpointIntervalSeconds != nil {
		changeInterval(r, *req.CheckpointIntervalSeconds)
	}
	if req.PausedLifetimeSeconds != nil {
		r.PausedLifetimeSeconds, r.PausedExpiresAt = *req.PausedLifetimeSeconds, nil
		if r.State == sandbox.StatePaused {
			r.PausedExpiresAt = expiry(time.Now().UTC(), r.PausedLifetimeSeconds)
		}
	}
}

// changeInterval changes the interval of automatic checkpoints.
func changeInterval(r *store.Record, seconds int64) {
	switch {
	case seconds == 0:
		r.Kept = store.Kept{}
	case r.CheckpointIntervalSeconds == 0:
		r.Kept.Since = time.Now().UTC()
	}
	r.CheckpointIntervalSeconds = seconds
}

func set[T any](field *T, v *T) {
	if v != nil {
		*field = *v
	}
}

// update records a change, applies it to the sandbox, and takes the record back if that
// fails. After a crash in between, the next start repairs the difference.
//
// Preconditions: the caller holds h.updating.
func (s *Service) update(ctx context.Context, h *handle, req *sandbox.UpdateRequest) (store.Record, error) {
	limits := req.VCPUs != nil || req.MemoryMiB != nil || req.MaxPIDs != nil
	env := req.Env != nil
	var before store.Record
	after, err := s.cfg.Store.UpdateSandbox(ctx, h.id, store.Change{
		From:  []sandbox.State{sandbox.StateRunning},
		Quota: s.cfg.Quota,
		Apply: func(r *store.Record) error {
			before = *r
			change(r, req)
			r.Applying = r.Applying || limits || env
			return secrets.CheckBindings(r)
		},
	})
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
			err = call.NotRunning(&after)
		}
		return after, call.RetryLater(err)
	}
	if !limits && !env {
		return after, nil
	}
	// From here on the change is completed or undone, even if the caller goes away.
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	unenforced, err := h.apply(ctx, &after, limits, env)
	if err != nil {
		s.takeBack(ctx, h, &before, limits, env)
		return after, h.explain(ctx, err)
	}
	return s.cfg.Store.UpdateSandbox(ctx, h.id, store.Change{Apply: applied(unenforced, before.Applying)})
}

// applied records that an update took effect. Repair finishes earlier updates that did
// not, such as a change of the network.
func applied(unenforced []string, others bool) func(*store.Record) error {
	return func(r *store.Record) error {
		r.Applying = others
		if unenforced != nil {
			r.Unenforced = unenforced
		}
		return nil
	}
}

// apply applies the limits and the environment of a record to its sandbox. If there are
// limits, it returns all that cannot be enforced.
func (h *handle) apply(ctx context.Context, r *store.Record, limits, env bool) (unenforced []string, err error) {
	if limits {
		res := r.Resources
		res.DiskMiB = 0 // fixed at creation
		un, err := h.instance.SetLimits(ctx, res)
		if err != nil {
			return nil, err
		}
		h.vcpus.Store(int32(res.VCPUs))
		unenforced = append(slices.Clone(h.instance.Unenforced()), un...)
		slices.Sort(unenforced)
		unenforced = append([]string{}, slices.Compact(unenforced)...)
	}
	if env {
		if _, err := h.client.Configure(ctx, &agentv1.ConfigureRequest{Env: environment(r), ReplaceEnv: true}); err != nil {
			return nil, err
		}
	}
	return unenforced, nil
}

// takeBack undoes an update that could not be applied. It has a timeout of its own,
// since the update may have used up that of ctx.
func (s *Service) takeBack(ctx context.Context, h *handle, before *store.Record, limits, env bool) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	if _, err := h.apply(ctx, before, limits, env); err != nil {
		s.log.Warn("take back an update", "sandbox", h.id, "error", err)
	}
	_, err := s.cfg.Store.UpdateSandbox(ctx, h.id, store.Change{Apply: func(r *store.Record) error {
		r.Name, r.Metadata, r.Env, r.Resources = before.Name, before.Metadata, before.Env, before.Resources
		r.BaseEnv = before.BaseEnv
		r.LifetimeSeconds, r.ExpiresAt = before.LifetimeSeconds, before.ExpiresAt
		r.IdleTimeoutSeconds, r.OnTimeout, r.History = before.IdleTimeoutSeconds, before.OnTimeout, before.History
		r.PausedLifetimeSeconds, r.CheckpointIntervalSeconds = before.PausedLifetimeSeconds, before.CheckpointIntervalSeconds
		r.Applying = before.Applying
		return nil
	}})
	if err != nil {
		s.log.Error("take back the record of an update", "sandbox", h.id, "error", err)
	}
}
