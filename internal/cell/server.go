package cell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/cove-sh/cove/internal/wire/agentv1"
	"github.com/cove-sh/cove/internal/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/internal/wire/cellv1"
	"github.com/cove-sh/cove/internal/wire/cellv1/cellv1connect"
)

// updateTimeout bounds the wait for the agent to take on other limits.
const updateTimeout = 10 * time.Second

// tellTimeout bounds the wait until who watches has been told the last status.
const tellTimeout = 5 * time.Second

// server is the cell's sockets.
type server struct {
	c       *cell
	http    *http.Server
	streams []net.Listener
	wg      sync.WaitGroup
}

func (c *cell) serve() (_ *server, err error) {
	s := &server{c: c}
	listen := func(name string) (l net.Listener) {
		if err == nil {
			if l, err = Listen(c.spec.Dir, name); err == nil {
				s.streams = append(s.streams, l)
			}
		}
		return l
	}
	relay, changes, ports, control := listen(AgentSocket), listen(ChangesSocket), listen(PortsSocket), listen(ControlSocket)
	if err != nil {
		for _, l := range s.streams {
			l.Close()
		}
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(cellv1connect.NewCellHandler(c))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{Handler: mux, Protocols: protocols}
	s.wg.Go(func() { _ = s.http.Serve(control) })
	s.wg.Go(func() { c.relayAll(relay) })
	s.wg.Go(func() { c.tellChanges(changes) })
	s.wg.Go(func() { c.openPorts(ports) })
	return s, nil
}

// close lets the last status reach those who watch, and stops serving.
func (s *server) close() {
	for end := time.Now().Add(tellTimeout); s.c.watched() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.http.Shutdown(ctx)
	s.http.Close()
	for _, l := range s.streams {
		l.Close()
	}
	s.wg.Wait()
}

// watched reports whether somebody has yet to be told the last status.
func (c *cell) watched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watching > 0
}

// Watch implements the Cell protocol.
func (c *cell) Watch(ctx context.Context, _ *connect.Request[cellv1.WatchRequest], stream *connect.ServerStream[cellv1.Status]) error {
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
		status, changed := proto.CloneOf(c.status), c.changed
		c.mu.Unlock()
		if err := stream.Send(status); err != nil {
			return err
		}
		if status.Phase == cellv1.Phase_PHASE_STOPPED || status.Phase == cellv1.Phase_PHASE_FAILED {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop implements the Cell protocol.
func (c *cell) Stop(ctx context.Context, req *connect.Request[cellv1.StopRequest]) (*connect.Response[cellv1.StopResponse], error) {
	select {
	case c.stop <- req.Msg.Reason:
	default: // it is stopping already
	}
	select {
	case <-c.gone:
		return connect.NewResponse(&cellv1.StopResponse{}), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Stats implements the Cell protocol.
func (c *cell) Stats(ctx context.Context, _ *connect.Request[cellv1.StatsRequest]) (*connect.Response[cellv1.StatsResponse], error) {
	st, err := processStats("/proc")
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	sentry, _ := c.sb.PIDs()
	st.DiskBytes = writtenBytes("/proc", sentry)
	in, out := c.net.Traffic()
	// Both sides are read while they grow.
	st.NetRxBytes, st.NetTxBytes = max(0, int64(out)-int64(c.toAgent.Load())), max(0, int64(in)-int64(c.fromAgent.Load()))
	return connect.NewResponse(st), nil
}

// Deleted implements the Cell protocol.
func (c *cell) Deleted(context.Context, *connect.Request[cellv1.DeletedRequest]) (*connect.Response[cellv1.DeletedResponse], error) {
	res := &cellv1.DeletedResponse{}
	if len(c.shell.Mounts) > 0 {
		sentry, _ := c.sb.PIDs()
		res.Bytes = deletedBytes("/proc", sentry, c.shell.Mounts)
	}
	return connect.NewResponse(res), nil
}

// Probe implements the Cell protocol.
func (c *cell) Probe(ctx context.Context, _ *connect.Request[cellv1.ProbeRequest]) (*connect.Response[cellv1.ProbeResponse], error) {
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
	return connect.NewResponse(&cellv1.ProbeResponse{}), nil
}

// Update implements the Cell protocol.
func (c *cell) Update(ctx context.Context, req *connect.Request[cellv1.UpdateRequest]) (*connect.Response[cellv1.UpdateResponse], error) {
	res := &cellv1.UpdateResponse{}
	if req.Msg.Vcpus != nil && c.shell.PinCPUs {
		if err := pinCPUs(c.cpus, int(*req.Msg.Vcpus)); err != nil {
			res.Unenforced = append(res.Unenforced, "the processor limit: "+err.Error())
		}
	}
	if req.Msg.MemoryBytes != nil || req.Msg.MaxPids != nil {
		// Code in the sandbox may have stopped the agent.
		ctx, cancel := context.WithTimeout(ctx, updateTimeout)
		defer cancel()
		client, closeClient := newAgentClient(c.dialAgent)
		defer closeClient()
		conf, err := client.Configure(ctx, connect.NewRequest(&agentv1.ConfigureRequest{MemoryLimit: req.Msg.MemoryBytes, MaxPids: req.Msg.MaxPids}))
		if err != nil {
			return nil, fmt.Errorf("configure the agent: %w", err)
		}
		res.Unenforced = append(res.Unenforced, conf.Msg.Unenforced...)
	}
	return connect.NewResponse(res), nil
}

// newAgentClient returns a client of the agent, which is not trusted: what it
// may answer is bounded.
func newAgentClient(dial func(context.Context) (net.Conn, error)) (agentv1connect.AgentClient, func()) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	client := agentv1connect.NewAgentClient(&http.Client{Transport: tr}, "http://agent", connect.WithReadMaxBytes(1<<20))
	return client, tr.CloseIdleConnections
}

func (c *cell) dialAgent(ctx context.Context) (net.Conn, error) {
	conn, err := c.net.Dial(ctx, AgentPort)
	if err != nil {
		return nil, err
	}
	return &agentConn{Conn: conn, c: c}, nil
}

// agentConn counts what is said with the agent, which is not the sandbox's
// traffic.
type agentConn struct {
	net.Conn
	c *cell
}

func (a *agentConn) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	a.c.fromAgent.Add(uint64(max(0, n)))
	return n, err
}

func (a *agentConn) Write(p []byte) (int, error) {
	n, err := a.Conn.Write(p)
	a.c.toAgent.Add(uint64(max(0, n)))
	return n, err
}

// CloseWrite ends this side's stream.
func (a *agentConn) CloseWrite() error {
	if half, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// dialAgentPatiently dials an agent that may not listen yet.
func (c *cell) dialAgentPatiently(ctx context.Context) (net.Conn, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		conn, err := c.dialAgent(attempt)
		cancel()
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent does not answer: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// awaitAgent waits until the agent answers.
func (c *cell) awaitAgent(ctx context.Context) error {
	ctx, cancel := c.whileItRuns(ctx, agentTimeout)
	defer cancel()
	client, closeClient := newAgentClient(c.dialAgentPatiently)
	defer closeClient()
	if _, err := client.Health(ctx, connect.NewRequest(&agentv1.HealthRequest{})); err != nil {
		return c.notGreeted(err)
	}
	return nil
}

// whileItRuns returns a context that ends with gVisor too.
func (c *cell) whileItRuns(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	go func() {
		select {
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// relayAll joins each connection to the socket with one to the agent.
func (c *cell) relayAll(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer conn.Close()
			ctx, cancel := c.whileItRuns(context.Background(), 10*time.Second)
			inside, err := c.dialAgent(ctx)
			cancel()
			if err != nil {
				c.log.Warn("dial agent", "err", err)
				return
			}
			defer inside.Close()
			join(conn, inside)
		})
	}
}

// join copies both ways until both directions have ended.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, err := io.CopyBuffer(writerOnly{p[0]}, readerOnly{p[1]}, make([]byte, 64<<10))
			half, ok := p[0].(interface{ CloseWrite() error })
			if err != nil || !ok || errors.Is(half.CloseWrite(), net.ErrClosed) {
				a.Close()
				b.Close()
			}
		})
	}
	wg.Wait()
}

// The two hide ReadFrom and WriteTo, whose buffers are smaller than ours.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
