package cells

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cgroup"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/wire/cellv1"
	"github.com/cove-sh/cove/internal/wire/cellv1/cellv1connect"
	"github.com/cove-sh/cove/sandbox"
)

// Reasons of failure, for the sandbox's owner.
const (
	reasonGone   = "its supervisor ended unexpectedly"
	reasonMemory = "it ran out of memory"
	reasonPIDs   = "it used more processes and threads than the machine grants it"
)

// instance is a running cell.
type instance struct {
	engine    *Engine
	id        string
	dir       string
	transport *http.Transport
	control   cellv1connect.CellClient
	group     *cgroup.Group // nil where there are no cgroups
	release   func()        // ends the watch

	mu         sync.Mutex
	unenforced []string // guarded by mu
}

// attach connects to a living cell and watches it. Exited, if not nil, is
// closed when the cell's process has been waited for.
func (e *Engine) attach(ctx context.Context, id string, exited <-chan struct{}) (*instance, error) {
	dir := e.cellDir(id)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return cell.Dial(ctx, dir, cell.ControlSocket)
	}}
	inst := &instance{
		engine: e, id: id, dir: dir, transport: tr,
		control: cellv1connect.NewCellClient(&http.Client{Transport: tr}, "http://cell"),
	}
	if group, err := cgroup.Open(groupName(dir)); err == nil {
		inst.group = group
	}
	watchCtx, cancel := context.WithCancel(e.ctx)
	inst.release = cancel
	stream, status, err := inst.watch(ctx, watchCtx)
	if err != nil {
		cancel()
		tr.CloseIdleConnections()
		return nil, err
	}
	inst.unenforced = status.Unenforced

	e.mu.Lock()
	defer e.mu.Unlock()
	if other, ok := e.live[id]; ok {
		cancel()
		return other, nil
	}
	e.live[id] = inst
	e.wg.Go(func() { e.follow(watchCtx, inst, stream, exited) })
	return inst, nil
}

// watch opens the stream of the cell's status, which lasts as long as
// watchCtx, and returns the first one.
func (i *instance) watch(ctx, watchCtx context.Context) (*connect.ServerStreamForClient[cellv1.Status], *cellv1.Status, error) {
	streamCtx, abort := context.WithCancel(watchCtx)
	stop := context.AfterFunc(ctx, abort)
	defer stop()
	stream, err := i.control.Watch(streamCtx, connect.NewRequest(&cellv1.WatchRequest{}))
	if err != nil {
		abort()
		return nil, nil, fmt.Errorf("watch cell: %w", err)
	}
	if !stream.Receive() {
		abort()
		return nil, nil, fmt.Errorf("watch cell: %w", errors.Join(stream.Err(), engine.ErrNotFound))
	}
	return stream, stream.Msg(), nil
}

// follow watches a cell to its end and reports it if nobody asked for that.
func (e *Engine) follow(ctx context.Context, inst *instance, stream *connect.ServerStreamForClient[cellv1.Status], exited <-chan struct{}) {
	defer inst.transport.CloseIdleConnections()
	reason := reasonGone
	stopped := false
	for stream.Receive() {
		switch st := stream.Msg(); st.Phase {
		case cellv1.Phase_PHASE_STOPPED:
			stopped = true
		case cellv1.Phase_PHASE_FAILED:
			reason = st.Reason
		}
	}
	stream.Close()
	if ctx.Err() != nil {
		return // the engine lets go, or the instance is being destroyed
	}
	e.mu.Lock()
	delete(e.live, inst.id)
	failed := e.failed
	e.mu.Unlock()
	inst.release()
	if stopped {
		return
	}
	reason = explain(inst.group, reason)
	words := e.lastWords(inst.id)
	_ = waitForExit(e.ctx, inst.dir, exited)
	failed(engine.Status{ID: inst.id, Reason: reason, Log: words})
}

// deathOf says why a cell that has ended by itself did so.
func (e *Engine) deathOf(id string) string {
	group, err := cgroup.Open(groupName(e.cellDir(id)))
	if err != nil {
		return reasonGone
	}
	return explain(group, reasonGone)
}

// explain looks for a better reason in what the cgroup, if not nil, has counted.
func explain(group *cgroup.Group, reason string) string {
	if group == nil {
		return reason
	}
	st, err := group.Stats()
	switch {
	case err != nil:
		return reason
	case st.OOMKills > 0:
		return reasonMemory
	case st.PIDDenials > 0:
		return reasonPIDs
	}
	return reason
}

// controlTimeout bounds calls to a cell. It is longer than a cell waits for the
// agent, which code in the sandbox may have stopped.
const controlTimeout = 15 * time.Second

// ID implements [engine.Instance].
func (i *instance) ID() string { return i.id }

// Dial implements [engine.Instance].
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	return cell.Dial(ctx, i.dir, cell.AgentSocket)
}

// Stats implements [engine.Instance].
func (i *instance) Stats(ctx context.Context) (engine.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	res, err := i.control.Stats(ctx, connect.NewRequest(&cellv1.StatsRequest{}))
	if err != nil {
		return engine.Stats{}, fmt.Errorf("ask cell for its use: %w", err)
	}
	m := res.Msg
	return engine.Stats{
		CPUNanos: m.CpuNanos, MemoryBytes: m.MemoryBytes, PrivateBytes: m.PrivateBytes,
		DiskBytes: m.DiskBytes, NetRxBytes: m.NetRxBytes, NetTxBytes: m.NetTxBytes,
	}, nil
}

// DeletedBytes implements [engine.DeletedMeter]. A cell of an older build that
// cannot tell has none.
func (i *instance) DeletedBytes(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	res, err := i.control.Deleted(ctx, connect.NewRequest(&cellv1.DeletedRequest{}))
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask cell for deleted files: %w", err)
	}
	return res.Msg.Bytes, nil
}

// Probe implements [engine.Prober].
func (i *instance) Probe(ctx context.Context) error {
	_, err := i.control.Probe(ctx, connect.NewRequest(&cellv1.ProbeRequest{}))
	return err
}

// SetLimits implements [engine.Instance].
func (i *instance) SetLimits(ctx context.Context, r sandbox.Resources) ([]string, error) {
	req := &cellv1.UpdateRequest{}
	if r.MemoryMiB > 0 {
		bytes := r.MemoryMiB << 20
		req.MemoryBytes = &bytes
	}
	if r.VCPUs > 0 {
		n := int32(r.VCPUs)
		req.Vcpus = &n
	}
	if r.MaxPIDs > 0 {
		req.MaxPids = &r.MaxPIDs
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	res, err := i.control.Update(ctx, connect.NewRequest(req))
	switch {
	case err == nil:
	case !connect.IsWireError(err), connect.CodeOf(err) == connect.CodeDeadlineExceeded, connect.CodeOf(err) == connect.CodeUnavailable: // it has ended, hangs, or is about to end
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "the agent in the sandbox does not answer; try again, or kill the sandbox and create a new one")
	default:
		return nil, fmt.Errorf("change limits: %w", err)
	}
	// The agent is first: it makes room when the limit of memory is lowered
	// below what is in use, where the kernel would refuse, or end the sandbox.
	if err := i.limitGroup(ctx, groupLimits(r)); err != nil {
		return nil, err
	}
	return res.Msg.Unenforced, nil
}

// limitGroup changes the cgroup's limits as soon as the memory in use allows.
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

// Unenforced implements [engine.Instance].
func (i *instance) Unenforced() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.unenforced)
}
