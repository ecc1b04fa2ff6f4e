package cells

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Reasons of failures, for the sandbox's owner.
const (
	reasonGone   = "its supervisor exited unexpectedly"
	reasonMemory = "it ran out of memory"
	reasonPIDs   = "it used more processes and threads than the machine grants it"
)

// instance is a running cell.
type instance struct {
	engine  *Engine
	id      string
	dir     string
	control *cell.Client
	group   *cgroup.Group // nil without cgroups
	release func()        // ends the watch

	unenforced []string
}

// attach watches a running cell. open opens the stream of its status, which lasts as long
// as open's context. exited, if not nil, is closed when the cell's process has been
// waited for.
func (e *Engine) attach(ctx context.Context, id string, control *cell.Client, exited <-chan struct{},
	open func(context.Context) (cell.Statuses, cell.Status, error),
) (*instance, error) {
	watchCtx, release := context.WithCancel(e.ctx)
	stop := context.AfterFunc(ctx, release)
	statuses, first, err := open(watchCtx)
	if !stop() {
		err = cmp.Or(err, context.Cause(ctx))
	}
	if err != nil {
		release()
		control.Close()
		return nil, err
	}
	inst := &instance{engine: e, id: id, dir: control.Dir, control: control, release: release, unenforced: first.Unenforced}
	if group, err := cgroup.Open(groupName(inst.dir)); err == nil {
		inst.group = group
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if other, ok := e.live[id]; ok {
		release()
		return other, nil
	}
	e.live[id] = inst
	e.wg.Go(func() { e.follow(watchCtx, inst, statuses, first, exited) })
	return inst, nil
}

// follow watches a cell until its end, and reports the end unless it was requested.
func (e *Engine) follow(ctx context.Context, inst *instance, statuses cell.Statuses, st cell.Status, exited <-chan struct{}) {
	defer inst.control.Close()
	reason := reasonGone
	stopped := false
	tell := e.questionsOf(inst.id)
	defer tell(nil)
	for err := error(nil); err == nil; st, err = statuses.Next() {
		tell(st.Questions)
		switch st.Phase {
		case cell.PhaseStopped:
			stopped = true
		case cell.PhaseFailed:
			reason = st.Reason
		}
	}
	if ctx.Err() != nil {
		return // the engine is closed, or the instance is being destroyed
	}
	e.mu.Lock()
	delete(e.live, inst.id)
	failed := e.failed
	e.mu.Unlock()
	e.admissions.ended(inst.id)
	inst.release()
	if stopped {
		return
	}
	reason = explain(inst.group, reason)
	tail := e.logTail(inst.id)
	_ = waitForExit(e.ctx, inst.dir, exited)
	failed(engine.Status{ID: inst.id, Reason: reason, Log: tail})
}

// reasonOfEnd returns why a cell that was not stopped has ended.
func (e *Engine) reasonOfEnd(id string) string {
	group, err := cgroup.Open(groupName(e.cellDir(id)))
	if err != nil {
		return reasonGone
	}
	return explain(group, reasonGone)
}

// explain returns a better reason if the counters of the cgroup, if there is one, show
// it.
func explain(group *cgroup.Group, reason string) string {
	if group == nil {
		return reason
	}
	st, err := group.Stats()
	switch {
	case err != nil:
	case st.OOMKills > 0:
		return reasonMemory
	case st.PIDDenials > 0:
		return reasonPIDs
	}
	return reason
}

// controlTimeout limits calls to a cell. It is longer than a cell waits for the agent,
// which code in the sandbox may have stopped.
const controlTimeout = 15 * time.Second

func (i *instance) ID() string { return i.id }

func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return cell.Dial(ctx, i.dir, cell.AgentSocket)
}

func (i *instance) Stats(ctx context.Context) (engine.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	st, err := i.control.Stats(ctx)
	if err != nil {
		return engine.Stats{}, fmt.Errorf("ask cell for statistics: %w", err)
	}
	st.UnloadedBytes = i.believed(st.UnloadedBytes)
	i.engine.setLeft(i, st.UnloadedBytes)
	return *st, nil
}

// believed bounds the amount that the cell reports as not loaded yet, for which memory of
// the machine is kept free: the cell may report anything.
func (i *instance) believed(unloaded int64) int64 {
	if unloaded <= 0 {
		return 0
	}
	from, err := readOrigin(i.dir)
	if err != nil {
		return 0 // it is ending
	}
	return min(unloaded, from.Resources.MemoryMiB<<20)
}

// DeletedBytes reports nothing for a cell of an older build, which does not support it.
func (i *instance) DeletedBytes(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	bytes, err := i.control.Deleted(ctx)
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask cell for deleted files: %w", err)
	}
	return bytes, nil
}

func (i *instance) Probe(ctx context.Context) error { return i.control.Probe(ctx) }

func (i *instance) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	unenforced, err := i.control.Update(ctx, cell.Limits{MemoryBytes: r.MemoryMiB << 20, VCPUs: r.VCPUs, MaxPIDs: r.MaxPIDs})
	switch {
	case err == nil:
	case !connect.IsWireError(err), connect.CodeOf(err) == connect.CodeDeadlineExceeded, connect.CodeOf(err) == connect.CodeUnavailable:
		// The cell or its agent has ended, hangs, or is about to end.
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "the agent in the sandbox does not answer; try again, or kill the sandbox and create a new one")
	default:
		return nil, fmt.Errorf("change limits: %w", err)
	}
	// The agent's limits change first: if the memory limit is lowered below what is in use,
	// the agent frees memory. Otherwise the kernel would refuse the limit, or end the
	// sandbox.
	if err := i.limitGroup(ctx, groupLimits(r)); err != nil {
		return nil, err
	}
	return unenforced, nil
}

// limitGroup changes the cgroup's limits, as soon as the memory in use allows it.
func (i *instance) limitGroup(ctx context.Context, l cgroup.Limits) error {
	if i.group == nil {
		return nil
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := i.group.Update(l)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("change cgroup limits: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return sandbox.Wrap(sandbox.CodeConflict, err, "the sandbox uses more memory than that; end some of its programs and try again")
		}
	}
}

func (i *instance) Unenforced() []string { return slices.Clone(i.unenforced) }
