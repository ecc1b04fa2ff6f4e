// Package memory is an engine for tests. It behaves like a real one, with a real agent in
// each instance, but isolates nothing: commands are processes of the host in a temporary
// working directory.
//
// Instances are in a [State], which outlives an [Engine] as cells outlive the daemon. A
// [Keeper] is an engine that can also save states, but only of files, since processes of
// the host cannot be copied: a restored instance has lost its memory and processes. Any
// step can be made to fail, before it is done, or after it, so that the caller does not
// learn that it was done.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agent"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// Step is a call of the engine's contract.
type Step string

// The steps.
const (
	StepAdmit     Step = "admit"
	StepCreate    Step = "create"
	StepOpen      Step = "open"
	StepList      Step = "list"
	StepEnd       Step = "end"
	StepDestroy   Step = "destroy"
	StepDial      Step = "dial"
	StepStats     Step = "stats"
	StepSetLimits Step = "set_limits"

	StepSetNetwork Step = "set_network"
	StepAnswer     Step = "answer"
	StepDialPort   Step = "dial_port"

	StepCheckpoint Step = "checkpoint"
	// StepCommit is the part of a checkpoint in which the caller records it. The state has
	// been written before, and the instance is ended afterwards.
	StepCommit           Step = "commit"
	StepCheckpoints      Step = "checkpoints"
	StepRemoveCheckpoint Step = "remove_checkpoint"
	StepSetAside         Step = "set_aside"
	StepBringBack        Step = "bring_back"
	StepChanges          Step = "changes"
)

// Steps lists all steps.
func Steps() []Step {
	return []Step{
		StepAdmit, StepCreate, StepOpen, StepList, StepEnd, StepDestroy, StepDial, StepStats, StepSetLimits, StepSetNetwork, StepAnswer, StepDialPort,
		StepCheckpoint, StepCommit, StepCheckpoints, StepRemoveCheckpoint, StepSetAside, StepBringBack, StepChanges,
	}
}

// When is the moment at which a trap runs.
type When string

// A trap that fails before a step prevents it. A trap that fails after it hides that the
// step was done, as if the reply were lost.
const (
	Before When = "before"
	After  When = "after"
)

// State is everything that outlives an engine. It is safe for concurrent use.
type State struct {
	dir string

	mu        sync.Mutex
	instances map[string]*instance                            // guarded by mu
	kept      map[string]*kept                                // guarded by mu; checkpoints by id
	warm      []engine.WarmSpec                               // argument of the last call; guarded by mu
	count     map[Step]int                                    // guarded by mu; calls so far
	traps     map[Step]map[When][]func(context.Context) error // guarded by mu
	engines   []*Engine                                       // guarded by mu
	leases    map[string]time.Duration                        // guarded by mu; by instance
	logs      map[string][]sandbox.NetworkEvent               // guarded by mu; network logs by sandbox
	logged    chan struct{}                                   // guarded by mu; closed at the next event
}

// NewState returns a state without instances. Their files will be in dir.
func NewState(dir string) *State {
	return &State{
		dir: dir, instances: map[string]*instance{}, kept: map[string]*kept{}, count: map[Step]int{},
		leases: map[string]time.Duration{},
		traps:  map[Step]map[When][]func(context.Context) error{},
	}
}

// Trap makes the next call of a step run f at the given moment. The call returns f's error.
func (s *State) Trap(step Step, when When, f func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.traps[step] == nil {
		s.traps[step] = map[When][]func(context.Context) error{}
	}
	s.traps[step][when] = append(s.traps[step][when], f)
}

// Fail makes the next call of a step fail with err.
func (s *State) Fail(step Step, when When, err error) {
	s.Trap(step, when, func(context.Context) error { return err })
}

// Calls returns how often a step was called.
func (s *State) Calls(step Step) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[step]
}

func (s *State) runTraps(ctx context.Context, step Step, when When) error {
	s.mu.Lock()
	set := s.traps[step][when]
	if len(set) == 0 {
		s.mu.Unlock()
		return nil
	}
	f := set[0]
	s.traps[step][when] = set[1:]
	s.mu.Unlock()
	return f(ctx)
}

// Kill makes an instance fail, as if its supervisor had been killed.
func (s *State) Kill(id, reason string) error {
	s.mu.Lock()
	i := s.instances[id]
	if i == nil || i.failed || i.ending {
		s.mu.Unlock()
		return fmt.Errorf("kill instance %s: %w", id, engine.ErrNotFound)
	}
	i.failed, i.reason = true, reason
	engines := slices.Clone(s.engines)
	s.mu.Unlock()
	err := i.end()
	for _, e := range engines {
		e.report(engine.Status{ID: id, Reason: reason})
	}
	return err
}

// IDs lists the instances that have not been destroyed, sorted.
func (s *State) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Spec returns the spec of an instance, with its current resources, host name, user and
// working directory.
func (s *State) Spec(id string) (engine.Spec, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	if i == nil {
		return engine.Spec{}, false
	}
	return i.spec, true
}

// Close ends all instances and removes all checkpoints.
func (s *State) Close() error {
	var errs []error
	for _, id := range s.IDs() {
		errs = append(errs, s.destroy(id))
	}
	for _, c := range s.Kept() {
		errs = append(errs, s.forget(c.ID))
	}
	return errors.Join(errs...)
}

// destroy forgets an instance when nothing is left of it, as cells do: until then it is in
// lists, and stays there after an error.
func (s *State) destroy(id string) error {
	s.mu.Lock()
	i := s.instances[id]
	s.mu.Unlock()
	if i == nil {
		return nil
	}
	if err := errors.Join(s.finish(i), removeAll(i.dir)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] == i {
		delete(s.instances, id)
	}
	return nil
}

// finish ends an instance because of a call, and then says that it has ended.
func (s *State) finish(i *instance) error {
	s.mu.Lock()
	i.ending = true
	s.mu.Unlock()
	err := i.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	i.failed, i.reason = true, "ended"
	return err
}

// removeAll removes a tree, including directories without permissions.
func removeAll(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// instance is one agent with its jobs.
type instance struct {
	state  *State
	id     string
	dir    string
	spec   engine.Spec // guarded by state.mu
	ending bool        // guarded by state.mu; a call ends it, so that its end is no failure
	failed bool        // guarded by state.mu
	reason string      // guarded by state.mu
	gate   gate        // guarded by state.mu

	agent    *agent.Agent
	listener *pipeListener
	cancel   context.CancelFunc
	served   chan error
	once     sync.Once
	endErr   error
}

// start makes an instance, and returns when its agent answers.
func (s *State) start(ctx context.Context, spec engine.Spec) (*instance, error) {
	gate, err := newGate(spec.Network)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, spec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make instance %s: %w", spec.ID, err)
	}
	if err := s.writeInitialFiles(dir, &spec); err != nil {
		return nil, errors.Join(err, removeAll(dir))
	}
	a, err := agent.New(agent.Config{Version: "memory"})
	if err != nil {
		return nil, errors.Join(err, removeAll(dir))
	}
	serving, cancel := context.WithCancel(context.Background())
	i := &instance{state: s, id: spec.ID, dir: dir, spec: spec, gate: gate, agent: a, listener: newPipeListener(), cancel: cancel, served: make(chan error, 1)}
	go func() { i.served <- i.serve(serving) }()
	c := agentclient.New(spec.ID, i.listener.Dial)
	defer c.Close()
	req := &agentv1.ConfigureRequest{Env: spec.Env, ReplaceEnv: true, Fresh: spec.Fresh}
	if f := spec.Fork; f != nil {
		req.Fork = &agentv1.Fork{Index: int32(f.Index), Count: int32(f.Count), SandboxId: f.SandboxID, ParentId: f.ParentID}
	}
	if _, err := c.Configure(ctx, req); err != nil {
		return nil, errors.Join(err, i.end(), removeAll(dir))
	}
	return i, nil
}

// end stops the agent and kills its jobs.
func (i *instance) end() error {
	i.once.Do(func() {
		i.cancel()
		i.endErr = errors.Join(<-i.served, i.agent.Close())
	})
	return i.endErr
}

// Engine implements [engine.Engine] over a State.
type Engine struct {
	state  *State
	mu     sync.Mutex
	notify func(engine.Status)                                                               // guarded by mu
	asked  func(string, []engine.Question)                                                   // guarded by mu
	peers  func(ctx context.Context, fromSandboxID, name string, port int) (net.Conn, error) // guarded by mu
}

var _ engine.Engine = (*Engine)(nil)

// New returns an engine over s.
func New(s *State) *Engine {
	e := &Engine{state: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engines = append(s.engines, e)
	return e
}

func (e *Engine) report(st engine.Status) {
	e.mu.Lock()
	f := e.notify
	e.mu.Unlock()
	if f != nil {
		f(st)
	}
}

// step runs one call and its traps.
func (e *Engine) step(ctx context.Context, step Step, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.state.mu.Lock()
	e.state.count[step]++
	e.state.mu.Unlock()
	if err := e.state.runTraps(ctx, step, Before); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return e.state.runTraps(ctx, step, After)
}

// Create implements [engine.Engine].
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	var i *instance
	err := e.step(ctx, StepCreate, func() (err error) {
		if i, err = e.state.start(ctx, spec); err != nil {
			return err
		}
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		e.state.instances[spec.ID] = i
		return nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if ctx.Err() != nil && i != nil {
		return nil, errors.Join(err, e.state.destroy(spec.ID))
	}
	if err != nil {
		return nil, err
	}
	return &handle{e, i}, nil
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, id string) (engine.Instance, error) {
	var i *instance
	err := e.step(ctx, StepOpen, func() error {
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		if i = e.state.instances[id]; i == nil || i.failed {
			return engine.ErrNotFound
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &handle{e, i}, nil
}

// List implements [engine.Engine].
func (e *Engine) List(ctx context.Context) ([]engine.Status, error) {
	var all []engine.Status
	err := e.step(ctx, StepList, func() error {
		e.state.mu.Lock()
		defer e.state.mu.Unlock()
		for id, i := range e.state.instances {
			all = append(all, engine.Status{ID: id, Running: !i.failed, Reason: i.reason, Label: i.spec.Label})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// End implements [engine.Ender].
func (e *Engine) End(ctx context.Context, id string) error {
	return e.step(ctx, StepEnd, func() error {
		e.state.mu.Lock()
		i := e.state.instances[id]
		e.state.mu.Unlock()
		if i == nil {
			return nil
		}
		return e.state.finish(i)
	})
}

// Destroy implements [engine.Engine].
func (e *Engine) Destroy(ctx context.Context, id string) error {
	return e.step(ctx, StepDestroy, func() error { return e.state.destroy(id) })
}

// Notify implements [engine.Engine].
func (e *Engine) Notify(failed func(engine.Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notify = failed
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.Notify(nil)
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	e.state.engines = slices.DeleteFunc(e.state.engines, func(o *Engine) bool { return o == e })
	return nil
}

// handle implements [engine.Instance].
type handle struct {
	e *Engine
	i *instance
}

func (h *handle) ID() string { return h.i.id }

func (h *handle) Dial(ctx context.Context) (conn net.Conn, err error) {
	err = h.e.step(ctx, StepDial, func() error {
		conn, err = h.i.listener.Dial(ctx)
		return err
	})
	if err != nil && conn != nil {
		err = errors.Join(err, conn.Close())
	}
	return conn, err
}

// Stats returns invented numbers, except for the size of the instance's files.
func (h *handle) Stats(ctx context.Context) (engine.Stats, error) {
	st := engine.Stats{CPUNanos: 1e6, MemoryBytes: 1 << 20, PrivateBytes: 1 << 19, NetRxBytes: 1, NetTxBytes: 2}
	err := h.e.step(ctx, StepStats, func() error {
		return filepath.WalkDir(h.i.dir, func(_ string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
				st.DiskBytes += fi.Size()
			}
			return nil
		})
	})
	if err != nil {
		return engine.Stats{}, err
	}
	return st, nil
}

// SetLimits only records the limits, see [State.Spec].
func (h *handle) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	err := h.e.step(ctx, StepSetLimits, func() error {
		h.e.state.mu.Lock()
		defer h.e.state.mu.Unlock()
		res := &h.i.spec.Resources
		res.MemoryMiB = cmp.Or(r.MemoryMiB, res.MemoryMiB)
		res.DiskMiB = cmp.Or(r.DiskMiB, res.DiskMiB)
		res.MaxPIDs = cmp.Or(r.MaxPIDs, res.MaxPIDs)
		res.VCPUs = cmp.Or(r.VCPUs, res.VCPUs)
		return nil
	})
	return nil, err
}

// Unenforced describes the disk's limit, so that tests see how such texts reach callers.
func (h *handle) Unenforced() []string { return []string{"disk: the memory engine limits nothing"} }
