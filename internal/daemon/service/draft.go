package service

import (
	"cmp"
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
	"github.com/cove-sh/cove/sandbox"
)

// draft returns the record of a new sandbox, and what its instance starts from.
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
	if len(r.Mounts) > 0 || r.Dedicated {
		return r, from, nil // a golden checkpoint has no mounts, and a node for one family has none
	}
	if id, release, ok := s.golden.use(s.kindHere(root, r.Resources, &template, r.User), c.Caller.Team); ok {
		from.checkpoint, from.fresh, from.release = id, true, release
	}
	return r, from, nil
}

// capacityFor says how large a sandbox can be, which may be dedicated.
func (s *Service) capacityFor(dedicated bool) (validate.Capacity, error) {
	if dedicated && s.cfg.Nodes == nil {
		return validate.Capacity{}, sandbox.Errorf(sandbox.CodeUnsupported, "dedicated sandboxes need nodes, which this server takes none of; start it with --nodes HOST:PORT, and a node with: cove node run --dedicated")
	}
	return s.cfg.Capacity.For(dedicated), nil
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
		validate.Seconds("paused_lifetime_seconds", &req.PausedLifetimeSeconds),
		validate.Interval("checkpoint_interval_seconds", req.CheckpointIntervalSeconds))
}

// newRecord applies defaults: the request's values first, then the template's, then the
// server's.
func (s *Service) newRecord(req *sandbox.CreateRequest, t *sandbox.Template, team string) store.Record {
	now := time.Now().UTC()
	seconds := func(v *int64, d time.Duration) int64 {
		if v != nil {
			return *v
		}
		return int64(d / time.Second)
	}
	dedicated := req.Dedicated != nil && *req.Dedicated
	r := store.Record{
		Sandbox: sandbox.Sandbox{
			ID: ids.New(ids.Sandbox), Name: req.Name, Team: team, Namespace: cmp.Or(req.Namespace, sandbox.DefaultNamespace),
			Metadata: req.Metadata, Template: t.Name, State: sandbox.StateCreating,
			Resources: s.cfg.Capacity.For(dedicated).Complete(req.Resources, t.Resources),
			Env:       req.Env, User: cmp.Or(req.User, t.User, "root"), WorkDir: cmp.Or(req.WorkDir, t.WorkDir, "/"),
			LifetimeSeconds:    seconds(req.LifetimeSeconds, s.cfg.Lifetime),
			IdleTimeoutSeconds: seconds(req.IdleTimeoutSeconds, s.cfg.IdleTimeout),
			OnTimeout:          cmp.Or(req.OnTimeout, sandbox.ActionKill),
			History:            req.History,

			CheckpointIntervalSeconds: seconds(req.CheckpointIntervalSeconds, s.cfg.CheckpointInterval),
			Network:                   cmp.Or(req.Network, t.Network, &sandbox.NetworkPolicy{Preset: s.cfg.Network}),
			Ports:                     req.Ports,
			Dedicated:                 dedicated,
			CreatedAt:                 now, LastActiveAt: now,
		},
		BaseEnv: t.Env, BootID: s.cfg.Boot.ID, Held: true, Kept: store.Kept{Since: now},
	}
	r.Instance = r.ID
	if dedicated {
		r.Family = r.ID
	}
	r.ExpiresAt = expiry(now, r.LifetimeSeconds)
	r.PausedLifetimeSeconds = req.PausedLifetimeSeconds
	return r
}

// checkPauses refuses to pause at a timeout if the engine cannot pause.
func (s *Service) checkPauses(a sandbox.TimeoutAction) error {
	if a == sandbox.ActionPause && s.checkpointer == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "on_timeout %q is not supported by this server; use %q", a, sandbox.ActionKill)
	}
	return nil
}

// draftFromSnapshot returns the record of a new sandbox that starts from a snapshot:
// the request's values first, then the snapshot's.
func (s *Service) draftFromSnapshot(c *call.Call, req *sandbox.CreateRequest) (store.Record, bootSource, error) {
	var none bootSource
	if err := s.needCheckpointer(); err != nil {
		return store.Record{}, none, err
	}
	snap, err := c.Snapshot(req.Snapshot)
	if err != nil {
		return store.Record{}, none, err
	}
	c.Detail = "snapshot " + snap.ID
	root, err := startup.RootOf(snap.Root)
	if err != nil {
		return store.Record{}, none, err
	}
	r := s.newRecord(req, &sandbox.Template{
		Name: snap.Template, Resources: snap.Resources, User: snap.User, WorkDir: snap.WorkDir, Env: snap.BaseEnv,
	}, c.Caller.Team)
	r.Snapshot, r.Root, r.Origin = snap.ID, snap.Root, snap.Origin
	r.MadeFrom = &sandbox.MadeFrom{SandboxID: snap.SandboxID, Snapshot: snap.ID, StateAt: snap.CreatedAt}
	r.Bindings = snap.Bindings
	switch r.Mounts = snap.Mounts; {
	case req.Mounts == nil:
	case snap.Kind != sandbox.SnapshotFiles:
		return r, none, validate.Errorf("mounts do not work with a snapshot of memory, because its programs have files of its own mounts open; leave mounts out, or use a snapshot of kind %q", sandbox.SnapshotFiles)
	default:
		if err := s.Volumes.Mount(c, &r, req.Mounts); err != nil {
			return r, none, err
		}
	}
	if req.Network == nil && snap.Network != nil {
		r.Network = snap.Network
	}
	env := maps.Clone(snap.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, req.Env)
	if len(env) > 0 {
		r.Env = env
	}
	return r, bootSource{
		root: root, checkpoint: snap.Checkpoint, filesOnly: snap.Kind == sandbox.SnapshotFiles, foreign: true, startup: startup.Recorded(snap.Root), release: s.use(snap.Checkpoint),
	}, nil
}

func checkFromSnapshot(req *sandbox.CreateRequest) error {
	switch {
	case req.Template != "":
		return validate.Errorf("template and snapshot are both given; a snapshot has its template, so leave one out")
	case req.Resources != (sandbox.Resources{}):
		return validate.Errorf("resources do not work with a snapshot, which has its own; leave them out, and change vcpus, memory_mib and max_pids with an update")
	}
	return nil
}
