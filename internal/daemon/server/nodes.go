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
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/nodes"
	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/node"
	"github.com/cove-sh/cove/sandbox"
)

// nodesWait is how long a starting server waits for nodes that run sandboxes.
const nodesWait = 10 * time.Second

// openEngine opens the engine of this machine, and those of nodes if there may be any.
func (s *Server) openEngine(ctx context.Context, p *parts) (err error) {
	if s.cfg.Nodes.Only && s.cfg.Nodes.Listen == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "--nodes-only needs an address to which nodes connect; set it with --nodes HOST:PORT")
	}
	if s.cfg.Nodes.ServiceAccount != "" && s.cfg.Nodes.Listen == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "--nodes-service-account needs an address to which nodes connect; set it with --nodes HOST:PORT")
	}
	if s.cfg.Defaults.Dedicated && s.cfg.Nodes.Listen == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "--default-dedicated needs an address to which nodes connect; set it with --nodes HOST:PORT")
	}
	if !s.cfg.Nodes.Only {
		if p.engine, err = s.deps.Assembly.Engine(ctx, filepath.Join(s.cfg.StateDir, "engine"), &s.cfg, s.log); err != nil {
			return fmt.Errorf("open the engine: %w", err)
		}
	}
	if s.cfg.Nodes.Listen != "" {
		p.programs = newPrograms()
		if p.fleet, err = fleet.New(fleet.Config{
			Local: p.engine, LocalReport: reporter(s.deps.Version, s.cfg.StateDir, false), Files: durable.Below(p.files, membersFiles), Epoch: p.epoch, Lease: s.cfg.Nodes.Lease, Log: s.log,
			Shared: p.programs.open,
		}); err != nil {
			if p.engine != nil {
				err = errors.Join(err, p.engine.Close())
			}
			return err
		}
		p.engine = p.fleet
	}
	p.onClose(func() error { return p.engine.Close() }) // it may be another one by then
	return nil
}

// listenNodes lets nodes connect. It is called when the service hears of what they tell,
// and before it asks what runs.
func (s *Server) listenNodes(ctx context.Context, p *parts) error {
	if p.nodes == nil {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Nodes.Listen)
	if err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on %s for nodes (%v); choose another address with --nodes", s.cfg.Nodes.Listen, err))
	}
	p.nodes.SetMover(p.service)
	s.log.Info("listening for nodes", "address", l.Addr().String())
	serving, stop := context.WithCancel(p.driving)
	ended, retired := make(chan error, 1), make(chan struct{})
	go func() { ended <- p.nodes.Serve(serving, l) }()
	go func() {
		defer close(retired)
		p.nodes.RetireUsed(serving, p.storedIn())
	}()
	p.onClose(func() error {
		stop()
		<-retired
		return <-ended
	})
	wait, cancel := context.WithTimeout(ctx, nodesWait)
	defer cancel()
	p.fleet.Await(wait)
	return nil
}

func (s *Server) openNodes(p *parts) (err error) {
	if p.fleet == nil {
		return nil
	}
	roots, ok := p.templates.(nodes.Roots)
	if !ok {
		return errors.New("these templates cannot be sent to nodes")
	}
	cfg := nodes.Config{Files: durable.Below(p.files, nodesFiles), Fleet: p.fleet, Roots: roots, Log: s.log}
	var cluster *pods.Cluster
	if namespace, name, ok := strings.Cut(s.cfg.Nodes.ServiceAccount, "/"); ok {
		if cluster, err = pods.InCluster(os.Getenv, pods.DefaultDir, pods.Account{Namespace: namespace, Name: name}); err != nil {
			return err
		}
		cfg.Pods = cluster
	}
	if p.nodes, err = nodes.Open(cfg); err != nil || cluster == nil {
		return err
	}
	s.publishAuthority(p, cluster)
	return nil
}

const (
	// nodesConfigMap is where Pods find the authority of the server, under the key.
	nodesConfigMap, authorityKey = "cove-nodes", "authority.pem"
	publishAgain                 = 5 * time.Second
)

// publishAuthority writes the nodes' authority where Pods can mount it. Nodes that have
// joined do not need it, so the server does not wait.
func (s *Server) publishAuthority(p *parts, cluster *pods.Cluster) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			err := cluster.Publish(ctx, nodesConfigMap, authorityKey, p.nodes.Authority())
			if err == nil || ctx.Err() != nil {
				return
			}
			s.log.Warn("the nodes' authority cannot be written into the ConfigMap; new Pods wait for it", "name", nodesConfigMap, "error", err)
			select {
			case <-time.After(publishAgain):
			case <-ctx.Done():
			}
		}
	}()
	p.onClose(func() error {
		stop()
		<-done
		return nil
	})
}

// storedIn returns what tells whether checkpoints are in the object store.
func (p *parts) storedIn() func(ctx context.Context, checkpoints []string) bool {
	return func(ctx context.Context, checkpoints []string) bool {
		kept, ok := p.engine.(engine.Replicator)
		return ok && kept.Holds(ctx, checkpoints)
	}
}

// capacity says what one sandbox can have at most.
func (s *Server) capacity(p *parts) validate.Capacity {
	if p.fleet != nil {
		largest := func(dedicated bool) func() sandbox.Resources {
			return func() sandbox.Resources { return p.fleet.Largest(dedicated) }
		}
		return validate.Capacity{Largest: largest(false), Dedicated: largest(true), Placed: true}
	}
	here := machine.Capacity(s.cfg.StateDir)
	return validate.Capacity{Largest: func() sandbox.Resources { return here }}
}

// reporter returns what says what this machine has.
func reporter(version, dir string, dedicated bool) func() remote.Report {
	capacity := machine.Capacity(dir)
	return func() remote.Report {
		r := remote.Report{Version: version, Capacity: capacity, FreeMemory: 1 << 62, Dedicated: dedicated}
		for _, m := range machine.MemoryBounds() {
			r.FreeMemory = min(r.FreeMemory, m.Room())
		}
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil {
			r.FreeDisk, r.Disk = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
		}
		return r
	}
}

// NodeDeps are what a node needs besides its configuration.
type NodeDeps struct {
	// Server is the address, host:port, to which the server listens for nodes.
	Server string
	// Name and Token are needed until the node has joined.
	Name, Token string
	// Pod has the files with which a Pod of a Kubernetes cluster joins instead of by Token.
	Pod     node.PodFiles
	Version string
	Log     *slog.Logger
	// Ready is called once, when the server drives the node, which it knows by a name.
	Ready func(name string)
	// DrainOnExit is how long a node that stops may take to have its sandboxes moved; 0 leaves
	// them running.
	DrainOnExit time.Duration
	// Draining, if not nil, is called when that begins.
	Draining func()
	// Health is where the node answers probes, as host:port, or empty.
	Health string
	// Dedicated says that the node runs the sandboxes of one family at a time.
	Dedicated bool
}

func (d *NodeDeps) join(ctx context.Context, id *node.Identity) error {
	switch {
	case d.Pod.Token != "" && d.Pod.Authority != "":
		return d.joinAsPod(ctx, id)
	case d.Pod.Token != "" || d.Pod.Authority != "":
		return sandbox.Errorf(sandbox.CodeInvalid, "a Pod joins with both --pod-token and --authority; give the one that is missing")
	case d.Token == "":
		return sandbox.Errorf(sandbox.CodeInvalid, "this machine has not joined yet; make a token on the server with: cove node token, and give it with --token")
	}
	return id.Join(ctx, d.Token, d.Name, d.Dedicated)
}

// joinAgain is how long a Pod waits before it tries to join again.
const joinAgain = 5 * time.Second

// joinAsPod tries again while that can help: a Pod that ends is started again anyway, but
// ever later.
func (d *NodeDeps) joinAsPod(ctx context.Context, id *node.Identity) error {
	for {
		err := id.JoinAsPod(ctx, d.Pod, d.Name, d.Dedicated)
		if code := sandbox.CodeOf(err); err == nil || code != sandbox.CodeUnavailable && code != sandbox.CodeConflict {
			return err
		}
		d.Log.Warn("the Pod cannot join the server yet", "server", d.Server, "error", err)
		select {
		case <-time.After(joinAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var errTemplates = errors.New("these templates cannot be those of a node")

// RunNode runs sandboxes of a server on this machine until ctx is cancelled, which is not
// an error. Sandboxes live on.
func RunNode(ctx context.Context, cfg config.Config, deps NodeDeps) (err error) {
	dir := cfg.StateDir
	if err := PrepareStateDir(dir); err != nil {
		return err
	}
	var health node.Health
	if deps.Health != "" {
		l, err := net.Listen("tcp", deps.Health)
		if err != nil {
			return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("cannot answer probes at %s (%v); choose another --health-listen", deps.Health, err))
		}
		ended, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		go health.Serve(ended, l, deps.Log)
	}
	unlock, err := lockState(ctx, dir, 0, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	id, err := node.Open(filepath.Join(dir, "node"), deps.Server, deps.Log)
	if err != nil {
		return err
	}
	if !id.Joined() {
		if err := deps.join(ctx, id); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	name, err := id.Name()
	if err != nil {
		return err
	}
	templates, err := localTemplates(ctx, filepath.Join(dir, "templates"), &cfg, deps.Log)
	if err != nil {
		return fmt.Errorf("open the templates: %w", err)
	}
	store, ok := templates.(node.Store)
	if !ok {
		return errTemplates
	}
	var e engine.Engine
	if e, err = localEngine(ctx, filepath.Join(dir, "engine"), &cfg, deps.Log); err != nil {
		return fmt.Errorf("open the engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return node.Run(ctx, node.Config{
		Identity: id, Engine: e, Roots: store, Report: reporter(deps.Version, dir, deps.Dedicated), AsideDir: filepath.Join(dir, "aside"), Ready: func() { deps.Ready(name) }, Log: deps.Log,
		DrainOnExit: deps.DrainOnExit, Draining: deps.Draining, Health: &health,
	})
}

// serviceNodes returns the nodes for the service, or none.
func (p *parts) serviceNodes() service.Nodes {
	if p.nodes == nil {
		return nil
	}
	return p.nodes
}
