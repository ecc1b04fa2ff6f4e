// Package agentclient calls the agent in a sandbox, with the types of package sandbox.
// All calls share one HTTP/2 connection, which is opened when it is first needed and
// again after it broke.
//
// The agent may be hostile: code in the sandbox may have replaced it. So every message is
// bounded and checked before it is passed on, calls to an agent that does not answer end,
// and a wrong answer can harm only the caller who asked.
package agentclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxMessage bounds one message from the agent, in bytes.
	maxMessage = 16 << 20
	// chunkBytes bounds the content of one message to the agent.
	chunkBytes = 256 << 10
	// callTimeout bounds calls that answer at once, fileTimeout those that may
	// walk or copy a tree.
	callTimeout = 30 * time.Second
	fileTimeout = 10 * time.Minute
	// grace is how long after the requested time the agent may end a stream.
	grace = 15 * time.Second
	// endWait bounds the wait for the end of a stream after its last event.
	endWait = time.Second
)

// Dial opens a byte stream to an agent.
type Dial func(ctx context.Context) (net.Conn, error)

// Client calls one agent. Its methods are safe for concurrent use; their errors
// are [sandbox.Error] values.
type Client struct {
	sandboxID string
	rpc       agentv1connect.AgentClient
	desktop   agentv1connect.DesktopClient
	transport *http.Transport
}

// New returns a client of the agent in the sandbox with this id. It connects
// when it is first used.
func New(sandboxID string, dial Dial) *Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		Protocols:              &protocols,
		MaxConnsPerHost:        1, // requests that come together must not each dial
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests:   true, // one connection, whatever the agent allows
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   30 * time.Second,
			MaxReadFrameSize:              chunkBytes + 64<<10,
			MaxReceiveBufferPerConnection: 8 << 20,
			MaxReceiveBufferPerStream:     2 << 20,
		},
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []connect.ClientOption{connect.WithReadMaxBytes(maxMessage), connect.WithAcceptCompression("gzip", nil, nil)}
	return &Client{
		sandboxID: sandboxID,
		transport: transport,
		rpc:       agentv1connect.NewAgentClient(client, "http://agent", options...),
		desktop:   agentv1connect.NewDesktopClient(client, "http://agent", options...),
	}
}

// Close closes the connection once no call uses it; cancel the calls' contexts
// to end them.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Health describes an agent.
type Health struct {
	Version   string
	StartedAt time.Time
}

// Health asks the agent whether it serves.
func (c *Client) Health(ctx context.Context) (Health, error) {
	resp, err := call(ctx, callTimeout, c.rpc.Health, &agentv1.HealthRequest{})
	if err != nil {
		return Health{}, err
	}
	return Health{Version: clean(resp.GetVersion(), 64), StartedAt: time.Unix(0, resp.GetStartedUnixNano())}, nil
}

// Configure sets what belongs to the sandbox rather than to its image, and returns
// messages about what the agent could not apply.
func (c *Client) Configure(ctx context.Context, req *agentv1.ConfigureRequest) (unenforced []string, err error) {
	resp, err := call(ctx, callTimeout, c.rpc.Configure, req)
	if err != nil {
		return nil, err
	}
	for _, u := range resp.GetUnenforced()[:min(16, len(resp.GetUnenforced()))] {
		unenforced = append(unenforced, clean(u, maxErrorText))
	}
	return unenforced, nil
}

// Stats is the usage of a sandbox, as seen from inside.
type Stats struct {
	Processes   int64
	RunningJobs int64
	DiskBytes   int64
	MemoryBytes int64
}

// Stats returns the usage of the sandbox.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	resp, err := call(ctx, callTimeout, c.rpc.Stats, &agentv1.StatsRequest{})
	if err != nil {
		return Stats{}, err
	}
	return Stats{
		Processes: max(0, resp.GetProcesses()), RunningJobs: max(0, resp.GetRunningJobs()),
		DiskBytes: max(0, resp.GetDiskUsed()), MemoryBytes: max(0, resp.GetMemoryUsed()),
	}, nil
}

// call makes a unary call that is abandoned after timeout.
func call[Req, Resp any](ctx context.Context, timeout time.Duration, f func(context.Context, *connect.Request[Req]) (*connect.Response[Resp], error), req *Req) (*Resp, error) {
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
	defer cancel()
	resp, err := f(limited, connect.NewRequest(req))
	if err != nil {
		return nil, mapError(limited, err)
	}
	return resp.Msg, nil
}

// errSilent is the cause of a context that ended because the agent did not
// answer in time.
var errSilent = errors.New("the agent does not answer")

// events passes the events of a stream to handle until that reports the last one or
// fails; handle's error is returned as it is. cancel is that of ctx.
func events[E any](ctx context.Context, cancel context.CancelFunc, s *connect.ServerStreamForClient[E], handle func(*E) (last bool, err error)) error {
	defer func() { _ = s.Close() }() // Err has reported its error
	done := false
	for s.Receive() {
		if done {
			return errProtocol("an event after the last one")
		}
		var err error
		if done, err = handle(s.Msg()); err != nil {
			return err
		}
		if done {
			// Reading the end of the stream, which comes next, leaves the connection usable.
			defer time.AfterFunc(endWait, cancel).Stop()
		}
	}
	if done {
		return nil
	}
	if err := s.Err(); err != nil {
		return mapError(ctx, err)
	}
	return errProtocol("a stream without a last event")
}

// translate checks and translates a list of at most limit elements.
func translate[W, T any](list []W, limit int, f func(W) (*T, error)) ([]T, error) {
	if len(list) > limit {
		return nil, errProtocol("a list that is too long")
	}
	all := make([]T, 0, len(list))
	for _, w := range list {
		one, err := f(w)
		if err != nil {
			return nil, err
		}
		all = append(all, *one)
	}
	return all, nil
}

// streamOf returns a stream's index, 0 for stdout and 1 for stderr, and its name.
func streamOf(s agentv1.Stream) (int, sandbox.Stream, error) {
	switch s {
	case agentv1.Stream_STREAM_STDOUT:
		return 0, sandbox.Stdout, nil
	case agentv1.Stream_STREAM_STDERR:
		return 1, sandbox.Stderr, nil
	}
	return 0, "", errProtocol("output of an unknown stream")
}

// errProtocol is the error for an answer that Cove's agent never gives.
func errProtocol(what string) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, errors.New(what), "the agent in the sandbox sent an answer that makes no sense; kill the sandbox and create a new one")
}
