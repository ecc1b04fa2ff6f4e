package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// metadataForkedFrom is the pair of a fork's metadata that names its parent.
const metadataForkedFrom = "forked_from"

// Fork implements [sandbox.Snapshots].
func (s *Service) Fork(ctx context.Context, ref string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.fork"), func(v *call.Call) (*sandbox.List[sandbox.Sandbox], error) {
		if err := checkFork(&req); err != nil {
			return nil, err
		}
		r, err := v.Resolve(ref)
		if err != nil {
			return nil, err
		}
		v.Detail = strconv.Itoa(req.Count) + " forks"
		children, err := s.fork(v.Ctx, r.ID, &req)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Sandbox]{Items: make([]sandbox.Sandbox, len(children))}
		for i, c := range children {
			list.Items[i] = *s.view(c)
			s.gate.System(&c, "sandbox.forked", "from "+r.ID)
		}
		return list, nil
	})
}

// checkFork refuses what is wrong and fills in what was left out.
func checkFork(req *sandbox.ForkRequest) error {
	req.Count = cmp.Or(req.Count, 1)
	if err := validate.Range("count", int64(req.Count), 1, sandbox.MaxForks); err != nil {
		return err
	}
	for i := range req.Count {
		if req.Name == "" {
			break
		}
		if err := validate.SandboxName(childName(req, i)); err != nil {
			return err
		}
	}
	return cmp.Or(validate.Metadata(req.Metadata), validate.Env(req.Env),
		validate.Seconds("lifetime_seconds", req.LifetimeSeconds), validate.Seconds("idle_timeout_seconds", req.IdleTimeoutSeconds))
}

func childName(req *sandbox.ForkRequest, i int) string {
	if req.Name == "" || req.Count == 1 {
		return req.Name
	}
	return req.Name + "-" + strconv.Itoa(i)
}

// fork makes children of a running or paused sandbox, all or none.
func (s *Service) fork(ctx context.Context, id string, req *sandbox.ForkRequest) ([]store.Record, error) {
	if err := s.needCheckpointer(); err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	release := sync.OnceFunc(unlock)
	defer release()
	parent, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	if parent.State != sandbox.StateRunning && parent.State != sandbox.StatePaused {
		return nil, call.NotRunning(&parent)
	}
	children := s.childRecords(&parent, req)
	if err := secrets.CheckBindings(&children[0]); err != nil {
		return nil, err
	}
	ctx, finished := s.beginCreating(ctx, children...)
	defer finished()
	// Nobody else knows the children yet, so this does not wait; see [Service.create].
	unlockAll, err := s.lock(ctx, idsOf(children)...)
	if err != nil {
		return nil, err
	}
	defer unlockAll()
	// The records come first, so that the quota is checked before the work.
	if err := s.Builder.Admit(ctx, parent.Team, usageOf(children...)); err != nil {
		return nil, err
	}
	if err := s.admitForks(ctx, &parent, len(children)); err != nil {
		return nil, err
	}
	if err := s.cfg.Store.CreateSandboxes(ctx, children, s.cfg.Quota); err != nil {
		return nil, call.RetryLater(err)
	}
	c, done, err := s.stateOf(ctx, &parent, engine.CheckpointOptions{Early: true, Label: recovery.SandboxLabel(recovery.KeptFork, &parent)})
	if err != nil {
		s.rollbackFork(ctx, children)
		return nil, err
	}
	defer done()
	// The parent continues; it can change freely from here on.
	release()
	instances, err := s.createInstances(ctx, &parent, children, c.ID)
	if err == nil {
		children, err = s.markRunning(ctx, children, instances, c.ID)
	}
	if err != nil {
		s.rollbackFork(ctx, children)
		if errors.Is(context.Cause(ctx), errKilled) {
			err = sandbox.Errorf(sandbox.CodeConflict, "one of the forks was killed during the fork, so none was created; try again")
		}
		return nil, err
	}
	return children, nil
}

// admitForks refuses children for which there is no room, before the parent is
// stopped for the checkpoint.
func (s *Service) admitForks(ctx context.Context, parent *store.Record, n int) error {
	admitter, ok := s.cfg.Engine.(engine.Admitter)
	if !ok {
		return nil
	}
	of := engine.Source{Checkpoint: parent.Checkpoint}
	if parent.State == sandbox.StateRunning {
		of = engine.Source{Instance: parent.Instance}
	}
	return admitter.Admit(ctx, n, of, &engine.Spec{Resources: parent.Resources, Family: parent.Family})
}

// childRecords returns the records of children, which copy the parent's except for its
// identity.
func (s *Service) childRecords(parent *store.Record, req *sandbox.ForkRequest) []store.Record {
	now := time.Now().UTC()
	children := make([]store.Record, req.Count)
	for i := range children {
		r := *parent
		r.ID, r.Name, r.State, r.Reason = ids.New(ids.Sandbox), childName(req, i), sandbox.StateCreating, ""
		r.Instance, r.Checkpoint, r.ForkPoint, r.ForkedFrom = r.ID, "", "", parent.ID
		r.Metadata = merged(parent.Metadata, req.Metadata, map[string]string{metadataForkedFrom: parent.ID})
		r.Env = merged(parent.Env, req.Env)
		if req.LifetimeSeconds != nil {
			r.LifetimeSeconds = *req.LifetimeSeconds
		}
		if req.IdleTimeoutSeconds != nil {
			r.IdleTimeoutSeconds = *req.IdleTimeoutSeconds
		}
		// Each a little later than the one before, so that listings have them in order.
		r.CreatedAt = now.Add(time.Duration(i) * time.Microsecond)
		r.LastActiveAt, r.ExpiresAt = now, expiry(now, r.LifetimeSeconds)
		r.StartedAt, r.EndedAt, r.PausedAt, r.PausedExpiresAt = nil, nil, nil, nil
		r.BootID, r.Held, r.Applying = s.cfg.Boot.ID, true, false
		r.Ports = nil   // the parent has them
		r.Answers = nil // the answers were for the parent: a child asks again
		r.Moments = nil // they were the parent's
		r.MadeFrom = nil
		r.Kept = store.Kept{Since: now}
		children[i] = r
	}
	return children
}

// merged returns the pairs of all maps. Later maps override earlier ones.
func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// createInstances makes the instances of all children at once.
func (s *Service) createInstances(ctx context.Context, parent *store.Record, children []store.Record, checkpoint string) ([]engine.Instance, error) {
	root, err := startup.RootOf(parent.Root)
	if err != nil {
		return nil, err
	}
	instances := make([]engine.Instance, len(children))
	g, ctx := errgroup.WithContext(ctx)
	for i := range children {
		g.Go(func() (err error) {
			spec, err := s.spec(ctx, &bootSource{root: root, checkpoint: checkpoint}, &children[i])
			if err != nil {
				return err
			}
			spec.Fork = &engine.Fork{Index: i, Count: len(children), SandboxID: children[i].ID, ParentID: parent.ID}
			instances[i], err = s.cfg.Engine.Create(ctx, spec)
			return err
		})
	}
	return instances, g.Wait()
}

// rollbackFork removes what exists of the children of a failed fork.
func (s *Service) rollbackFork(ctx context.Context, children []store.Record) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	for _, r := range children {
		err := s.cfg.Engine.Destroy(ctx, r.Instance)
		if err == nil {
			err = s.cfg.Store.DeleteSandbox(ctx, r.ID)
		} else {
			s.recordFailure(ctx, r.ID, "it could not be created together with the other forks", true)
		}
		if err != nil {
			s.log.Error("remove what a failed fork left", "sandbox", r.ID, "error", err)
		}
	}
	s.collectSoon()
}
