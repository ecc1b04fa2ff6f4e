package egress

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// sniffWait limits the time until a connection's first bytes are complete.
	sniffWait = 10 * time.Second
	// speakWait is how long the gateway waits for the sandbox to speak first, where the
	// server may speak first.
	speakWait = 300 * time.Millisecond
	// maxTried is how many addresses of a name are tried.
	maxTried = 4
)

// httpPorts are the ports on which plain HTTP is expected. On these ports, the names
// pinned to the address do not admit malformed requests, since servers are lenient.
var httpPorts = []uint16{80, 8000, 8008, 8080, 8888}

// HandleTCP judges and carries one TCP connection, and returns when it ends. Accepting or
// rejecting the request may take a while, so each request needs its own goroutine.
func (g *Gateway) HandleTCP(ctx context.Context, r Request) {
	g.handle(ctx, r, "tcp", g.names.serveTCP, (*flow).tcp)
}

// handle carries one flow, or serves a flow to the gateway itself.
func (g *Gateway) handle(ctx context.Context, r Request, proto string, serve func(context.Context, net.Conn), carry func(*flow, Request)) {
	to := destination(r)
	if to.Addr() == g.cfg.GatewayAddr {
		g.toGateway(ctx, r, serve)
		return
	}
	f := g.begin(ctx, proto, to)
	if f == nil {
		r.Reject()
		return
	}
	defer f.end()
	stop := context.AfterFunc(f.ctx, f.close)
	defer stop()
	carry(f, r)
}

// tcp does one of four things: refuse, dial and copy, decide by name, or connect to
// another sandbox.
func (f *flow) tcp(r Request) {
	s := f.g.state.Load()
	if syntheticRange.Contains(f.to.Addr()) {
		f.tcpSynthetic(s, r)
		return
	}
	d, certain := s.policy.decided(Attempt{Protocol: "tcp", Addr: f.to.Addr(), Port: f.to.Port()})
	switch {
	case certain && !d.Allow && !d.Ask:
		f.refuse(d)
		r.Reject()
	case certain && s.interceptor == nil && f.g.out.plainProxy(f.to.Addr().String(), f.to.Port()) == nil:
		f.direct(r)
	default:
		f.byName(r)
	}
}

// direct dials before it accepts the sandbox's connection.
func (f *flow) direct(r Request) {
	remote, w, err := f.dialAddr(f.ctx)
	if err != nil {
		r.Reject()
		return
	}
	defer f.leave(w)
	guest, ok := f.accept(r)
	if !ok {
		return
	}
	// The name in the first bytes is for the log, and for judging the connection again
	// later.
	relay(guest, &watchedConn{Conn: remote, f: f, w: w}, nil)
}

// watchedConn examines the first bytes that are written to it.
type watchedConn struct {
	net.Conn
	f    *flow
	w    *outbound
	seen bool
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if !c.seen {
		c.seen = true
		if name := nameIn(p); name != "" {
			c.f.learn(c.w, name)
		}
	}
	return c.Conn.Write(p)
}

// CloseWrite closes the sending direction.
func (c *watchedConn) CloseWrite() error { return closeWrite(c.Conn) }

// SetLinger sets the behaviour of Close.
func (c *watchedConn) SetLinger(sec int) error {
	if l, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(sec)
	}
	return nil
}

// nameIn returns the name that the first bytes contain, if any.
func nameIn(p []byte) string {
	h, err := sniff(p)
	switch {
	case err != nil:
		return ""
	case h.language == speaksTLS:
		return h.name
	case h.language == speaksHTTP:
		for line := range strings.Lines(string(p[:min(len(p), smallBuffer)])) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(k, "host") {
				name, _ := hostOf(strings.TrimSpace(v))
				return name
			}
		}
	}
	return ""
}

func (f *flow) accept(r Request) (*guestConn, bool) {
	c, err := r.Accept()
	if err != nil {
		f.failed(errors.New("the sandbox gave up"))
		return nil, false
	}
	guest := newGuestConn(f, c)
	f.mu.Lock()
	f.guest = guest
	f.mu.Unlock()
	f.own(guest)
	return guest, true
}

// byName accepts the connection, and judges it by its first bytes.
func (f *flow) byName(r Request) {
	guest, ok := f.accept(r)
	if !ok {
		return
	}
	wait := sniffWait
	if d := f.g.state.Load().policy.Judge(f.attempt(f.pinNames())); d.Allow || d.Ask {
		wait = f.g.speakWait // the server may speak first
	}
	h, err := f.peek(guest, wait)
	switch {
	case errors.Is(err, errSilent) && wait == f.g.speakWait:
		f.silent(guest)
	case err != nil:
		f.protocol(guest, err.Error())
	default:
		f.known(guest, h)
	}
}

// attempt returns an attempt at the flow's own address, or one without an address if that
// address is synthetic.
func (f *flow) attempt(names []string) Attempt {
	a := Attempt{Protocol: f.proto, Addr: f.to.Addr(), Port: f.to.Port(), Names: names}
	if f.alias != "" {
		a.Addr = netip.Addr{}
	}
	return a
}

// pinNames returns the names to which the flow's address is pinned.
func (f *flow) pinNames() []string {
	if f.alias != "" {
		return []string{f.alias}
	}
	return f.g.names.pins.of(f.to.Addr())
}

// known serves a connection whose first bytes are known.
func (f *flow) known(guest *guestConn, h hello) {
	s := f.g.state.Load()
	switch h.language {
	case speaksTLS:
		f.tls(guest, h, s)
	case speaksHTTP, speaksHTTP2:
		if s.interceptor != nil {
			f.intercept(guest, s.interceptor, false, "")
			return
		}
		f.http(guest, h.language == speaksHTTP2)
	default:
		f.raw(guest)
	}
}

// raw serves a connection that shows no name, judged by the names pinned to its
// address.
func (f *flow) raw(guest *guestConn) {
	_, certain := f.g.state.Load().policy.decided(f.attempt(nil))
	switch port := f.to.Port(); {
	case certain:
	case slices.Contains(httpPorts, port):
		f.protocol(guest, "traffic that is not plain HTTP cannot be checked by name on this port; allow the address in rules")
		return
	case port == dnsPort || port == dotPort:
		f.protocol(guest, whyOtherDNS)
		return
	}
	remote, w, err := f.dialAddr(f.ctx)
	if err != nil {
		guest.reset()
		return
	}
	defer f.leave(w)
	relay(guest, remote, nil)
}

// tls serves TLS, judged by the server name in its ClientHello. Only an interceptor
// terminates TLS.
func (f *flow) tls(guest *guestConn, h hello, s *state) {
	if h.name != "" {
		f.named(h.name)
	}
	_, certain := s.policy.decided(f.attempt(nil))
	if !certain {
		if why := f.hidesDNS(s, h.name); why != "" {
			f.protocol(guest, why)
			return
		}
	}
	if s.interceptor != nil {
		f.intercept(guest, s.interceptor, true, h.name)
		return
	}
	if h.hidden && f.allowedByName(h.name) {
		f.protocol(guest, "the ClientHello is encrypted (ECH), so its name cannot be checked; turn ECH off in the program")
		return
	}
	remote, w, err := f.dialHost(f.ctx, h.name, true)
	if err != nil {
		f.dialFailed(h.name, false, err)
		guest.reset()
		return
	}
	defer f.leave(w)
	relay(guest, remote, nil)
}

// allowedByName reports whether the connection is allowed because of its name, so that
// another name might not be allowed. This includes names that need an approval.
func (f *flow) allowedByName(name string) bool {
	if to := cmp.Or(name, f.alias); to != "" && f.g.state.Load().policy.resolvable(to).Ask {
		return true
	}
	attempts, err := f.candidates(f.ctx, name, true)
	return err == nil && f.g.state.Load().policy.Judge(attempts[0]).Match == sandbox.MatchDomain
}

const (
	dotPort     = 853
	whyOtherDNS = "the policy works by names, so only the gateway's resolver may be used"
)

// hidesDNS returns why a connection that only its name allows is refused: it is to a
// resolver over TLS or HTTPS that no rule names. It returns "" otherwise.
func (f *flow) hidesDNS(s *state, name string) string {
	if f.to.Port() != dotPort && !knownResolver(name, f.to.Addr()) {
		return ""
	}
	if name != "" {
		d := s.policy.Judge(Attempt{Protocol: "tcp", Port: f.to.Port(), Names: []string{name}})
		if (d.Allow || d.Ask) && d.Match == sandbox.MatchDomain {
			return ""
		}
	}
	return whyOtherDNS
}

// tcpSynthetic serves a connection to a synthetic address.
func (f *flow) tcpSynthetic(s *state, r Request) {
	name, ok := f.g.names.synthetic.nameOf(f.to.Addr())
	if !ok {
		f.refuse(Decision{Match: sandbox.MatchInternal, Rule: "internal " + syntheticRange.String(), Reason: "nothing has this address"})
		r.Reject()
		return
	}
	if peer, ok := strings.CutSuffix(name, "."+peerDomain); ok {
		f.toPeer(r, peer)
		return
	}
	// The address stands for this name only. If the first bytes show another name, that name
	// is judged.
	f.alias = name
	f.byName(r)
}

// toPeer connects to another sandbox.
func (f *flow) toPeer(r Request, peer string) {
	w, d := f.enter(Attempt{Protocol: "tcp", Addr: f.to.Addr(), Port: f.to.Port(), Peer: peer})
	if w == nil || f.g.cfg.Peers == nil {
		f.refuse(d)
		r.Reject()
		return
	}
	defer f.leave(w)
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	defer cancel()
	remote, err := f.g.cfg.Peers.Dial(ctx, peer, f.to.Port())
	if err == nil {
		err = f.connected(w, remote)
	}
	if err != nil {
		f.failed(err)
		r.Reject()
		return
	}
	guest, ok := f.accept(r)
	if !ok {
		return
	}
	relay(guest, remote, nil)
}

// intercept passes a connection to the interceptor.
func (f *flow) intercept(guest *guestConn, i Interceptor, tls bool, name string) {
	if tls {
		// Judge the name before a certificate is made for it.
		if _, err := f.candidates(f.ctx, name, true); err != nil {
			f.dialFailed(name, false, err)
			guest.reset()
			return
		}
	}
	c := &Intercepted{Conn: guest, TLS: tls, Name: name, Destination: f.to}
	if !tls {
		c.Name = nameIn(guest.peeked)
	}
	c.Dial = func(ctx context.Context, host string) (net.Conn, error) {
		remote, w, err := f.dialHost(ctx, host, tls)
		if err != nil {
			f.dialFailed(host, true, err)
			return nil, err
		}
		if !tls && host != "" {
			f.named(host)
		}
		return &outboundConn{Conn: remote, f: f, w: w}, nil
	}
	c.MayUse = f.mayUse
	c.Record = func(e sandbox.NetworkEvent) {
		e.Connection = f.id
		if e.Address == "" {
			e.Address = f.to.Addr().String()
		}
		if e.Port == 0 {
			e.Port = int(f.to.Port())
		}
		f.g.record(e)
	}
	if err := i.Intercept(f.ctx, c); err != nil {
		f.note(err)
	}
}
