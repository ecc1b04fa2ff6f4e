package cell

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
)

// AgentPort is the port on which the agent listens inside the sandbox.
const AgentPort = 7007

const (
	// agentTimeout is how long the cell waits for the agent's first answer.
	agentTimeout = 20 * time.Second
	// updateTimeout is how long the cell waits for the agent to apply new settings.
	updateTimeout = 10 * time.Second
)

// errSilent means that the agent did not answer within [agentTimeout].
var errSilent = errors.New("the agent does not answer")

// refusal is the reason why the agent or the cell refuses a request.
type refusal string

func (r refusal) Error() string { return string(r) }

// agentClient calls the agent. The agent is not trusted, so its answers are bounded.
type agentClient struct {
	agentv1connect.AgentClient
	transport *http.Transport
}

func (c *cell) newAgentClient() agentClient {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c.configured.Load() {
				return c.dialAgent(ctx) // the agent has listened before, or code in the sandbox has ended it
			}
			return c.dialAgentRetrying(ctx)
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return agentClient{agentv1connect.NewAgentClient(&http.Client{Transport: tr}, "http://agent", connect.WithReadMaxBytes(1<<20)), tr}
}

// awaitAgent waits until the agent answers. [cell.configure] reuses its connection.
func (c *cell) awaitAgent(ctx context.Context) error {
	ctx, cancel := c.untilEnded(ctx, agentTimeout)
	defer cancel()
	if _, err := c.agent.Health(ctx, connect.NewRequest(&agentv1.HealthRequest{})); err != nil {
		return c.agentError(err)
	}
	return nil
}

// configure sends settings to the agent. It retries while the agent does not listen yet.
func (c *cell) configure(ctx context.Context, limit time.Duration, req *agentv1.ConfigureRequest) (*agentv1.ConfigureResponse, error) {
	ctx, cancel := c.untilEnded(ctx, limit)
	defer cancel()
	// A checkpoint must not contain the connection.
	defer c.agent.transport.CloseIdleConnections()
	res, err := c.agent.Configure(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, c.agentError(err)
	}
	return res.Msg, nil
}

// agentError returns why the agent did not apply its settings.
func (c *cell) agentError(err error) error {
	if e, ok := errors.AsType[*connect.Error](err); ok && e.Code() == connect.CodeInvalidArgument {
		return connect.NewError(connect.CodeInvalidArgument, refusal(e.Message()))
	}
	select {
	case <-c.ended:
		return connect.NewError(connect.CodeUnavailable, errors.New(c.why))
	default:
		if connect.CodeOf(err) == connect.CodeDeadlineExceeded {
			err = errors.Join(errSilent, err)
		}
		return fmt.Errorf("configure the agent: %w", err)
	}
}

// configureAgent tells the agent which sandbox it is in.
func (c *cell) configureAgent(ctx context.Context) error {
	s := &c.spec
	memory := s.Resources.MemoryMiB << 20
	req := &agentv1.ConfigureRequest{
		Authority: c.authority(s.Network),
		Hostname:  &s.Hostname, Env: s.Env, ReplaceEnv: true, User: &s.User, Workdir: &s.WorkDir,
		MemoryLimit: &memory, MaxPids: &s.Resources.MaxPIDs,
		Fresh: s.Fresh,
	}
	if s.Fresh { // later, the sandbox may have changed it
		req.Nameserver = new(netstack.GatewayAddr.String())
	}
	if f := s.Fork; f != nil {
		req.Fork = &agentv1.Fork{Index: int32(f.Index), Count: int32(f.Count), SandboxId: f.SandboxID, ParentId: f.ParentID}
	}
	limit := agentTimeout
	if s.RestoreFrom != "" {
		limit *= 2 // the memory is being loaded at the same time
	}
	res, err := c.configure(ctx, limit, req)
	if err != nil {
		return err
	}
	c.configured.Store(true)
	c.memoryLimit.Store(memory)
	c.trusted.Store(req.Authority != nil)
	c.unenforced(res.Unenforced...)
	return nil
}

// authority returns the certificate that the sandbox must trust: the gateway's
// certificate authority, if the sandbox has secrets or header rules.
func (c *cell) authority(n *engine.Network) *string {
	if n == nil || !n.Intercepts() || c.spec.Gateway.Authority == "" {
		return nil
	}
	return &c.spec.Gateway.Authority
}

// trustGateway makes the sandbox trust the gateway, if it must and does not yet.
func (c *cell) trustGateway(ctx context.Context, n *engine.Network) error {
	authority := c.authority(n)
	if authority == nil || c.trusted.Load() {
		return nil
	}
	if _, err := c.configure(ctx, updateTimeout, &agentv1.ConfigureRequest{Authority: authority}); err != nil {
		return fmt.Errorf("make the sandbox trust its gateway: %w", err)
	}
	c.trusted.Store(true)
	return nil
}

func (c *cell) dialAgent(ctx context.Context) (net.Conn, error) {
	conn, err := c.net.Dial(ctx, AgentPort)
	if err != nil {
		return nil, err
	}
	return &agentConn{Conn: conn, c: c}, nil
}

// dialAgentRetrying dials the agent, and retries while it does not listen yet.
func (c *cell) dialAgentRetrying(ctx context.Context) (net.Conn, error) {
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

// agentConn counts the bytes exchanged with the agent. They are not part of the sandbox's
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

// CloseWrite closes the sending direction.
func (a *agentConn) CloseWrite() error { return closeWrite(a.Conn) }

// untilEnded returns a context that also ends when gVisor ends.
func (c *cell) untilEnded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
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
