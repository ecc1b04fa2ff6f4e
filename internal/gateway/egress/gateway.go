package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cove-sh/cove/sandbox"
)

// Config configures a [Gateway]. Only GatewayAddr is required.
type Config struct {
	// GatewayAddr is the gateway's address on the sandbox's link. Its resolver listens
	// there.
	GatewayAddr netip.Addr
	// IPv6 reports whether the sandbox has an IPv6 route; if not, AAAA queries get empty
	// answers.
	IPv6 bool
	// Resolvers are the DNS servers to ask; if empty, those of the host's /etc/resolv.conf.
	Resolvers []netip.AddrPort
	// Proxy is the host's proxy, if the host does not connect directly.
	Proxy Proxy
	// Record receives each event. It must not block, and is called concurrently. If nil,
	// events are dropped.
	Record func(sandbox.NetworkEvent)
	// Peers connects to other sandboxes; if nil, all of them are refused.
	Peers Peers
	// HostAddrs returns the host's own addresses, which count as internal; if nil, the
	// system is asked. It is called again every few seconds of use.
	HostAddrs func() []netip.Addr
	// Dialer dials addresses of the network ("tcp", "udp"), never names; if nil, a
	// [net.Dialer].
	Dialer Dialer
	// Asked is called when the open questions of [Gateway.Questions] have changed. It must
	// not block, and is called concurrently. If nil, approvals are not possible, and
	// attempts that need one are refused.
	Asked func()
	// Logger receives the gateway's own errors; if nil, they are dropped.
	Logger *slog.Logger
}

// Dialer opens outgoing connections.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Network describes the sandbox that a gateway serves, and the rules that apply to it.
type Network struct {
	// SandboxID is the id in events.
	SandboxID string
	Policy    sandbox.NetworkPolicy
	// Interceptor, if not nil, gets all TLS and plain HTTP connections. It is set only
	// if the sandbox has secrets.
	Interceptor Interceptor
	// Answers are the answers in force. Of two answers about the same subject, the later
	// applies.
	Answers []Answer
}

// Request is the sandbox's attempt to open a TCP connection, or the first datagram of a
// UDP flow. Exactly one of Accept and Reject is called, once.
type Request struct {
	Source, Destination netip.AddrPort
	// Accept accepts it. A TCP connection should have CloseWrite, and SetLinger, where 0
	// makes Close reset the connection.
	Accept func() (net.Conn, error)
	// Reject refuses it: TCP by a reset, UDP by an ICMP port unreachable message.
	Reject func()
}

// Gateway judges and carries the traffic of one sandbox. It is safe for
// concurrent use.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	internal *InternalAddrs
	names    *resolver
	asker    *asker
	out      *hostDialer
	// speakWait overrides the constant in tests.
	speakWait time.Duration
	// state is what Set has set; nil before.
	state atomic.Pointer[state]
	// serial numbers connections.
	serial atomic.Int64
	// dnsConns counts connections to the resolver.
	dnsConns atomic.Int32

	// setMu serialises Set.
	setMu sync.Mutex

	mu     sync.Mutex
	flows  map[*flow]struct{} // guarded by mu
	udp    int                // flows of UDP, guarded by mu
	closed bool               // guarded by mu
	wg     sync.WaitGroup     // of flows

	floodMu sync.Mutex
	flood   map[string]int       // refusals since the last event, by limit; guarded by floodMu
	flooded map[string]time.Time // time of the last event, by limit; guarded by floodMu
}

// state is the configuration in force; it is immutable.
type state struct {
	sandboxID   string
	policy      *Policy
	interceptor Interceptor
	most        int // connections
	perSecond   *rate.Limiter
	out, in     *rate.Limiter // bytes; nil means no limit
	answers     map[Subject]Answer
	askFor      time.Duration // how long a question is open
	// over is closed when a newer state is in force.
	over chan struct{}
}

// maxUDPFlows limits UDP flows, whose buffers are as large as a datagram can be.
const maxUDPFlows = 512

// serialEpoch is the time from which connection numbers count, so that the numbers of a
// sandbox's next gateway are higher.
var serialEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// New makes a gateway that refuses everything until [Gateway.Set] is called.
func New(cfg Config) (*Gateway, error) {
	if !cfg.GatewayAddr.IsValid() {
		return nil, errors.New("egress: no gateway address")
	}
	cfg.GatewayAddr = plain(cfg.GatewayAddr)
	if cfg.Record == nil {
		cfg.Record = func(sandbox.NetworkEvent) {}
	}
	if cfg.Dialer == nil {
		cfg.Dialer = &net.Dialer{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, log: cfg.Logger, internal: NewInternalAddrs(cfg.HostAddrs), speakWait: speakWait, flows: map[*flow]struct{}{},
		flood: map[string]int{}, flooded: map[string]time.Time{}}
	g.serial.Store(time.Since(serialEpoch).Milliseconds() * 1000)
	var err error
	if g.out, err = newHostDialer(cfg.Dialer, cfg.Proxy); err != nil {
		return nil, err
	}
	g.names = newResolver(g)
	g.asker = newAsker(cfg.Asked)
	return g, nil
}

// Set replaces the policy, the limits and the interceptor. Before it returns, it judges
// existing connections again and closes those that are refused now. An invalid policy
// is an invalid error and changes nothing.
func (g *Gateway) Set(n Network) error {
	p, err := compile(n.Policy, g.internal)
	if err != nil {
		return err
	}
	s := &state{sandboxID: n.SandboxID, policy: p, interceptor: n.Interceptor, most: n.Policy.MaxConnections,
		answers: map[Subject]Answer{}, over: make(chan struct{}),
		askFor: time.Duration(cmp.Or(n.Policy.AskTimeoutSeconds, sandbox.DefaultAskTimeoutSeconds)) * time.Second}
	for _, a := range n.Answers {
		s.answers[a.Subject] = a
	}
	if s.most == 0 {
		s.most = sandbox.DefaultMaxConnections
	}
	perSecond := n.Policy.ConnectionsPerSecond
	if perSecond == 0 {
		perSecond = sandbox.DefaultConnectionsPerSecond
	}
	s.perSecond = rate.NewLimiter(rate.Limit(perSecond), perSecond)
	s.out, s.in = byteLimiter(n.Policy.BytesPerSecond), byteLimiter(n.Policy.BytesPerSecond)

	g.setMu.Lock()
	defer g.setMu.Unlock()
	if old := g.state.Load(); old != nil && old.perSecond.Burst() == perSecond {
		s.perSecond = old.perSecond // a change of the rules grants no new allowance
	}
	old := g.state.Swap(s)
	if old != nil {
		close(old.over) // connections that wait for an answer judge again
	}
	for _, f := range g.allFlows() {
		f.rejudge(s)
	}
	return nil
}

func (g *Gateway) allFlows() []*flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.flows))
}

// Close ends all connections and waits for them.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for _, f := range g.allFlows() {
		f.close()
	}
	g.wg.Wait()
}

// record completes an event and passes it on.
func (g *Gateway) record(e sandbox.NetworkEvent) {
	if s := g.state.Load(); s != nil && e.SandboxID == "" {
		e.SandboxID = s.sandboxID
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	g.cfg.Record(e)
}

// limited records that a limit refused something: at most once a second, with the
// number of refusals, so that a flood does not push other events out of the log.
func (g *Gateway) limited(rule string, e sandbox.NetworkEvent) {
	g.floodMu.Lock()
	g.flood[rule]++
	n := g.flood[rule]
	if time.Since(g.flooded[rule]) < time.Second {
		g.floodMu.Unlock()
		return
	}
	g.flood[rule], g.flooded[rule] = 0, time.Now()
	g.floodMu.Unlock()
	e.Verdict, e.Match, e.Rule, e.Reason = sandbox.NetworkBlocked, sandbox.MatchLimit, rule, "the sandbox is at its "+rule
	if n > 1 {
		e.Reason += fmt.Sprintf("; with this, %d were refused that are not recorded one by one", n)
	}
	g.record(e)
}

// begin creates a flow. If a limit refuses it, begin records that and returns nil.
func (g *Gateway) begin(ctx context.Context, proto string, to netip.AddrPort) *flow {
	s := g.state.Load()
	if s == nil {
		return nil
	}
	refuse := func(rule string) *flow {
		g.limited(rule, sandbox.NetworkEvent{Kind: sandbox.NetworkConnection, Connection: g.serial.Add(1), Protocol: proto,
			Address: to.Addr().String(), Port: int(to.Port())})
		return nil
	}
	if !s.perSecond.Allow() {
		return refuse("connections_per_second")
	}
	f := newFlow(ctx, g, proto, to)
	g.mu.Lock()
	full := len(g.flows) >= s.most || proto == "udp" && g.udp >= maxUDPFlows
	closed := g.closed
	if !full && !closed {
		g.flows[f] = struct{}{}
		if proto == "udp" {
			g.udp++
		}
		g.wg.Add(1)
	}
	g.mu.Unlock()
	switch {
	case closed:
		f.cancel()
		return nil
	case full:
		f.cancel()
		return refuse("max_connections")
	}
	return f
}

// remove removes an ended flow.
func (g *Gateway) remove(f *flow) {
	g.mu.Lock()
	delete(g.flows, f)
	if f.proto == "udp" {
		g.udp--
	}
	g.mu.Unlock()
	g.wg.Done()
}
