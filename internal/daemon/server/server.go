// Package server puts a Cove daemon together and runs it: it opens the store,
// the engine and the templates, builds the service and its doors on them,
// listens, and stops all in order. Sandboxes live on when it ends.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/janitor"
	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/sso"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/tiered"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// Assembly makes the parts of a daemon that depend on the machine. Both
// functions are required and are called once, in this order; dir is a
// directory of the part's own, which it makes if missing.
type Assembly struct {
	Engine    func(ctx context.Context, dir string, cfg *config.Config, log *slog.Logger) (engine.Engine, error)
	Templates func(ctx context.Context, dir string, cfg *config.Config, log *slog.Logger) (service.TemplateProvider, error)
}

// Deps are what a server needs besides its configuration.
type Deps struct {
	Assembly Assembly
	// Version is Cove's.
	Version string
	// Log is required.
	Log *slog.Logger
	// LockWait is how long to wait for another daemon to let go of the state
	// directory; 0 fails at once.
	LockWait time.Duration
	// OnDemand marks a daemon that a client has started: one that somebody
	// starts with other settings takes over from it.
	OnDemand bool
	// Ready, if set, is called once when the daemon answers, with the address of
	// its TCP listener, or nil if it has none.
	Ready func(tcp net.Addr)
	// DialectReady, if set, is called before Ready with each address that
	// speaks a dialect of its own.
	DialectReady func(dialect string, addr net.Addr)
	// CheckMachine says what the machine lets Cove do with a state directory; nil says
	// that nobody knows.
	CheckMachine func(ctx context.Context, stateDir string) sandbox.MachineReport
	// MCP, if set, may change how MCP is served, and what.
	MCP func(*mcpserver.Config)
}

// Server is one daemon. [Server.Run] runs it, once.
type Server struct {
	cfg    config.Config
	deps   Deps
	log    *slog.Logger
	bounds bounds
	port   atomic.Int32 // of the TCP listener, once there is one
}

// bounds are what clients may do; SECURITY.md tells them.
type bounds struct {
	MinBodyRate limits.MinBodyRate
	// Connections are those by TCP to one address; half of the files that the
	// daemon may open are a bound too.
	Connections int
	// RequestsPerKey are the requests of one key that are under way, streams and
	// WebSockets included.
	RequestsPerKey int
}

var defaultBounds = bounds{MinBodyRate: limits.DefaultMinBodyRate, Connections: 8192, RequestsPerKey: 1024}

// New returns a server with a configuration that [config.Load] has checked.
func New(cfg config.Config, deps Deps) *Server {
	return &Server{cfg: cfg, deps: deps, log: deps.Log, bounds: defaultBounds}
}

// parts are what is closed at the end, in the order in which it was opened.
type parts struct {
	holding
	files     durable.Files // small files of the installation
	engine    engine.Engine
	fleet     *fleet.Fleet // nil if there are no nodes, as nodes and programs
	nodes     *nodes.Nodes
	programs  *programs
	templates service.TemplateProvider
	shared    sharer // templates, if other servers use them too; or nil
	service   *service.Service
	metrics   *metrics
	sso       *sso.Provider  // nil if there is none
	objects   *tiered.Engine // the engine, if there is an object store
	linkKey   []byte         // signs what is handed out to those without a key
	driving   context.Context
	closers   []func() error
}

func (p *parts) onClose(f func() error) { p.closers = append(p.closers, f) }

func (p *parts) close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	return errors.Join(errs...)
}

// Run runs the daemon until ctx is cancelled, which is not an error, or until
// it has been idle for as long as its configuration allows. One that has others on standby
// goes on standby itself when it has lost its records.
func (s *Server) Run(ctx context.Context) (err error) {
	dir := s.cfg.StateDir
	if err := PrepareStateDir(dir); err != nil {
		return err
	}
	unlock, err := lockState(ctx, dir, s.deps.LockWait, s.deps.OnDemand)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if s.cfg.Standby && !s.deps.OnDemand {
		return s.takeTurns(ctx)
	}
	r, err := openStore(ctx, dir, s.cfg.Store.SecretValue)
	if err != nil {
		return err
	}
	return s.run(ctx, r, func() error { return nil })
}

// run runs the daemon with its records, which it closes, as long as it has them. It calls
// makeWay before it listens.
func (s *Server) run(ctx context.Context, r holding, makeWay func() error) (err error) {
	p := parts{holding: r}
	p.onClose(p.store.Close)
	defer func() { err = errors.Join(err, p.close()) }()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var driven context.CancelFunc
	p.driving, driven = context.WithCancel(context.WithoutCancel(ctx))
	p.onClose(func() error { driven(); return nil })
	stopWatching := context.AfterFunc(lostContext(ctx, p.lost), func() {
		if p.isLost() {
			driven() // at once: from now on another may drive the nodes
			end(errStoreLost)
		}
	})
	defer stopWatching()
	if err := s.open(ctx, &p); err != nil {
		return p.explain(err)
	}
	if err := s.checkExposure(ctx, p.store); err != nil {
		return p.explain(err)
	}
	front, err := s.newFront(&p)
	if err != nil {
		return err
	}
	if err := errors.Join(makeWay(), front.listen(ctx)); err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	stopped := s.background(background, func() { end(nil) }, &p, front)
	err = front.serve(ctx)
	stop()
	stopped()
	return p.explain(err)
}

// open opens everything that holds state.
func (s *Server) open(ctx context.Context, p *parts) error {
	dir := s.cfg.StateDir
	id, adopts, err := p.store.Installation(ctx)
	if err != nil {
		return err
	}
	if err := checkInstallation(dir, s.databaseName(), id, adopts); err != nil {
		return err
	}
	secrets, err := vault.Load(dir, os.Getenv(vault.EnvKey))
	if err != nil {
		return fmt.Errorf("open the vault: %w", err)
	}
	if p.files, err = openFiles(ctx, dir, p.store, secrets, s.cfg.Standby, s.log); err != nil {
		return err
	}
	if err := s.openEngine(ctx, p); err != nil {
		return err
	}
	if p.templates, err = s.deps.Assembly.Templates(ctx, filepath.Join(dir, "templates"), &s.cfg, s.log); err != nil {
		return fmt.Errorf("open the templates: %w", err)
	}
	if err := s.openNodes(p); err != nil {
		return err
	}
	if p.linkKey, err = linkKey(p.files); err != nil {
		return err
	}
	if p.sso, err = s.newSSO(); err != nil {
		return err
	}
	if p.sso != nil {
		p.onClose(func() error { p.sso.Close(); return nil })
	}
	p.metrics = newMetrics(s.deps.Version)
	if p.fleet != nil {
		p.metrics.registry.MustRegister(newNodeMetrics(p.fleet.Rooms))
	}
	if err := s.openObjects(ctx, p, id, secrets); err != nil {
		return err
	}
	volumes, err := volume.Open(filepath.Join(s.cfg.StateDir, "volumes"))
	if err != nil {
		return err
	}
	orphans, err := orphan.Open(filepath.Join(dir, "orphans"))
	if err != nil {
		return err
	}
	receivers, err := receivers(s.cfg.Webhooks.Approvals)
	if err != nil {
		return err
	}
	p.service, err = service.New(service.Config{
		Store: p.store, Engine: p.engine, Templates: p.templates, Log: s.log,
		Quota:           quota(s.cfg.Quotas),
		Capacity:        s.capacity(p),
		Nodes:           p.serviceNodes(),
		DefaultTemplate: s.cfg.Defaults.Template,
		Lifetime:        orNone(s.cfg.Defaults.Lifetime),
		IdleTimeout:     orNone(s.cfg.Defaults.IdleTimeout),

		CheckpointInterval: s.cfg.Defaults.CheckpointInterval,
		Dedicated:          s.cfg.Defaults.Dedicated,
		KeyPrefix:          s.cfg.KeyPrefix,
		Build:              build(s.deps.Version),
		Warm:               s.cfg.Defaults.Warm,
		TempDir:            dir,
		Volumes:            volumes,
		Orphans:            orphans,
		OrphanRetention:    s.cfg.Orphans.Retention,
		HostMounts:         s.cfg.Mounts.AllowHost,
		StateDir:           s.cfg.StateDir,
		Vault:              secrets,
		CheckMachine:       s.checkMachine(p),
		Metrics:            p.metrics.registry,
		Webhooks:           webhook.Config{AllowPrivate: s.cfg.Webhooks.AllowPrivate, UserAgent: "Cove-Webhook/" + s.deps.Version},
		Receivers:          receivers,
		Network:            sandbox.NetworkPreset(s.cfg.Network.Default),
		PreviewKey:         p.linkKey,
		UploadURL:          func(link string) string { return s.cfg.UploadURL(uploadPath+link, int(s.port.Load())) },
		PreviewURL:         func(label string) string { return s.cfg.PreviewURL(label, int(s.port.Load())) },
	})
	if err != nil {
		return fmt.Errorf("make the service: %w", err)
	}
	p.onClose(p.service.Close)
	if p.objects != nil {
		p.objects.SetRootsInUse(p.rootsInUse)
	}
	if err := s.listenNodes(ctx, p); err != nil {
		return err
	}
	if err := p.service.Start(ctx); err != nil {
		return fmt.Errorf("start the service: %w", err)
	}
	if p.fleet != nil {
		p.fleet.Started()
	}
	return s.collect(ctx, p)
}

// databaseName names in errors what has the records.
func (s *Server) databaseName() string {
	if s.cfg.Store.Reveal() != "" {
		return "the database of --store (COVE_STORE)"
	}
	return filepath.Join(s.cfg.StateDir, databaseFile)
}

// checkMachine is [Deps.CheckMachine] for the daemon's own state directory.
func (s *Server) checkMachine(p *parts) func(context.Context) sandbox.MachineReport {
	if s.deps.CheckMachine == nil {
		return nil
	}
	return func(ctx context.Context) sandbox.MachineReport {
		report := s.deps.CheckMachine(ctx, s.cfg.StateDir)
		noteObjects(&report, p.objects)
		return report
	}
}

// collector is a [service.TemplateProvider] that can remove what no template
// has any more.
type collector interface {
	Collect(inUse map[string]bool) (removed []string, err error)
}

// collect frees the disk of old templates when no sandbox can be using one.
func (s *Server) collect(ctx context.Context, p *parts) error {
	idle, _, err := p.service.Idle(ctx)
	c, ok := p.templates.(collector)
	if err != nil || !idle || !ok {
		return err
	}
	inUse, err := p.service.Roots(ctx)
	if err != nil {
		return err
	}
	removed, err := c.Collect(inUse)
	if err != nil {
		s.log.Warn("remove old templates", "error", err)
	}
	for _, digest := range removed {
		s.log.Info("old template removed", "digest", digest)
	}
	return nil
}

// background starts what runs beside the doors until ctx ends; the result
// waits for its end.
func (s *Server) background(ctx context.Context, end context.CancelFunc, p *parts, f *front) (wait func()) {
	var wg sync.WaitGroup
	keeper := janitor.New(janitor.Config{Records: p.store, Keeper: p.service, Log: s.log})
	wg.Go(func() { keeper.Run(ctx) })
	wg.Go(func() { s.exitWhenIdle(ctx, end, p.service, f) })
	wg.Go(func() { s.warm(ctx, p.service) })
	return wg.Wait
}

// warm makes the default template ready, so that the first sandbox does not
// wait for it. Whoever needs it meets the error, if there is one.
func (s *Server) warm(ctx context.Context, svc *service.Service) {
	if err := svc.Prepare(ctx, s.cfg.Defaults.Template); err != nil && ctx.Err() == nil {
		s.log.Warn("the default template is not ready", "template", s.cfg.Defaults.Template, "error", err)
	}
}

// checkExposure refuses to serve other machines while no key can keep them
// out.
func (s *Server) checkExposure(ctx context.Context, keys store.Keys) error {
	if !s.cfg.Exposed() {
		return nil
	}
	for k, err := range store.All(ctx, keys.ListKeys, "") {
		if err != nil {
			return fmt.Errorf("look for API keys: %w", err)
		}
		if k.RevokedAt == nil && (k.ExpiresAt == nil || time.Now().Before(*k.ExpiresAt)) {
			return nil
		}
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "%s is reachable from other machines, but there is no API key; create one first with: cove key create NAME", strings.Join(append([]string{s.cfg.Listen}, s.cfg.DialectPorts...), ", "))
}

// quota translates: the service's own default is 0, and no bound -1.
func quota(q config.Quotas) store.Quota {
	return store.Quota{Sandboxes: orNoBound(q.Sandboxes), VCPUs: q.VCPUs, MemoryMiB: q.MemoryMiB, DiskMiB: q.DiskMiB, Snapshots: orNoBound(q.Snapshots)}
}

// orNoBound translates: the service's own default is 0, and no bound -1.
func orNoBound(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// build identifies the running program, also between two builds of a version.
func build(version string) string {
	info, err := os.Stat("/proc/self/exe")
	if err != nil {
		return version
	}
	return fmt.Sprintf("%s %d %d", version, info.Size(), info.ModTime().UnixNano())
}

// orNone translates a duration: the service's own default is 0, and no bound
// is negative.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
