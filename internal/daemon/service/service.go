package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/cove-sh/cove/internal/daemon/audit"
	"github.com/cove-sh/cove/internal/daemon/orphan"
	"github.com/cove-sh/cove/internal/daemon/service/approvals"
	"github.com/cove-sh/cove/internal/daemon/service/builds"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/internal/daemon/service/expose"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/service/volumes"
	"github.com/cove-sh/cove/internal/daemon/service/webhooks"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/daemon/volume"
	"github.com/cove-sh/cove/internal/daemon/webhook"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// flushEvery is how often the times of last use are written to the store.
	flushEvery = 5 * time.Second
)

// Config configures a [Service].
type Config struct {
	Store     store.Store
	Engine    engine.Engine
	Templates TemplateProvider
	// Log receives messages for the operator; nil discards them.
	Log *slog.Logger
	// Quota limits each team. For Sandboxes and Snapshots, 0 means 100 and -1 no limit;
	// snapshots of histories do not count. The limit of volumes is always
	// [sandbox.MaxVolumes].
	Quota store.Quota
	// Capacity says how large a sandbox can be.
	Capacity validate.Capacity
	// MaxCreates is how many sandboxes are created at the same time; others wait. 0 is
	// 8.
	MaxCreates int
	// DefaultTemplate is used by requests without a template; "" is "host".
	DefaultTemplate string
	// Lifetime and IdleTimeout apply to requests without them: 0 is
	// [sandbox.DefaultLifetime] and no idle timeout; negative is unlimited.
	Lifetime    time.Duration
	IdleTimeout time.Duration
	// CheckpointInterval is the interval of automatic checkpoints of requests without one;
	// 0 is none.
	CheckpointInterval time.Duration
	// Dedicated is that of requests that do not say.
	Dedicated bool
	// Build identifies this version of Cove: golden checkpoints of other versions are
	// made again. Warm bounds the standby sandboxes of a template; 0 keeps no golden
	// checkpoints.
	Build string
	Warm  int
	// TempDir is for the files of a merge; "" is the system's.
	TempDir string
	// BuildDir is for the logs of builds; "" is a directory in TempDir.
	BuildDir string
	// KeyPrefix is the prefix of API keys; "" is that of package auth.
	KeyPrefix string
	// Vault seals and opens the values of secrets. Without it there are no secrets.
	Vault *vault.Vault
	// Volumes has the files of volumes. Without it there are no volumes.
	Volumes *volume.Dir
	// Orphans keeps what no record names for OrphanRetention; 0 is 7 days. Without
	// Orphans it is removed at once.
	Orphans         *orphan.Dir
	OrphanRetention time.Duration
	// Room returns the free and the total bytes of the disk of Orphans; nil asks the
	// system about StateDir.
	Room func() (free, total int64, err error)
	// HostMounts are directories of the host that sandboxes may mount, with everything
	// below; ":rw" at the end allows writing.
	HostMounts []string
	// StateDir is the server's own directory, with its secrets: no sandbox can mount
	// it, whatever HostMounts says.
	StateDir string
	// Network is the policy of sandboxes without one; "" is open.
	Network sandbox.NetworkPreset
	// PreviewKey signs links to previews; nil is a random key of this process.
	PreviewKey []byte
	// PreviewURL returns the URL of a preview from the first label of its host name;
	// nil uses http and localhost.
	PreviewURL func(label string) string
	// UploadURL returns the address to which an archive is uploaded, from a signed
	// link; it is "" if this server has no address that others know. Nil means that.
	UploadURL func(link string) string
	// CheckMachine reports what the machine lets Cove do; if it is nil, the verb is
	// unsupported.
	CheckMachine func(ctx context.Context) sandbox.MachineReport
	// Nodes are the machines that run sandboxes, if the engine has several; nil is none.
	Nodes Nodes
	// Metrics registers the service's Prometheus metrics; nil registers none.
	Metrics prometheus.Registerer
	// Webhooks configures how webhooks are sent. Receivers are webhooks that get what
	// network policies ask.
	Webhooks  webhook.Config
	Receivers []webhooks.Receiver
	// Boot is the current run of the machine; zero is read from the kernel.
	Boot Boot
	// Clock is the clock for lifetimes; nil is the machine's.
	Clock Clock

	// These are set by tests; 0 is the constant.
	flushEvery, checkpointLook, statsInterval time.Duration
}

// TemplateProvider finds and builds templates.
type TemplateProvider = builds.Templates

// Service implements [sandbox.Service]. [Service.Start] makes it ready and
// [Service.Close] ends it; sandboxes keep running.
type Service struct {
	*builds.Builder
	*expose.Exposer
	*volumes.Volumes
	*secrets.Secrets
	*recovery.Recovery

	cfg   Config
	log   *slog.Logger
	audit *audit.Recorder
	// clock is the reading to which the times of sandboxes have been adjusted. Only
	// KeepTime uses it.
	clock store.ClockReading

	gate         *call.Gate
	events       *events.Log
	slots        chan struct{} // a semaphore: one place for each create under way
	leaving      chan struct{} // a semaphore: one place for each sandbox that killSoon leaves behind
	keeping      checkpointQueue
	fences       *semaphore.Weighted  // bounds [Service.fenceKept]
	looking      chan struct{}        // a semaphore: one place for each sandbox that [Service.announceFound] asks
	checkpointer engine.Checkpointer  // the engine, or nil if it keeps no state
	logger       engine.NetworkLogger // the engine, or nil if it keeps no logs

	mu       sync.Mutex
	handles  map[string]*handle       // guarded by mu; running sandboxes by id
	opening  map[string]chan struct{} // guarded by mu; closed when the open is over
	creating map[string]*creation     // guarded by mu
	moving   map[string]chan struct{} // guarded by mu; see [Service.lock]
	// saving are the sandboxes with an automatic checkpoint under way, and what makes it make
	// way; see [Service.weakLock]. Guarded by mu.
	saving map[string]context.CancelCauseFunc
	// unstored are the automatic checkpoints that are not stored everywhere yet, by sandbox.
	// Guarded by mu.
	unstored map[string]string
	using    map[string]int  // guarded by mu; checkpoints in use
	ours     map[string]bool // guarded by mu; checkpoints that were in use and have not been removed
	spared   map[string]bool // guarded by mu; checkpoints in use that the collector skipped
	// coming are instances in which a sandbox is about to continue, with the reason
	// of those that have already ended. Guarded by mu.
	coming map[string]string
	// awaited are the jobs whose ends will be announced, by sandbox. Guarded by mu.
	awaited map[string]map[string]bool
	// insisting are the instances at which [Service.insist] is at work. Guarded by mu.
	insisting map[string]bool
	// asking are the newest open questions of instances at whose questions
	// [Service.handleQuestions] is at work. Guarded by mu.
	asking map[string][]engine.Question

	waking    singleflight.Group
	golden    *goldens
	moves     moves
	approvals *approvals.Book
	meter     meter
	metrics   *metrics
	webhooks  *webhooks.Queue
	collect   chan struct{} // wakes the collector; has room for one
}

var _ sandbox.Service = (*Service)(nil)

// New returns a service. It must be started before its verbs are used.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Engine == nil || cfg.Templates == nil {
		return nil, errors.New("service needs a store, an engine and templates")
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	hostMounts, err := volumes.ParseHostMounts(cfg.HostMounts)
	if err != nil {
		return nil, err
	}
	if err := webhooks.CheckReceivers(cfg.Webhooks, cfg.Receivers); err != nil {
		return nil, err
	}
	log := cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	var s *Service
	happened := events.NewLog()
	cfg.Store = events.Watch(cfg.Store, happened, func(r store.Record) *sandbox.Sandbox { return s.view(r) })
	s = &Service{
		cfg: cfg, log: log, events: happened, audit: audit.NewRecorder(cfg.Store, log),
		slots: make(chan struct{}, cmp.Or(cfg.MaxCreates, 8)), leaving: make(chan struct{}, maxLeaving), looking: make(chan struct{}, lookers),
		keeping: checkpointQueue{workers: map[string]int{}}, fences: semaphore.NewWeighted(fencesAtOnce), saving: map[string]context.CancelCauseFunc{}, unstored: map[string]string{},
		handles: map[string]*handle{}, opening: map[string]chan struct{}{}, creating: map[string]*creation{},
		moving: map[string]chan struct{}{}, using: map[string]int{}, ours: map[string]bool{}, coming: map[string]string{}, spared: map[string]bool{}, insisting: map[string]bool{},
		awaited: map[string]map[string]bool{}, asking: map[string][]engine.Question{},
		collect: make(chan struct{}, 1),
	}
	s.checkpointer, _ = cfg.Engine.(engine.Checkpointer)
	s.logger, _ = cfg.Engine.(engine.NetworkLogger)
	s.golden = newGoldens(s)
	s.approvals = approvals.New(s.tellApproval)
	s.gate = call.NewGate(call.Config{Store: cfg.Store, Audit: s.audit, Log: log, Observe: func(action string, began time.Time, err error) {
		s.metrics.observe(action, began, err)
	}})
	s.Volumes = volumes.New(volumes.Config{
		Gate: s.gate, Store: cfg.Store, Engine: cfg.Engine, Log: log, Quota: cfg.Quota, Dir: cfg.Volumes, Orphans: cfg.Orphans, OrphanRetention: cfg.OrphanRetention,
		HostMounts: hostMounts, StateDir: cfg.StateDir,
		Kill: func(ctx context.Context, id, reason string) error { _, err := s.kill(ctx, id, reason); return err },
	})
	s.Recovery = recovery.New(recovery.Config{
		Gate: s.gate, Store: cfg.Store, Engine: cfg.Engine, Checkpointer: s.checkpointer, Log: log,
		Dir: cfg.Orphans, Retention: cfg.OrphanRetention, Room: func() (free, total int64, err error) { return s.cfg.Room() },
		VolumeFiles: cfg.Volumes, SetVolumeAside: s.Volumes.SetAside, Hold: s.use,
	})
	s.Secrets = secrets.New(secrets.Config{
		Gate: s.gate, Store: cfg.Store, Log: log, Vault: cfg.Vault, NetworkLog: s.logger, Push: s.pushAgain, Change: s.regate, View: s.view,
	})
	s.Exposer = expose.New(expose.Config{
		Gate: s.gate, Store: cfg.Store, Log: log, Links: expose.Links{Key: cfg.PreviewKey}, URL: cfg.PreviewURL,
		Open: func(ctx context.Context, in call.Realm, ref string) (expose.Sandbox, error) {
			return s.open(ctx, in, ref)
		},
		OpenFor:    func(c *call.Call, ref string) (expose.Sandbox, error) { return s.openFor(c, ref) },
		OpenRecord: func(ctx context.Context, r *store.Record) (expose.Sandbox, error) { return s.openRecord(ctx, r) },
		Wake:       s.wake, NoScreen: s.noScreen,
	})
	build := builds.Config{
		Gate: s.gate, Store: cfg.Store, Engine: cfg.Engine, Templates: cfg.Templates, Log: log, Quota: cfg.Quota, Capacity: cfg.Capacity,
		Network: cfg.Network, Dir: cfg.BuildDir, Key: cfg.PreviewKey, UploadURL: cfg.UploadURL, Keeper: s.checkpointer, NetworkLog: s.logger,
		Slot: func(ctx context.Context) (func(), error) { return func() { <-s.slots }, s.slot(ctx) },
		Hold: s.use, Roots: s.Roots, Forget: s.golden.forget,
	}
	if s.checkpointer != nil && cfg.Warm > 0 {
		build.Prepare = s.prepare
	}
	s.Builder = builds.New(build)
	s.metrics = newMetrics(s)
	s.webhooks = webhooks.New(webhooks.Config{
		Gate: s.gate, Store: cfg.Store, Log: log, Sender: cfg.Webhooks, Receivers: cfg.Receivers, Vault: cfg.Vault, Sealing: s.Secrets.Sealing(),
		Open: func(ctx context.Context, r *store.Record) (webhooks.Sandbox, error) {
			h, err := s.openRecord(ctx, r)
			if err != nil {
				return webhooks.Sandbox{}, err
			}
			return webhooks.Sandbox{Client: h.client, Gone: h.gone}, nil
		},
		Running: s.isOpen,
	})
	if p, ok := cfg.Engine.(engine.Switch); ok {
		p.SetPeers(s.DialPeer)
	}
	if q, ok := cfg.Engine.(engine.Inquirer); ok {
		q.SetAsked(s.instanceAsks)
	}
	cfg.Engine.Notify(s.instanceFailed)
	return s, nil
}

func (cfg *Config) setDefaults() error {
	if cfg.Boot == (Boot{}) {
		boot, err := readBoot()
		if err != nil {
			return err
		}
		cfg.Boot = boot
	}
	if cfg.Clock == nil {
		cfg.Clock = readClock
	}
	switch {
	case cfg.Quota.Sandboxes == 0:
		cfg.Quota.Sandboxes = 100
	case cfg.Quota.Sandboxes < 0:
		cfg.Quota.Sandboxes = 0
	}
	switch {
	case cfg.Quota.Snapshots == 0:
		cfg.Quota.Snapshots = 100
	case cfg.Quota.Snapshots < 0:
		cfg.Quota.Snapshots = 0
	}
	cfg.Quota.Volumes = sandbox.MaxVolumes
	cfg.Lifetime = max(0, cmp.Or(cfg.Lifetime, sandbox.DefaultLifetime))
	cfg.IdleTimeout = max(0, cmp.Or(cfg.IdleTimeout, sandbox.DefaultIdleTimeout))
	cfg.DefaultTemplate = cmp.Or(cfg.DefaultTemplate, "host")
	cfg.Network = cmp.Or(cfg.Network, sandbox.NetworkOpen)
	if cfg.BuildDir == "" {
		cfg.BuildDir = filepath.Join(cmp.Or(cfg.TempDir, os.TempDir()), "builds")
	}
	if cfg.PreviewKey == nil {
		cfg.PreviewKey = []byte(rand.Text())
	}
	if cfg.PreviewURL == nil {
		cfg.PreviewURL = func(label string) string { return "http://" + label + ".localhost" }
	}
	cfg.OrphanRetention = cmp.Or(cfg.OrphanRetention, recovery.DefaultRetention)
	if cfg.Room == nil {
		cfg.Room = func() (free, total int64, err error) { return recovery.RoomOf(cfg.StateDir) }
	}
	return nil
}

// Start brings the records into line with what the engine still runs, and
// begins work in the background. It is called once, before any verb.
func (s *Service) Start(ctx context.Context) error {
	if err := errors.Join(s.KeepTime(ctx), s.reconcile(ctx), s.Builder.FailLost(ctx), s.Volumes.Reconcile(ctx), s.Secrets.LogLostKeys(ctx)); err != nil {
		return err
	}
	s.gate.Go(s.flushLoop)
	s.gate.Go(s.collectLoop)
	s.gate.Go(s.checkpointLoop)
	s.gate.Go(s.meterLoop)
	s.gate.Go(s.webhooks.Run)
	s.gate.Go(s.Volumes.Run)
	s.beginMoves()
	return nil
}

// Close ends the service: it cancels verbs under way, refuses new ones, and stores what
// is only in memory. It does not close the store or the engine.
func (s *Service) Close() error {
	s.gate.Close()
	s.Exposer.EndConnections()
	s.gate.Wait()
	s.webhooks.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := errors.Join(s.flushActivity(ctx), s.audit.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.handles {
		h.client.Close()
	}
	clear(s.handles)
	return err
}

// Idle reports whether no sandbox runs (paused ones do not), no port is published, and
// no build or verb is under way. It also returns when a verb last began or ended.
func (s *Service) Idle(ctx context.Context) (bool, time.Time, error) {
	busy, _, err := s.cfg.Store.ListSandboxes(ctx, store.SandboxFilter{
		States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StateStopping},
	}, sandbox.Page{Limit: 1})
	if err != nil {
		return false, time.Time{}, err
	}
	calls, last := s.gate.Calls()
	return len(busy) == 0 && calls == 0 && !s.Ports.Any() && !s.Builder.Any(), last, nil
}

// Denied records that the caller requested an operation that their scopes do not allow.
// Doors call it if they refuse before they read the request.
func (s *Service) Denied(ctx context.Context, operation string) { s.gate.Denied(ctx, operation) }

func (s *Service) flushLoop() {
	t := time.NewTicker(cmp.Or(s.cfg.flushEvery, flushEvery))
	defer t.Stop()
	for {
		select {
		case <-s.gate.Context().Done():
			return
		case <-t.C:
		}
		if err := s.flushActivity(s.gate.Context()); err != nil && s.gate.Context().Err() == nil {
			s.log.Error("record when sandboxes were last used", "error", err)
		}
	}
}

// flushActivity stores when sandboxes were last used.
func (s *Service) flushActivity(ctx context.Context) error {
	s.mu.Lock()
	handles := maps.Clone(s.handles)
	s.mu.Unlock()
	active := map[string]time.Time{}
	for id, h := range handles {
		if at, changed := h.unsaved(); changed {
			active[id] = at
		}
	}
	if len(active) == 0 {
		return nil
	}
	if err := s.cfg.Store.TouchSandboxes(ctx, active); err != nil {
		return err
	}
	for id, at := range active {
		handles[id].saved(at)
	}
	return nil
}
