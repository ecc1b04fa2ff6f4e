package cell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/gateway/intercept"
	"github.com/cove-sh/cove/internal/gateway/netlog"
	"github.com/cove-sh/cove/sandbox"
)

// dnsPort is the only port on which the gateway listens.
const dnsPort = 53

// valuesTimeout is how long a start waits for the values of secrets.
const valuesTimeout = 20 * time.Second

// gateway handles the sandbox's packets.
type gateway struct {
	conf   GatewayConfig
	log    *slog.Logger
	eg     *egress.Gateway
	values *values
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// asked receives an element when the open questions have changed.
	asked chan struct{}

	// events is the network log of the sandbox that this cell has become.
	events atomic.Pointer[netlog.Writer]

	mu      sync.Mutex
	network engine.Network // guarded by mu
	// swaps puts secrets and headers into requests; nil until there are some. Guarded by mu.
	swaps *intercept.Interceptor
}

// newGateway makes the gateway and connects the sandbox's stack to it. The gateway
// refuses everything until set is called. It calls asked after the open questions have
// changed.
func newGateway(conf GatewayConfig, stack *netstack.Stack, log *slog.Logger, asked func()) (*gateway, error) {
	g := &gateway{conf: conf, log: log, values: newValues(), asked: make(chan struct{}, 1)}
	var err error
	g.eg, err = egress.New(egress.Config{
		GatewayAddr: netstack.GatewayAddr,
		Resolvers:   conf.Resolvers,
		Proxy:       conf.Proxy,
		Record:      g.record,
		Peers:       peers{g, make(chan struct{}, maxPeerConns)},
		Asked:       g.questionsChanged,
		Logger:      log,
	})
	if err != nil {
		return nil, fmt.Errorf("make the gateway: %w", err)
	}
	dns, err := stack.ListenUDP(dnsPort)
	if err != nil {
		g.eg.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.wg.Go(func() {
		defer dns.Close()
		if err := g.eg.ServeDNS(ctx, dns); err != nil && ctx.Err() == nil {
			log.Error("answer names", "error", err)
		}
	})
	g.wg.Go(func() { g.notifyOfQuestions(ctx, asked) })
	stack.SetHandler(egressHandler{ctx, g.eg})
	return g, nil
}

// egressHandler is the [netstack.Handler] that passes the sandbox's traffic to the egress
// gateway.
type egressHandler struct {
	ctx context.Context // ends with the sandbox
	eg  *egress.Gateway
}

func (o egressHandler) TCP(r netstack.Request) { o.eg.HandleTCP(o.ctx, egress.Request(r)) }

func (o egressHandler) UDP(r netstack.Request) { o.eg.HandleUDP(o.ctx, egress.Request(r)) }

func (o egressHandler) Ping(to netip.Addr, payload []byte) bool {
	return o.eg.Ping(o.ctx, to, payload) == nil
}

// record writes an event to the log.
func (g *gateway) record(ev sandbox.NetworkEvent) {
	if w := g.events.Load(); w != nil {
		w.Record(ev)
	}
}

// set replaces the gateway's configuration. If it fails, nothing changes.
func (g *gateway) set(n engine.Network) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := egress.Check(n.Policy); err != nil {
		return err
	}
	before := g.events.Load()
	if n.SandboxID != g.network.SandboxID {
		w, err := netlog.NewWriter(netlog.WriterConfig{Dir: filepath.Join(g.conf.LogDir, n.SandboxID), Logger: g.log})
		if err != nil {
			return fmt.Errorf("open the network log: %w", err)
		}
		g.events.Store(w)
	}
	swaps, err := g.interceptor(&n)
	if err == nil {
		err = g.eg.Set(egress.Network{SandboxID: n.SandboxID, Policy: n.Policy, Interceptor: swaps, Answers: answersOf(n.Answers)})
	}
	stale := before
	if err != nil {
		stale = g.events.Swap(before)
	}
	if stale != nil && stale != g.events.Load() {
		g.closeLog(stale)
	}
	if err != nil {
		return err
	}
	g.network = n
	g.values.keep(func(placeholder string) bool {
		return slices.ContainsFunc(n.Bindings, func(b engine.Binding) bool { return b.Placeholder == placeholder && !b.Revoked })
	})
	return nil
}

// interceptor returns the interceptor that puts secrets and headers into requests, or nil
// if there are none.
//
// Preconditions: g.mu is held.
func (g *gateway) interceptor(n *engine.Network) (egress.Interceptor, error) {
	if !n.Intercepts() {
		if g.swaps == nil {
			return nil, nil
		}
		return nil, g.swaps.Set(n, nil)
	}
	if g.swaps == nil {
		issuer := g.values.certifier()
		if issuer == nil {
			return nil, errors.New("no certificate authority was delivered")
		}
		var err error
		g.swaps, err = intercept.New(intercept.Config{Issuer: issuer, ExtraCA: []byte(g.conf.ExtraCA), Logger: g.log})
		if err != nil {
			return nil, err
		}
	}
	return g.swaps, g.swaps.Set(n, g.values.each)
}

func (g *gateway) closeLog(w *netlog.Writer) {
	if err := w.Close(); err != nil {
		g.log.Warn("close the network log", "error", err)
	}
}

// close ends all connections.
func (g *gateway) close() {
	g.cancel()
	g.eg.Close()
	g.wg.Wait()
	if w := g.events.Swap(nil); w != nil {
		g.closeLog(w)
	}
	g.mu.Lock()
	if g.swaps != nil {
		_ = g.swaps.Close() // its connections are closed
	}
	g.mu.Unlock()
	g.values.keep(func(string) bool { return false })
}

// openGateway configures the gateway as the specification says, before any program of the
// sandbox runs. It announces that the values of secrets are expected, and waits for them.
func (c *cell) openGateway(send func(*Status) error) error {
	var err error
	if c.gate, err = newGateway(c.spec.Gateway, c.net, c.log, c.notify); err != nil {
		return err
	}
	if c.secrets, err = Listen(c.spec.Dir, secretsSocket); err != nil {
		return err
	}
	c.gate.wg.Go(func() { c.gate.values.receive(c.secrets, c.log) })
	if c.spec.AwaitValues {
		_ = send(&Status{Phase: PhaseStarting}) // without a watcher, no values are delivered
		select {
		case <-c.gate.values.came:
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(valuesTimeout):
			return errors.New("the values of the sandbox's secrets were not delivered")
		}
	}
	if c.spec.Network == nil {
		return nil
	}
	return c.gate.set(*c.spec.Network)
}

func (c *cell) setNetwork(ctx context.Context, n *engine.Network) (*empty, error) {
	// The gateway is in force whether or not the sandbox trusts it: code in the sandbox may
	// have stopped the agent.
	stranger := c.trustGateway(ctx, n)
	if err := c.gate.set(*n); err != nil {
		if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Code == sandbox.CodeInvalid {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New(e.Message))
		}
		return nil, err
	}
	if stranger != nil {
		return nil, stranger
	}
	return &empty{}, nil
}

// maxPeerConns limits the connections to other sandboxes. Each uses file descriptors of
// the daemon, which all sandboxes share.
const maxPeerConns = 512

// peers connects to other sandboxes through the daemon, which decides whether the
// connection is allowed.
type peers struct {
	g *gateway
	// open is a semaphore with a slot for each connection.
	open chan struct{}
}

func (p peers) Dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	select {
	case p.open <- struct{}{}:
	default:
		return nil, fmt.Errorf("the sandbox has %d connections to others already", cap(p.open))
	}
	p.g.mu.Lock()
	from := p.g.network.SandboxID
	p.g.mu.Unlock()
	conn, err := DialStream(ctx, p.g.conf.PeersDir, PeersSocket, StreamRequest{Sandbox: from, Name: name, Port: int(port)})
	if err != nil {
		<-p.open
		return nil, err
	}
	return &peerConn{Conn: conn, gone: sync.OnceFunc(func() { <-p.open })}, nil
}

// peerConn releases its slot when it is closed.
type peerConn struct {
	net.Conn
	gone func()
}

func (c *peerConn) Close() error {
	defer c.gone()
	return c.Conn.Close()
}

// CloseWrite closes the sending direction.
func (c *peerConn) CloseWrite() error { return closeWrite(c.Conn) }
