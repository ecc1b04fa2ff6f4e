package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/expose"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// creation is a create under way in this process.
type creation struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the creator touches the sandbox no more
}

// errKilled is the cause of a creation's end by [Service.Kill].
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
		if req.FitResources {
			req.Resources = s.fit(req.Resources)
		}
		if err := validate.Largest("resources.", req.Resources, s.cfg.Largest); err != nil {
			return nil, err
		}
		if err := s.checkPauses(req.OnTimeout); err != nil {
			return nil, err
		}
		if req.History > 0 {
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

// bootSource is what an instance begins with: a fresh boot of a root, or a
// checkpoint, which stays in place until it is released.
type bootSource struct {
	root       engine.Root
	checkpoint string
	filesOnly  bool
	fresh      bool
	// foreign is set if the checkpoint is of another sandbox, whose place
	// among forks the new one has not.
	foreign bool
	// startup is what runs in the sandbox from its boot on, or nil.
	startup *startup.Startup
	release func()
}

// boots reports whether an instance begins with a boot, and not where a
// checkpoint left off.
func (b *bootSource) boots() bool { return b.checkpoint == "" || b.filesOnly }

// startIn starts in a new instance what its sandbox begins with, if it has not
// gone on from a checkpoint in which that runs.
func (b *bootSource) startIn(ctx context.Context, instance engine.Instance) error {
	if b.startup == nil || !b.boots() {
		return nil
	}
	client := agentclient.New(instance.ID(), instance.Dial)
	defer client.Close()
	return b.startup.Run(ctx, client)
}

// draft returns the record of a sandbox to be made, and what it begins with.
func (s *Service) draft(c *call.Call, req *sandbox.CreateRequest) (store.Record, bootSource, error) {
	if req.Snapshot != "" {
		return s.draftFromSnapshot(c, req)
	}
	name := cmp.Or(req.Template, s.cfg.DefaultTemplate)
	c.Detail = "template " + name
	root, template, err := s.cfg.Templates.Root(c.Ctx, name)
	if err != nil {
		return store.Record{}, bootSource{}, err
	}
	r := s.newRecord(req, &template, c.Caller.Team)
	from := bootSource{root: root, startup: startup.Of(&template), release: func() {}}
	if err := startup.SetRoot(&r, root, from.startup); err != nil {
		return r, from, err
	}
	if err := s.Volumes.Mount(c, &r, req.Mounts); err != nil {
		return r, from, err
	}
	if len(r.Mounts) > 0 {
		return r, from, nil // a golden checkpoint has none
	}
	if id, release, ok := s.golden.use(kindOf(root, r.Resources, &template, r.User), c.Caller.Team); ok {
		from.checkpoint, from.fresh, from.release = id, true, release
	}
	return r, from, nil
}

// spec describes the instance of a record.
func (b *bootSource) spec(r *store.Record) engine.Spec {
	host := r.ID
	if validate.HostLabel.MatchString(r.Name) {
		host = r.Name
	}
	var fork *engine.Fork
	if b.foreign {
		fork = &engine.Fork{}
	}
	return engine.Spec{
		Fork: fork,
		ID:   r.Instance, Root: b.root, Resources: r.Resources, Hostname: host, Env: environment(r), User: r.User, WorkDir: r.WorkDir,
		Checkpoint: b.checkpoint, FilesOnly: b.filesOnly, Fresh: b.fresh,
	}
}

func checkCreate(req *sandbox.CreateRequest, caller *sandbox.Caller) error {
	if req.Name != "" {
		if err := validate.SandboxName(req.Name); err != nil {
			return err
		}
	}
	if req.Namespace != "" {
		if err := validate.Name("namespace", req.Namespace); err != nil {
			return err
		}
	}
	if req.Template != "" {
		if err := validate.TemplateName(req.Template); err != nil {
			return err
		}
	}
	if req.User != "" {
		if err := validate.User("user", req.User); err != nil {
			return err
		}
	}
	if req.WorkDir != "" {
		if err := validate.WorkDir(req.WorkDir); err != nil {
			return err
		}
	}
	if req.OnTimeout != "" {
		if err := validate.TimeoutAction(req.OnTimeout); err != nil {
			return err
		}
	}
	if req.Snapshot != "" {
		if err := checkFromSnapshot(req); err != nil {
			return err
		}
	}
	if req.Network != nil {
		req.Network = validate.ClonePolicy(req.Network)
		if err := validate.Network(req.Network); err != nil {
			return err
		}
	}
	req.Ports = slices.Clone(req.Ports)
	return cmp.Or(validate.Metadata(req.Metadata), validate.Resources(req.Resources), validate.Env(req.Env),
		secrets.CheckEnvs(req.Secrets), expose.CheckPorts(req.Ports, caller), validate.Mounts(req.Mounts),
		validate.Range("history", int64(req.History), 0, sandbox.MaxHistory),
		validate.Seconds("lifetime_seconds", req.LifetimeSeconds), validate.Seconds("idle_timeout_seconds", req.IdleTimeoutSeconds),
		validate.Seconds("paused_lifetime_seconds", &req.PausedLifetimeSeconds))
}

// newRecord applies defaults: the request's word, then the template's, then
// the server's.
func (s *Service) newRecord(req *sandbox.CreateRequest, t *sandbox.Template, team string) store.Record {
	now := time.Now().UTC()
	seconds := func(v *int64, d time.Duration) int64 {
		if v != nil {
			return *v
		}
		return int64(d / time.Second)
	}
	r := store.Record{
		Sandbox: sandbox.Sandbox{
			ID: ids.New(ids.Sandbox), Name: req.Name, Team: team, Namespace: cmp.Or(req.Namespace, sandbox.DefaultNamespace),
			Metadata: req.Metadata, Template: t.Name, State: sandbox.StateCreating,
			Resources: validate.Clamp(sandbox.Resources{
				VCPUs:     cmp.Or(req.Resources.VCPUs, t.Resources.VCPUs, sandbox.DefaultVCPUs),
				MemoryMiB: cmp.Or(req.Resources.MemoryMiB, t.Resources.MemoryMiB, sandbox.DefaultMemoryMiB),
				DiskMiB:   cmp.Or(req.Resources.DiskMiB, t.Resources.DiskMiB, sandbox.DefaultDiskMiB),
				MaxPIDs:   cmp.Or(req.Resources.MaxPIDs, t.Resources.MaxPIDs, sandbox.DefaultMaxPIDs),
			}, s.cfg.Largest),
			Env: req.Env, User: cmp.Or(req.User, t.User, "root"), WorkDir: cmp.Or(req.WorkDir, t.WorkDir, "/"),
			LifetimeSeconds:    seconds(req.LifetimeSeconds, s.cfg.Lifetime),
			IdleTimeoutSeconds: seconds(req.IdleTimeoutSeconds, s.cfg.IdleTimeout),
			OnTimeout:          cmp.Or(req.OnTimeout, sandbox.ActionKill),
			History:            req.History,
			Network:            cmp.Or(req.Network, t.Network, &sandbox.NetworkPolicy{Preset: s.cfg.Network}),
			Ports:              req.Ports,
			CreatedAt:          now, LastActiveAt: now,
		},
		BaseEnv: t.Env, BootID: s.cfg.Boot.ID, Held: true,
	}
	r.Instance = r.ID
	r.ExpiresAt = expiry(now, r.LifetimeSeconds)
	r.PausedLifetimeSeconds = req.PausedLifetimeSeconds
	return r
}

func expiry(from time.Time, seconds int64) *time.Time {
	if seconds == 0 {
		return nil
	}
	at := from.Add(time.Duration(seconds) * time.Second)
	return &at
}

// environment is what commands get: the sandbox's own above the template's,
// and the placeholders of its secrets.
func environment(r *store.Record) map[string]string {
	env := maps.Clone(r.BaseEnv)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, r.Env)
	for _, b := range r.Bindings {
		env[b.Env] = b.Placeholder
	}
	return env
}

// slot waits for a turn to create. Whoever gets one gives it back.
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

// create records and makes a sandbox, and undoes it all when a step fails.
func (s *Service) create(ctx context.Context, r store.Record, from bootSource) (store.Record, error) {
	ctx, finished := s.beginCreating(ctx, r)
	defer finished()
	// Whoever changes a secret waits, for this may have read what it was.
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

// bootInstead boots an instance that could not be started from its golden
// checkpoint. If that works, the checkpoint is to blame.
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

// beginCreating notes that these sandboxes are being created, so that killing one
// ends the creation of all.
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

// markRunning records at once that new sandboxes run, all or none. The checkpoint
// is that of their fork, if they are forks.
func (s *Service) markRunning(ctx context.Context, records []store.Record, instances []engine.Instance, forkPoint string) ([]store.Record, error) {
	// The handles are first: whoever ends a sandbox changes the record, then drops
	// the handle, and would miss one that comes later.
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

// rollbackCreate undoes what a create has done so far, and returns the error for
// the caller. Whatever cannot be undone now is left in the record as failed,
// for [Service.Repair].
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

// recordFailure records that a sandbox has failed, unless it has ended already,
// and whether the engine may still hold something of it.
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

// failureText is what a sandbox's owner may read of an error.
func failureText(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok {
		return e.Message
	}
	return "it could not be started; the server's log has the details"
}

// usageOf is what new sandboxes add to what their team uses.
func usageOf(records ...store.Record) store.Usage {
	var u store.Usage
	for i := range records {
		u.Sandboxes++
		u.VCPUs += records[i].Resources.VCPUs
		u.MemoryMiB += records[i].Resources.MemoryMiB
	}
	return u
}

// fit returns the resources of a request that takes less than it asks for.
func (s *Service) fit(r sandbox.Resources) sandbox.Resources {
	if n := s.cfg.Largest.DiskMiB; n > 0 {
		r.DiskMiB = min(r.DiskMiB, n)
	}
	return validate.Clamp(r, s.cfg.Largest)
}

// checkPauses refuses to pause at a timeout where the engine cannot.
func (s *Service) checkPauses(a sandbox.TimeoutAction) error {
	if a == sandbox.ActionPause && s.checkpointer == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "on_timeout %q is not supported by this server; use %q", a, sandbox.ActionKill)
	}
	return nil
}
