package cell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Client calls a cell. Errors that the cell returns are a [connect.Error] for which
// [connect.IsWireError] is true; other errors come from the connection.
type Client struct {
	// Dir is the current path of the cell's directory.
	Dir string

	protocol  int
	inherited chan net.Conn // holds the connection until its first use
	transport *http.Transport
	legacy    *legacyStart // only for a new cell of a protocol below 2
}

// NewClient returns a client for a cell whose program has the given [Protocol]. inherited
// is the connection with which the cell was started, or nil.
func NewClient(dir string, protocol int, inherited net.Conn) *Client {
	c := &Client{Dir: dir, protocol: protocol, inherited: make(chan net.Conn, 1)}
	switch {
	case inherited == nil:
	case protocol < 2:
		c.legacy = newLegacyStart(inherited)
	default:
		c.inherited <- inherited
	}
	c.transport = &http.Transport{DialContext: c.dial, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}
	return c
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case conn := <-c.inherited:
		return conn, nil
	default:
		return Dial(ctx, c.Dir, ControlSocket)
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// method returns a client for one method.
func method[Req, Res any](c *Client, name string) *connect.Client[Req, Res] {
	return connect.NewClient[Req, Res](&http.Client{Transport: c.transport}, "http://cell"+procedure(name),
		connect.WithCodec(jsonCodec{}), connect.WithReadMaxBytes(maxAnswer), connect.WithAcceptCompression("gzip", nil, nil))
}

// call calls a method that has a single answer.
func call[Res, Req any](ctx context.Context, c *Client, name string, req *Req) (*Res, error) {
	res, err := method[Req, Res](c, name).CallUnary(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// Prepare makes the cell a standby, and returns when it is ready.
func (c *Client) Prepare(ctx context.Context, s *Standby) error {
	if c.legacy != nil {
		return c.legacy.prepare(ctx, s)
	}
	_, err := call[empty](ctx, c, "Prepare", s)
	return err
}

// Statuses is the stream of a cell's statuses, until ctx or the cell ends.
type Statuses struct {
	stream *connect.ServerStreamForClient[Status]
}

// Next waits for the next status. An error means that the cell is gone.
func (s Statuses) Next() (Status, error) {
	if !s.stream.Receive() {
		return Status{}, cmp.Or(s.stream.Err(), io.ErrUnexpectedEOF)
	}
	return *s.stream.Msg(), nil
}

// Start turns a standby into a sandbox. The returned status says that the sandbox runs
// and its agent has answered. With [Spec.AwaitValues], Start calls deliver when the cell
// expects the values of secrets; see [SendValues].
func (c *Client) Start(ctx context.Context, s *Spec, deliver func() error) (Statuses, Status, error) {
	if c.legacy != nil {
		if err := c.legacy.start(ctx, s, deliver); err != nil {
			return Statuses{}, Status{}, err
		}
		return c.Watch(ctx)
	}
	all, first, err := statuses(ctx, c, "Start", s)
	if err == nil && s.AwaitValues && first.Phase == PhaseStarting {
		if err = deliver(); err == nil {
			first, err = all.Next()
		}
	}
	if err == nil && first.Phase == PhaseStarting { // only a compromised cell does this
		err = errors.New("the cell does not say that its sandbox runs")
	}
	return all, first, err
}

// Watch returns the status of a running cell, and the stream of its changes.
func (c *Client) Watch(ctx context.Context) (Statuses, Status, error) {
	return statuses(ctx, c, "Watch", &empty{})
}

func statuses[Req any](ctx context.Context, c *Client, name string, req *Req) (all Statuses, first Status, err error) {
	if all.stream, err = method[Req, Status](c, name).CallServerStream(ctx, connect.NewRequest(req)); err == nil {
		first, err = all.Next()
	}
	return all, first, err
}

// Stop ends the sandbox and then the cell. It returns when the sandbox's processes are
// gone. If writing is true, the cell ends later, after it has written a checkpoint from
// which others continue; see [CheckpointRequest.Early].
func (c *Client) Stop(ctx context.Context, reason string) (writing bool, err error) {
	res, err := call[stopped](ctx, c, "Stop", &stopRequest{reason})
	if err != nil {
		return false, err
	}
	return res.Writing, nil
}

// Stats returns what the sandbox uses.
func (c *Client) Stats(ctx context.Context) (*engine.Stats, error) {
	return call[engine.Stats](ctx, c, "Stats", &empty{})
}

// Update changes limits of the running sandbox. It returns descriptions of those that
// this machine cannot enforce.
func (c *Client) Update(ctx context.Context, l Limits) ([]string, error) {
	res, err := call[unenforced](ctx, c, "Update", &l)
	if err != nil {
		return nil, err
	}
	return res.Unenforced, nil
}

// Checkpoint writes a checkpoint and returns how long the sandbox was paused. With
// [CheckpointRequest.Hold] the sandbox stays paused until ctx ends. With
// [CheckpointRequest.GoOn], memory may still be missing when Checkpoint returns: the
// checkpoint is complete once rest has returned nil. The caller must call rest, which
// ends when ctx does.
func (c *Client) Checkpoint(ctx context.Context, req CheckpointRequest) (paused time.Duration, rest func() error, err error) {
	stream, err := method[CheckpointRequest, checkpointWritten](c, "Checkpoint").CallServerStream(ctx, connect.NewRequest(&req))
	if err != nil {
		return 0, nil, err
	}
	next := func() error {
		if !stream.Receive() {
			return cmp.Or(stream.Err(), io.ErrUnexpectedEOF)
		}
		return nil
	}
	if err := next(); err != nil {
		return 0, nil, err
	}
	first := *stream.Msg()
	return time.Duration(first.StoppedNanos), func() error {
		if !first.More {
			return nil
		}
		return next()
	}, nil
}

// SetNetwork replaces the gateway's configuration. Before it returns, existing
// connections are judged again. For a cell that cannot set headers, it refuses header
// rules with an unsupported error. The values of new bindings must have been delivered
// before; see [SendValues]. The values of removed bindings are wiped.
func (c *Client) SetNetwork(ctx context.Context, n *engine.Network) error {
	if c.protocol < 3 && len(n.Headers) > 0 {
		return sandbox.Errorf(sandbox.CodeUnsupported, "the sandbox runs in an older version of cove, which cannot set headers; restart it from its files only (files_only), or leave headers out")
	}
	if c.protocol >= 2 {
		_, err := call[empty](ctx, c, "SetNetwork", n)
		return err
	}
	data, err := json.Marshal(n)
	if err == nil {
		_, err = call[empty](ctx, c, "SetNetwork", &networkOfProtocol1{data})
	}
	return err
}

// AnswerQuestion answers an open question of the gateway for the connections that wait on
// it. It returns [engine.ErrNoQuestion] if the question is not open.
func (c *Client) AnswerQuestion(ctx context.Context, id string, allow bool) error {
	_, err := call[empty](ctx, c, "Answer", &answerRequest{id, allow})
	if connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeNotFound {
		return engine.ErrNoQuestion
	}
	return err
}

// Deleted returns the size of deleted files that programs still hold open in mounted
// directories of the host, in bytes by mount target. It cannot be measured from outside
// the cell.
func (c *Client) Deleted(ctx context.Context) (map[string]int64, error) {
	res, err := call[deletedFiles](ctx, c, "Deleted", &empty{})
	if err != nil {
		return nil, err
	}
	sum := make(map[string]int64, len(res.Bytes))
	for target, n := range res.Bytes {
		if sum[target], err = n.Int64(); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// Probe returns nil if gVisor's kernel answers, whatever runs in the sandbox. It fails
// while the sandbox is being saved.
func (c *Client) Probe(ctx context.Context) error {
	_, err := call[empty](ctx, c, "Probe", &empty{})
	return err
}

// Fence stops the sandbox from a given time on, on [BootTime]'s clock, unless a later call
// says a later time. Cells of older builds do not know it.
func (c *Client) Fence(ctx context.Context, until time.Duration) error {
	_, err := call[empty](ctx, c, "Fence", &fenceRequest{int64(until)})
	return err
}
