package microsandbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The tags of a sandbox of this dialect.
const (
	// nameTag holds its name, which is unique only within its namespace.
	nameTag = "microsandbox.name"
	// imageTag holds the image that it was started from.
	imageTag = "microsandbox.image"
	// stopTag marks a stopped sandbox. It holds the time of the pause that stopped it; a
	// later pause has another time and does not count as a stop.
	stopTag = "microsandbox.stopped"
)

const (
	startTimeout = 180 * time.Second
	// pollEvery is how often a sandbox that another call is making is polled.
	pollEvery = 20 * time.Millisecond
)

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// wasStopped reports whether a paused sandbox is stopped in the product's terms.
func wasStopped(s *sandbox.Sandbox) bool {
	return s.State == sandbox.StatePaused && s.PausedAt != nil && s.Metadata[stopTag] == stamp(*s.PausedAt)
}

// displayName returns the name of a sandbox in this dialect.
func displayName(s *sandbox.Sandbox) string { return cmp.Or(s.Metadata[nameTag], s.Name, s.ID) }

// find returns the living sandbox with that name, or nil. A sandbox that another door made
// is found by its own name or id, if it is in the namespace.
func find(ctx context.Context, c *call, namespace, name string) (*sandbox.Sandbox, error) {
	list, err := c.Service.List(ctx, sandbox.ListRequest{Namespace: namespace, Metadata: map[string]string{nameTag: name}})
	if err != nil {
		return nil, err
	}
	if len(list.Items) > 0 {
		return &list.Items[0], nil
	}
	// A name may belong to another sandbox in another namespace.
	list, err = c.Service.List(ctx, sandbox.ListRequest{Namespace: namespace, Name: name})
	if err == nil && len(list.Items) > 0 {
		return &list.Items[0], nil
	}
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid { // the service does not accept the name
		return nil, err
	}
	s, err := c.Service.Get(ctx, name)
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeConflict: // neither an id nor a name in this namespace
		return nil, nil
	default:
		return nil, err
	}
	if s.State.Final() || s.Namespace != namespace {
		return nil, nil
	}
	return s, nil
}

// settled is like find, but waits for a sandbox in transition to settle.
func settled(ctx context.Context, c *call, namespace, name string) (*sandbox.Sandbox, error) {
	for {
		s, err := find(ctx, c, namespace, name)
		if err != nil || s == nil || s.State == sandbox.StateRunning || s.State == sandbox.StatePaused {
			return s, err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func start(ctx context.Context, c *call, params json.RawMessage) (any, error) {
	var p startParams
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	if p.Namespace != nil && *p.Namespace == wildcard {
		return nil, dialect.Invalid("Wildcard namespace (*) is not valid for sandbox creation")
	}
	namespace, name, err := p.names(c)
	if err != nil {
		return nil, err
	}
	if err := permit(ctx, namespace); err != nil {
		return nil, err
	}
	want, err := read(p.Config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Another call may start the same sandbox at the same time.
	for range 3 {
		s, err := settled(ctx, c, namespace, name)
		if err != nil {
			return nil, err
		}
		switch {
		case s == nil:
			err = create(ctx, c, namespace, name, want)
		case s.State == sandbox.StatePaused:
			err = restart(ctx, c, s, want)
		}
		if code := sandbox.CodeOf(err); code == sandbox.CodeConflict || code == sandbox.CodeNotRunning {
			if again, findErr := find(ctx, c, namespace, name); findErr == nil && again != nil && (s == nil || again.ID != s.ID || again.State != s.State) {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		return started(name), nil
	}
	return nil, internal("sandbox %s was started and stopped by others at the same time; try again", name)
}

// wanted is what a configuration requests. A nil field is not set.
type wanted struct {
	// all is set if unset fields have their defaults, whatever they were before.
	all     bool
	image   string
	memory  *int64
	cpus    *int
	env     map[string]string
	ports   []sandbox.PublishedPort
	mounts  []sandbox.Mount
	workdir string
}

func read(cfg *config) (*wanted, error) {
	if cfg == nil {
		return &wanted{}, nil
	}
	if err := cfg.unsupported(); err != nil {
		return nil, err
	}
	w := &wanted{}
	var err error
	if cfg.Image != nil && *cfg.Image != "" {
		w.all, w.image = true, *cfg.Image
	}
	if cfg.Memory != nil {
		n, err := cfg.Memory.between("config.memory", 0, math.MaxUint32)
		if err != nil {
			return nil, err
		}
		w.memory = &n
	}
	if cfg.CPUs != nil {
		n, err := cfg.CPUs.between("config.cpus", 0, math.MaxUint8)
		if err != nil {
			return nil, err
		}
		w.cpus = new(max(int(n), 1))
	}
	if cfg.WorkDir != nil {
		w.workdir = *cfg.WorkDir
	}
	if cfg.Envs != nil {
		if w.env, err = parseEnvs(cfg.Envs); err != nil {
			return nil, err
		}
	}
	if cfg.Ports != nil {
		if w.ports, err = parsePorts(cfg.Ports); err != nil {
			return nil, err
		}
	}
	if cfg.Volumes != nil {
		w.mounts, err = parseVolumes(cfg.Volumes)
	}
	return w, err
}

// resources returns the resources of a new sandbox.
func (w *wanted) resources() sandbox.Resources {
	var r sandbox.Resources
	if w.memory != nil {
		r.MemoryMiB = *w.memory
	}
	if w.cpus != nil {
		r.VCPUs = *w.cpus
	}
	return r
}

// create makes a sandbox that lives until it is ended explicitly.
func create(ctx context.Context, c *call, namespace, name string, w *wanted) error {
	template, err := template(ctx, c, w.image)
	if err != nil {
		return err
	}
	c.Status("creating a sandbox")
	req := sandbox.CreateRequest{
		Name: serviceName(namespace, name), Namespace: namespace, Template: template,
		Metadata:  map[string]string{nameTag: name, imageTag: cmp.Or(w.image, pythonImage)},
		Resources: w.resources(), Env: w.env, WorkDir: w.workdir, Ports: w.ports, Mounts: w.mounts,
		LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64),
	}
	_, err = createKeeping(ctx, c, req)
	return err
}

// createKeeping makes a sandbox that keeps /tmp when it is stopped. If that fails, no
// sandbox remains.
func createKeeping(ctx context.Context, c *call, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	s, err := c.Service.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := keepTmp(ctx, c, s.ID); err != nil {
		_, _ = c.Service.Kill(context.WithoutCancel(ctx), s.ID) // nobody has its id yet
		return nil, err
	}
	return s, nil
}

// agentProgram is the path of the agent in each sandbox.
const agentProgram = "/.cove/agent"

// keepTmp makes the files in /tmp, which is in memory otherwise, survive a stop. Call it
// after a sandbox is made, and after each start from its files.
func keepTmp(ctx context.Context, c *call, id string) error {
	job, err := c.Service.Exec(ctx, id, sandbox.ExecRequest{Command: []string{agentProgram, "-disk-tmp"}, User: "root"}, nil)
	if err == nil && job.ExitCode != 0 {
		err = sandbox.Errorf(sandbox.CodeInternal, "/tmp cannot be put on the sandbox's disk: %s ends with %d", agentProgram, job.ExitCode)
	}
	return err
}

// serviceName returns the name of a sandbox for other doors: its own, prefixed with the
// namespace unless that is the default one. It prevents two from being made at once, so it
// must always be the same.
func serviceName(namespace, name string) string {
	s := name
	if namespace != sandbox.DefaultNamespace {
		s = namespace + "." + name
	}
	last := s[len(s)-1]
	if len(s) > sandbox.MaxNameLength || strings.ToLower(s) != s || last == '-' || last == '_' ||
		strings.HasPrefix(s, "sbx-") || strings.HasPrefix(s, "snap-") {
		return hashedName(namespace, name)
	}
	return s
}

// hashedName returns a replacement for a name that the service does not accept.
func hashedName(namespace, name string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	return "msb." + hex.EncodeToString(sum[:12])
}

// restart starts a stopped sandbox, or resumes a paused one.
func restart(ctx context.Context, c *call, s *sandbox.Sandbox, w *wanted) error {
	c.Status("starting the sandbox")
	if !wasStopped(s) {
		_, err := c.Service.Resume(ctx, s.ID, sandbox.ResumeRequest{})
		return err
	}
	if w.all && !sameImage(w.image, s.Metadata[imageTag]) {
		// Files above one image make no sense above another.
		if _, err := c.Service.Kill(ctx, s.ID); err != nil {
			return err
		}
		return create(ctx, c, s.Namespace, displayName(s), w)
	}
	if w.moved(s) {
		return rebuild(ctx, c, s, w)
	}
	if req, changes := w.update(s); changes {
		if _, err := c.Service.Update(ctx, s.ID, req); err != nil {
			return err
		}
	}
	if _, err := c.Service.Resume(ctx, s.ID, sandbox.ResumeRequest{FilesOnly: true}); err != nil {
		return err
	}
	if err := keepTmp(ctx, c, s.ID); err != nil {
		// Stop it again: the next start would leave a running sandbox unchanged.
		if herr := halt(context.WithoutCancel(ctx), c, s.ID); herr != nil {
			c.Log.ErrorContext(ctx, "stop a sandbox that could not be started", "sandbox", s.ID, "error", herr)
		}
		return err
	}
	return nil
}

// moved reports whether a setting differs that is fixed at creation.
func (w *wanted) moved(s *sandbox.Sandbox) bool {
	samePort := func(a, b sandbox.PublishedPort) bool { return a.Host == b.Host && a.Guest == b.Guest }
	return (w.all || w.ports != nil) && !slices.EqualFunc(w.ports, s.Ports, samePort) ||
		(w.all || w.mounts != nil) && !slices.Equal(w.mounts, s.Mounts) ||
		w.workdir != "" && w.workdir != s.WorkDir
}

// update returns the changes to a stopped sandbox.
func (w *wanted) update(s *sandbox.Sandbox) (req sandbox.UpdateRequest, changes bool) {
	if w.memory != nil && *w.memory != s.Resources.MemoryMiB {
		req.MemoryMiB, changes = w.memory, true
	}
	if w.cpus != nil && *w.cpus != s.Resources.VCPUs {
		req.VCPUs, changes = w.cpus, true
	}
	env := w.env
	if w.all && env == nil {
		env = map[string]string{}
	}
	if env != nil && !maps.Equal(env, s.Env) {
		req.Env, changes = env, true
	}
	return req, changes
}

// rebuild moves the files of a stopped sandbox into a new one, to change settings that are
// fixed at creation.
func rebuild(ctx context.Context, c *call, s *sandbox.Sandbox, w *wanted) error {
	snap, err := c.Service.CreateSnapshot(ctx, s.ID, sandbox.CreateSnapshotRequest{Kind: sandbox.SnapshotFiles})
	if err != nil {
		return err
	}
	defer func() {
		_, _ = c.Service.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID) // the sandbox does not depend on it
	}()
	req := sandbox.CreateRequest{
		Namespace: s.Namespace, Metadata: maps.Clone(s.Metadata), Snapshot: snap.ID, User: s.User,
		Env: s.Env, WorkDir: cmp.Or(w.workdir, s.WorkDir), Ports: s.Ports, Mounts: s.Mounts,
		LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64),
	}
	delete(req.Metadata, stopTag)
	if w.all || w.env != nil {
		req.Env = w.env
	}
	if w.all || w.ports != nil {
		req.Ports = w.ports
	}
	if w.all || w.mounts != nil {
		req.Mounts = w.mounts
	}
	fresh, err := createKeeping(ctx, c, req)
	if err != nil {
		return err
	}
	if change, changes := w.update(fresh); changes {
		if _, err := c.Service.Update(ctx, fresh.ID, change); err != nil {
			_, killErr := c.Service.Kill(context.WithoutCancel(ctx), fresh.ID)
			return cmp.Or(err, killErr)
		}
	}
	if _, err := c.Service.Kill(ctx, s.ID); err != nil {
		return err
	}
	_, err = c.Service.Update(ctx, fresh.ID, sandbox.UpdateRequest{Name: &s.Name})
	return err
}

func stop(ctx context.Context, c *call, params json.RawMessage) (any, error) {
	var p target
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	namespace, name, err := p.names(c)
	if err != nil {
		return nil, err
	}
	if err := permit(ctx, namespace); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := settled(ctx, c, namespace, name)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if err := checkNamespace(ctx, c, namespace); err != nil {
			return nil, err
		}
		return nil, internal("Failed to stop sandbox %s: it is not in the namespace %s; sandbox_get_metrics lists those that are", name, namespace)
	}
	if wasStopped(s) {
		return stopped(name), nil
	}
	c.Status("stopping the sandbox")
	if err := halt(ctx, c, s.ID); err != nil {
		return nil, err
	}
	return stopped(name), nil
}

// halt pauses a sandbox, and marks it as stopped.
func halt(ctx context.Context, c *call, id string) error {
	s, err := c.Service.Pause(ctx, id)
	if err != nil || s.PausedAt == nil {
		return err
	}
	tags := maps.Clone(s.Metadata)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[stopTag] = stamp(*s.PausedAt)
	_, err = c.Service.Update(context.WithoutCancel(ctx), id, sandbox.UpdateRequest{Metadata: tags})
	return err
}

// checkNamespace refuses a namespace without a living sandbox.
func checkNamespace(ctx context.Context, c *call, namespace string) error {
	list, err := c.Service.List(ctx, sandbox.ListRequest{Namespace: namespace, Page: sandbox.Page{Limit: 1}})
	if err == nil && len(list.Items) == 0 {
		err = dialect.Invalid("Namespace directory '%s' does not exist", namespace)
	}
	return err
}
