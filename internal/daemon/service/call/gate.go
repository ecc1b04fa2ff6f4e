// Package call does what every verb of the service needs: it checks who calls and
// whether they may, finds the sandbox that they mean, writes the audit record, and
// keeps the service open until the verb is done.
package call

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/audit"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// Config says what a [Gate] works with.
type Config struct {
	Store store.Store
	Audit *audit.Recorder
	Log   *slog.Logger
	// Observe is called when a recorded verb has ended.
	Observe func(action string, began time.Time, err error)
}

// Gate lets calls and background work begin until it is closed. It is safe for
// concurrent use.
type Gate struct {
	cfg Config

	// ctx ends when the gate is closed; wg counts the background work.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	drained  *sync.Cond // calls has become 0; its lock is mu
	closed   bool       // guarded by mu
	calls    int        // guarded by mu; under way
	lastCall time.Time  // guarded by mu; when one last began or ended
}

// NewGate returns an open gate.
func NewGate(cfg Config) *Gate {
	g := &Gate{cfg: cfg, lastCall: time.Now()}
	g.drained = sync.NewCond(&g.mu)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Close refuses new calls, cancels those under way and waits for them. Background work
// may continue; see [Gate.Wait].
func (g *Gate) Close() {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for g.calls > 0 {
		g.drained.Wait()
	}
}

// Wait returns when all work in the background has ended, after [Gate.Close].
func (g *Gate) Wait() { g.wg.Wait() }

// Context ends when the gate is closed.
func (g *Gate) Context() context.Context { return g.ctx }

// Go runs f in the background, or reports false if the gate is closed.
func (g *Gate) Go(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(f)
	return true
}

// Begin counts a call under way, for which Close waits, until the result is
// called. It fails when the gate is closed.
func (g *Gate) Begin() (done func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the server is shutting down; try again in a moment")
	}
	g.calls++
	g.lastCall = time.Now()
	return g.end, nil
}

func (g *Gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls--
	g.lastCall = time.Now()
	if g.calls == 0 {
		g.drained.Broadcast()
	}
}

// Calls returns how many calls are under way, and when one last began or ended.
func (g *Gate) Calls() (n int, last time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls, g.lastCall
}

// Anonymous begins a call of somebody who needs no API key. Leave ends it, and makes
// its error public.
func (g *Gate) Anonymous(ctx context.Context, action string) (_ context.Context, leave func(*error), err error) {
	done, err := g.Begin()
	if err != nil {
		return ctx, func(*error) {}, err
	}
	ctx, cancel := g.cancelled(ctx)
	return ctx, func(err *error) {
		*err = g.Public(*err, action)
		cancel()
		done()
	}, nil
}

// cancelled returns a context that also ends when the gate is closed.
func (g *Gate) cancelled(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// System records what Cove itself did to a sandbox.
func (g *Gate) System(r *store.Record, action, detail string) {
	g.cfg.Audit.Record(sandbox.AuditEvent{
		Time: time.Now().UTC(), Team: r.Team, KeyID: "system", Action: action, SandboxID: r.ID, Detail: detail,
	})
}
