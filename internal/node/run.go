package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures [Run]. All fields but DrainOnExit, Draining and Health are required.
type Config struct {
	Identity *Identity
	// Engine is driven; Run does not close it.
	Engine engine.Engine
	Roots  Store
	// Report says what the machine has.
	Report func() remote.Report
	// AsideDir is for checkpoints that the server sets aside. They are removed after
	// [remote.AsideAge].
	AsideDir string
	// Ready is called once, when the server drives the node for the first time.
	Ready func()
	// DrainOnExit is how long Run may take, when ctx has ended, to have the sandboxes moved to
	// other nodes; 0 leaves them running.
	DrainOnExit time.Duration
	// Draining, if not nil, is called when that begins.
	Draining func()
	// Health, if not nil, is told whether the server drives the node.
	Health *Health
	Log    *slog.Logger
}

const (
	// redial is how long to wait before the server is dialled again: at first, and at most.
	redialFirst, redialMost = 200 * time.Millisecond, 2 * time.Second
	// tidyEvery is how often roots that nothing uses are removed.
	tidyEvery = time.Hour
)

// Run lets the server drive the engine until ctx ends. Sandboxes run on, unless they move to
// other nodes before.
func Run(ctx context.Context, cfg Config) error {
	if err := os.MkdirAll(cfg.AsideDir, 0o700); err != nil {
		return err
	}
	asked := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(asked, func() {
		defer stop()
		if cfg.DrainOnExit > 0 {
			cfg.drain(ctx)
		}
	})
	if cfg.Health == nil {
		cfg.Health = &Health{}
	}
	ready := sync.OnceFunc(cfg.Ready)
	server := remote.NewServer(remote.Config{
		Engine: cfg.Engine, Roots: &roots{id: cfg.Identity, store: cfg.Roots}, Report: cfg.Report, AsideDir: cfg.AsideDir, Log: cfg.Log,
		Admit: cfg.Identity.admit,
		Settled: func() {
			cfg.Health.driven.Store(true)
			ready()
		},
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { cfg.upkeep(ctx, server) })
	wg.Go(func() { cfg.prepare(ctx) })
	wait, returned := redialFirst, false
	for ctx.Err() == nil {
		served := time.Duration(0)
		if !returned {
			returned = cfg.Identity.tell(ctx, "/v1/return", &struct{}{}) == nil
		}
		c, err := cfg.Identity.dial(ctx)
		if err == nil {
			cfg.Log.Info("connected to the server", "server", c.RemoteAddr().String())
			began := time.Now()
			err = server.Serve(ctx, c)
			served = time.Since(began)
			cfg.Health.driven.Store(false)
			c.Close()
		}
		if ctx.Err() != nil {
			break
		}
		if served > redialMost {
			wait = redialFirst
		} else {
			cfg.Identity.server.forget()
		}
		cfg.Log.Warn("not connected to the server; sandboxes keep running", "server", cfg.Identity.server.String(), "error", err)
		// Nodes that have lost the same server do not come to the next one all at once.
		pause(ctx, wait/2+rand.N(wait))
		wait = min(2*wait, redialMost)
	}
	return nil
}

// drainLook is how often a node that stops asks how far its sandboxes have moved.
const drainLook = time.Second

// drain has the sandboxes moved to other nodes, for as long as that may take.
func (cfg *Config) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DrainOnExit)
	defer cancel()
	if cfg.Draining != nil {
		cfg.Draining()
	}
	cfg.Log.Info("the node stops; its sandboxes move to other nodes; another signal ends it at once, and those that are left run on here", "at_most", cfg.DrainOnExit)
	var told sandbox.NodeMove
	for ctx.Err() == nil {
		var m sandbox.NodeMove
		err := cfg.Identity.tell(ctx, "/v1/leave", &m)
		code := sandbox.CodeOf(err)
		switch {
		case code == sandbox.CodeUnsupported || code == sandbox.CodeNotFound || code == sandbox.CodeUnauthenticated:
			cfg.Log.Warn("sandboxes do not move", "error", err)
			return
		case err != nil:
			cfg.Log.Warn("ask the server to move the sandboxes", "error", err)
		case m.Left == 0:
			cfg.Log.Info("the sandboxes have moved", "moved", m.Moved, "stay", len(m.Stay))
			return
		case m.Left != told.Left || m.Waiting != told.Waiting:
			told = m
			cfg.Log.Info("sandboxes move", "moved", m.Moved, "left", m.Left, "waiting", m.Waiting)
		}
		pause(ctx, drainLook)
	}
	cfg.Log.Warn("not all sandboxes have moved in time; they keep running here", "left", told.Left)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// prepare makes the template host, so that the first sandbox does not wait for it. Who needs it
// meets the error, if there is one.
func (cfg *Config) prepare(ctx context.Context) {
	if _, _, err := cfg.Roots.Root(ctx, hostTemplate); err != nil && ctx.Err() == nil {
		cfg.Log.Warn("make the template of this machine's own programs", "error", err)
	}
}

// upkeep renews the certificate, and removes what nothing uses.
func (cfg *Config) upkeep(ctx context.Context, server *remote.Server) {
	renewed := time.Time{}
	for {
		if time.Since(renewed) >= renewEvery {
			if err := cfg.Identity.renew(ctx); err == nil {
				renewed = time.Now()
			} else if ctx.Err() == nil {
				cfg.Log.Warn("renew the node's certificate", "error", err)
			}
		}
		cfg.tidy(ctx, server)
		pause(ctx, tidyEvery)
		if ctx.Err() != nil {
			return
		}
	}
}

func (cfg *Config) tidy(ctx context.Context, server *remote.Server) {
	used, err := server.RootsInUse(ctx)
	if err == nil {
		_, err = cfg.Roots.Collect(used)
	}
	if err != nil && ctx.Err() == nil {
		cfg.Log.Warn("remove roots that nothing uses", "error", err)
	}
	aside, _ := os.ReadDir(cfg.AsideDir)
	for _, d := range aside {
		if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > remote.AsideAge {
			_ = os.RemoveAll(filepath.Join(cfg.AsideDir, d.Name()))
		}
	}
}
