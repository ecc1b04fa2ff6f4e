// Package cells runs sandboxes on this machine, each under a cell: a separate process
// (see package cell) that outlives the daemon.
//
// A sandbox's directory contains everything that is known about its processes: a lock
// that its cell holds while it lives, sockets and logs. A new engine over the same
// directory therefore finds the sandboxes of an earlier one, however that one ended.
package cells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
	"github.com/cove-sh/cove/internal/gateway/intercept"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures an [Engine].
type Config struct {
	// Dir is the engine's directory; it is created if needed.
	Dir string
	// Agent is the agent's binary.
	Agent []byte
	// AgentDigest identifies Agent.
	AgentDigest string
	// Executable is the cove binary; if empty, the running one.
	Executable string
	// UserIDs is how many user and group ids, starting at FirstUserID, are for sandboxes,
	// each of which uses [cell.IDsPerSandbox]. If it is 0, gVisor's processes run as this
	// process's user. Only root can use it.
	FirstUserID, UserIDs int64
	// Network configures how gateways connect to the outside.
	Network Network
	Log     *slog.Logger
}

// Engine implements [engine.Engine]. Only one process at a time may use a directory.
type Engine struct {
	cfg     Config
	cgroups cgroup.Support
	// program is the path of the program that cells run.
	program string
	// starts limits how many sandboxes start at once: more would only make each start
	// slower.
	starts *semaphore.Weighted

	admissions *admissions

	wg     sync.WaitGroup
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	failed func(engine.Status)                             // guarded by mu
	asked  func(instanceID string, open []engine.Question) // guarded by mu
	live   map[string]*instance                            // guarded by mu
	spare  *process                                        // a cell started before it is needed, or nil; guarded by mu
	pools  pools                                           // guarded by mu
	// spareFaults delays the next spare after spares that have ended. Guarded by mu.
	spareFaults faults
	// resting is set while no standbys are needed. Guarded by mu.
	resting bool
	// copying are the programs being copied. Guarded by mu.
	copying map[string]bool
	// writing counts the checkpoints by instance that others continue from, and that cells
	// have not completed. Guarded by mu.
	writing map[string]int
	// sums are the SHA-256 sums of programs by their names. Guarded by mu.
	sums map[string]string
	// busy counts creations and checkpoints in progress; lastBusy is when the last one
	// ended. Both are guarded by mu.
	busy     int
	lastBusy time.Time
	// restock wakes stockLoop; its capacity is one.
	restock chan struct{}

	// peers connects sandboxes with others, or is nil; guarded by mu.
	peers     func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error)
	authority *intercept.Authority
	// peerListener accepts connections of cells to other sandboxes.
	peerListener net.Listener

	checkpoints checkpoint.Dir
	// partials are the checkpoints that are being fetched, or are to be. Guarded by mu.
	partials map[string]*partial
	// cpu returns the features of this machine's processor.
	cpu func() []string
}

var _ engine.Engine = (*Engine)(nil)

// validID matches ids, which are names of directories and cgroups.
var validID = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)

// New returns an engine over a directory. It starts nothing.
func New(cfg Config) (*Engine, error) {
	if cfg.Executable == "" {
		cfg.Executable = "/proc/self/exe"
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		cfg:        cfg,
		cgroups:    cgroup.Available(),
		admissions: newAdmissions(),
		starts:     semaphore.NewWeighted(int64(max(2, runtime.NumCPU()))),
		ctx:        ctx, cancel: cancel,
		failed: func(engine.Status) {},
		asked:  func(string, []engine.Question) {},
		live:   make(map[string]*instance),
		pools:  make(pools), copying: make(map[string]bool), sums: make(map[string]string), writing: make(map[string]int),
		partials: make(map[string]*partial),
		restock:  make(chan struct{}, 1),
		cpu:      sync.OnceValue(runsc.CPUFeatures),
	}
	err = e.removeStandbys()
	if err == nil {
		e.checkpoints, err = checkpoint.Open(filepath.Join(dir, "checkpoints"))
	}
	if err == nil {
		err = e.findPartials()
	}
	if err == nil {
		err = e.install()
	}
	if err == nil {
		e.authority, err = intercept.LoadAuthority(dir)
	}
	if err == nil {
		err = os.MkdirAll(e.netlogDir(), 0o700)
	}
	if err == nil {
		e.peerListener, err = cell.Listen(dir, cell.PeersSocket)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	e.wg.Go(e.stockLoop)
	e.wg.Go(func() { e.connectPeers(e.peerListener) })
	return e, nil
}

func (e *Engine) cellsDir() string         { return filepath.Join(e.cfg.Dir, "cells") }
func (e *Engine) agentDir() string         { return filepath.Join(e.cfg.Dir, "agent", e.cfg.AgentDigest) }
func (e *Engine) cellDir(id string) string { return filepath.Join(e.cellsDir(), id) }

// Notify implements [engine.Engine].
func (e *Engine) Notify(failed func(engine.Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = failed
}

// Create implements [engine.Engine].
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	if !validID.MatchString(spec.ID) {
		return nil, fmt.Errorf("invalid instance id %q", spec.ID)
	}
	if err := checkNetwork(spec.Network); err != nil {
		return nil, err
	}
	defer e.occupied()()
	if _, err := os.Lstat(e.cellDir(spec.ID)); err == nil {
		return nil, fmt.Errorf("instance %s: %w", spec.ID, os.ErrExist)
	}
	if err := e.admit(&spec); err != nil {
		return nil, err
	}
	inst, err := e.createAdmitted(ctx, spec)
	if err != nil {
		e.admissions.ended(spec.ID)
		return nil, err
	}
	e.admissions.started(spec.ID, inst.memoryInUse)
	return inst, nil
}

// createAdmitted makes an instance for which memory is reserved.
func (e *Engine) createAdmitted(ctx context.Context, spec engine.Spec) (*instance, error) {
	if err := e.starts.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer e.starts.Release(1)
	inst, err := e.start(ctx, spec)
	if err != nil {
		err = e.explainStart(err, "")
		detail := e.logTail(spec.ID)
		if derr := e.Destroy(context.WithoutCancel(ctx), spec.ID); derr != nil {
			err = errors.Join(err, derr)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e.cfg.Log.Error("create sandbox", "sandbox", spec.ID, "error", detailed(err), "log", detail)
		return nil, err
	}
	return inst, nil
}

// start makes the instance from a warm or blank standby.
func (e *Engine) start(ctx context.Context, spec engine.Spec) (*instance, error) {
	if spec.Checkpoint != "" {
		return e.restore(ctx, spec)
	}
	want := e.blankSpec(spec.Root, spec.Resources)
	want.Mounts = spec.Mounts
	sb := e.take(want)
	if sb == nil {
		var err error
		if sb, err = e.startStandby(want); err != nil {
			return nil, err
		}
	}
	return e.finish(ctx, sb, spec, "")
}

// detailed adds the cause to an error whose text for callers does not contain it.
func detailed(err error) error {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Unwrap() != nil {
		return fmt.Errorf("%s: %w", e.Message, e.Unwrap())
	}
	return err
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, id string) (engine.Instance, error) {
	if !validID.MatchString(id) {
		return nil, engine.ErrNotFound
	}
	e.mu.Lock()
	inst, ok := e.live[id]
	e.mu.Unlock()
	if ok {
		return inst, nil
	}
	if !e.alive(id) {
		return nil, engine.ErrNotFound
	}
	dir := e.cellDir(id)
	from, err := readOrigin(dir)
	if err != nil {
		if !e.alive(id) { // removed meanwhile
			err = errors.Join(err, engine.ErrNotFound)
		}
		return nil, err
	}
	control := cell.NewClient(dir, from.Cell, nil)
	inst, err = e.attach(ctx, id, control, nil, control.Watch)
	switch {
	case err == nil:
		// Only the engine that made the instance knows what is left to load.
		e.wg.Go(func() { _, _ = inst.Stats(e.ctx) })
		return inst, nil
	case ctx.Err() != nil || e.ctx.Err() != nil || !e.ends(ctx, id): // the cell may still be alive
		return nil, fmt.Errorf("watch cell: %w", err)
	}
	return nil, fmt.Errorf("watch cell: %w", errors.Join(err, engine.ErrNotFound))
}

// endTimeout is how long a cell may take to end after it has closed its sockets.
const endTimeout = 2 * time.Second

// ends reports whether a cell that does not answer has ended, or ends within endTimeout.
func (e *Engine) ends(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for e.alive(id) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// List implements [engine.Engine].
func (e *Engine) List(context.Context) ([]engine.Status, error) {
	entries, err := os.ReadDir(e.cellsDir())
	if err != nil {
		return nil, fmt.Errorf("list cells: %w", err)
	}
	var list []engine.Status
	for _, entry := range entries {
		id := entry.Name()
		if !entry.IsDir() || !validID.MatchString(id) {
			continue
		}
		st := engine.Status{ID: id, Running: e.alive(id)}
		if st.Running {
			if st.Label, err = e.labelOf(id); err != nil {
				return nil, fmt.Errorf("list cells: %w", err)
			}
		} else {
			st.Reason = e.reasonOfEnd(id)
		}
		list = append(list, st)
	}
	return list, nil
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.cancel()
	e.peerListener.Close()
	e.mu.Lock()
	for _, inst := range e.live {
		inst.release()
	}
	clear(e.live)
	if e.spare != nil {
		e.spare.dismiss()
		e.spare = nil
	}
	for key := range e.pools {
		e.dropPool(key)
	}
	e.mu.Unlock()
	e.wg.Wait()
	return nil
}
