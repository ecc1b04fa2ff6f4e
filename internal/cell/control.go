package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/machine/procfs"
)

// control returns the handler of the control protocol; [Client] documents the methods.
func (c *cell) control() http.Handler {
	mux := http.NewServeMux()
	handle(mux, "Prepare", c.prepareStandby)
	handleStream(mux, "Start", c.startSandbox)
	handleStream(mux, "Watch", c.watch)
	handle(mux, "Stop", c.stopSandbox)
	handle(mux, "Stats", c.stats)
	handle(mux, "Update", c.update)
	handleStream(mux, "Checkpoint", c.checkpoint)
	handle(mux, "SetNetwork", c.setNetwork)
	handle(mux, "Answer", c.answerQuestion)
	handle(mux, "Deleted", c.deleted)
	handle(mux, "Probe", c.probe)
	handle(mux, "Fence", c.setFence)
	return mux
}

var handlerOptions = connect.WithHandlerOptions(connect.WithCodec(jsonCodec{}), connect.WithReadMaxBytes(maxRequest))

func handle[Req, Res any](mux *http.ServeMux, method string, serve func(context.Context, *Req) (*Res, error)) {
	mux.Handle(procedure(method), connect.NewUnaryHandlerSimple(procedure(method), serve, handlerOptions))
}

func handleStream[Req, Res any](mux *http.ServeMux, method string, serve func(context.Context, *Req, func(*Res) error) error) {
	mux.Handle(procedure(method), connect.NewServerStreamHandler(procedure(method),
		func(ctx context.Context, req *connect.Request[Req], stream *connect.ServerStream[Res]) error {
			return serve(ctx, req.Msg, stream.Send)
		}, handlerOptions))
}

// inherited is a listener for the connection with which a cell is started.
type inherited chan net.Conn

func (l inherited) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l inherited) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (l inherited) Close() error {
	close(l)
	return nil
}

// endByPanic makes a panic end the cell, and with it the whole sandbox. net/http would
// recover and go on with a broken cell.
func endByPanic() {
	if p := recover(); p != nil {
		fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", p, debug.Stack())
		os.Exit(2)
	}
}

func (c *cell) prepareStandby(ctx context.Context, s *Standby) (*empty, error) {
	defer endByPanic()
	c.standby = *s
	err := errors.Join(c.setUpErr, logTo(filepath.Join(s.Dir, LogFile)))
	if err == nil {
		err = c.makeStandby(ctx)
	}
	if err != nil {
		return nil, c.fail(err)
	}
	return &empty{}, nil
}

func (c *cell) startSandbox(ctx context.Context, spec *Spec, send func(*Status) error) error {
	defer endByPanic()
	if c.sb == nil || !c.taken.CompareAndSwap(false, true) {
		return errEnding
	}
	c.spec = *spec
	c.log = c.log.With("sandbox", spec.ID)
	c.unenforced(spec.Unenforced...)
	// The engine that asks may go away; the next engine finds the cell.
	if err := c.begin(send); err != nil {
		return c.fail(err)
	}
	c.begun <- nil
	return c.watch(ctx, nil, send)
}

// fail tears down a sandbox that could not be started, and ends the cell. It returns the
// error for the caller.
func (c *cell) fail(err error) error {
	c.log.Error("cell failed", "error", err)
	c.destroy()
	told := c.startError(err)
	c.begun <- err
	return told
}

// startError classifies why a sandbox could not be started: the request is impossible
// (InvalidArgument; the message is for the sandbox's owner), the checkpoint is damaged
// (DataLoss), its memory was never written (Aborted), or the sandbox runs but its agent
// did not answer in time (DeadlineExceeded).
func (c *cell) startError(err error) error {
	code := connect.CodeInternal
	refused, isRefused := errors.AsType[refusal](err)
	switch {
	case isRefused:
		return connect.NewError(connect.CodeInvalidArgument, errors.New(string(refused)))
	case errors.Is(err, runsc.ErrUnwritten) || c.sb != nil && errors.Is(c.sb.Damage(), runsc.ErrUnwritten):
		return connect.NewError(connect.CodeAborted, runsc.ErrUnwritten)
	case c.sb != nil && c.sb.Damage() != nil:
		code = connect.CodeDataLoss
	case errors.Is(err, errSilent):
		code = connect.CodeDeadlineExceeded
	}
	text := err.Error()
	if e, ok := errors.AsType[*connect.Error](err); ok {
		text = e.Message()
	}
	return connect.NewError(code, errors.New(text))
}

func (c *cell) watch(ctx context.Context, _ *empty, send func(*Status) error) error {
	c.mu.Lock()
	c.watching++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watching--
	}()
	for {
		c.mu.Lock()
		status, changed := c.status, c.changed
		c.mu.Unlock()
		if c.gate != nil {
			status.Questions = c.gate.questions()
		}
		if err := send(&status); err != nil {
			return err
		}
		if status.Phase == PhaseStopped || status.Phase == PhaseFailed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watched reports whether a watcher has not received the latest status.
func (c *cell) watched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watching > 0
}

func (c *cell) setPhase(p Phase, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Phase, c.status.Reason = p, reason
	c.notifyLocked()
}

// notify sends the status to watchers again, for example when the gateway's questions have
// changed.
func (c *cell) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notifyLocked()
}

// notifyLocked is notify for callers that hold c.mu.
func (c *cell) notifyLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// unenforced adds to the limits that the status lists as not enforced.
func (c *cell) unenforced(what ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Unenforced = append(slices.Clip(c.status.Unenforced), what...) // a copy, because others read the old slice
}

func (c *cell) stopSandbox(ctx context.Context, req *stopRequest) (*stopped, error) {
	select {
	case c.stop <- req.Reason:
	default: // it is stopping already
	}
	select {
	case <-c.gone:
		return &stopped{Writing: c.needed.Load() > 0}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *cell) stats(context.Context, *empty) (*engine.Stats, error) {
	st, err := c.memoryStats()
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	st.UnloadedBytes = c.unloaded.Load()
	st.DiskBytes = c.sb.DiskBytes()
	in, out := c.net.Traffic()
	// Both counters grow while they are being read.
	st.NetRxBytes, st.NetTxBytes = max(0, int64(out)-int64(c.toAgent.Load())), max(0, int64(in)-int64(c.fromAgent.Load()))
	return st, nil
}

// memoryStats returns what the processes use. It counts gVisor's memory file once, as a
// whole: memory that was loaded but not touched is mapped by no process, and touched
// memory may be mapped by several processes.
func (c *cell) memoryStats() (*engine.Stats, error) {
	dirs, err := procfs.Processes()
	if err != nil {
		return nil, err
	}
	u := processStats(dirs)
	if file := c.sb.MemoryFileBytes(); file > 0 {
		u.MemoryBytes += file - u.shmem
		u.PrivateBytes = u.own + file
	}
	return &u.Stats, nil
}

func (c *cell) deleted(context.Context, *empty) (*deletedFiles, error) {
	res := &deletedFiles{Bytes: map[string]json.Number{}}
	if len(c.standby.Mounts) > 0 {
		sentry, _ := c.sb.PIDs()
		dir, err := procfs.Dir(sentry)
		if err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
		for target, n := range deletedBytes(dir, c.standby.Mounts) {
			res.Bytes[target] = json.Number(strconv.FormatInt(n, 10))
		}
	}
	return res, nil
}

func (c *cell) probe(ctx context.Context, _ *empty) (*empty, error) {
	release, err := c.exclusively(ctx)
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	go func() {
		defer release()
		answer <- c.sb.Probe()
	}()
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return &empty{}, nil
}

func (c *cell) update(ctx context.Context, l *Limits) (*unenforced, error) {
	res := &unenforced{}
	if l.VCPUs > 0 && c.standby.PinCPUs {
		if err := pinCPUs(c.cpus, l.VCPUs); err != nil {
			res.Unenforced = append(res.Unenforced, "the processor limit: "+err.Error())
		}
	}
	if l.MemoryBytes == 0 && l.MaxPIDs == 0 {
		return res, nil
	}
	req := &agentv1.ConfigureRequest{}
	if l.MemoryBytes > 0 {
		req.MemoryLimit = &l.MemoryBytes
	}
	if l.MaxPIDs > 0 {
		req.MaxPids = &l.MaxPIDs
	}
	// Code in the sandbox may have stopped the agent.
	conf, err := c.configure(ctx, updateTimeout, req)
	if err != nil {
		return nil, err
	}
	if l.MemoryBytes > 0 {
		c.memoryLimit.Store(l.MemoryBytes)
	}
	res.Unenforced = append(res.Unenforced, conf.Unenforced...)
	return res, nil
}
