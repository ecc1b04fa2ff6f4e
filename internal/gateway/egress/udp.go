package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// udpIdle is how long a UDP flow may be idle, and udpDNSIdle how long a flow to another
	// resolver may be idle.
	udpIdle    = 60 * time.Second
	udpDNSIdle = 10 * time.Second
	quicPort   = 443
)

// HandleUDP judges and carries one UDP flow. It returns when the flow has ended, 60
// seconds after its last datagram. It calls Accept or Reject at once, before it waits for
// anything.
func (g *Gateway) HandleUDP(ctx context.Context, r Request) {
	g.handle(ctx, r, "udp", g.names.serveUDP, (*flow).udp)
}

func (f *flow) udp(r Request) {
	s := f.g.state.Load()
	a := f.attempt(nil)
	if name, ok := f.g.names.synthetic.nameOf(f.to.Addr()); ok {
		f.udpNamed(r, name)
		return
	}
	d, certain := s.policy.decided(a)
	if why := udpHides(a.Port, certain && !d.Ask, s.interceptor != nil); why != "" && (d.Allow || d.Ask || !certain) {
		f.refuse(Decision{Match: sandbox.MatchProtocol, Reason: why})
		r.Reject()
		return
	}
	a.Names = f.pinNames()
	if f.judge(s, a).Ask {
		f.udpAsked(r, []Attempt{a})
		return
	}
	w, d := f.enter(a)
	if w == nil {
		f.refuse(d)
		r.Reject()
		return
	}
	defer f.leave(w)
	guest, ok := f.accept(r)
	if !ok {
		return
	}
	f.carryUDP(guest, w)
}

// carryUDP dials the allowed destination and carries the flow.
func (f *flow) carryUDP(guest *guestConn, w *outbound) {
	// Dialling UDP neither sends anything nor waits.
	remote, err := f.g.cfg.Dialer.DialContext(f.ctx, "udp", netip.AddrPortFrom(w.a.Addr, w.a.Port).String())
	if err == nil {
		err = f.connected(w, remote)
	}
	if err != nil {
		f.failed(err)
		return
	}
	f.exchange(guest, remote)
}

// udpNamed serves a flow to an address that stands for a name that needs an approval.
func (f *flow) udpNamed(r Request, name string) {
	if strings.HasSuffix(name, "."+peerDomain) {
		f.refuse(Decision{Match: sandbox.MatchSandbox, Reason: "sandboxes connect to each other over tcp only"})
		r.Reject()
		return
	}
	if why := udpHides(f.to.Port(), false, false); why != "" {
		f.refuse(Decision{Match: sandbox.MatchProtocol, Reason: why})
		r.Reject()
		return
	}
	f.alias = name
	f.udpAsked(r, nil)
}

// udpAsked serves a flow that waits for an approval. The flow is accepted first, since
// all packets of the sandbox would wait otherwise; meanwhile its datagrams wait in the
// stack's buffers. Without attempts, the flow is to its alias.
func (f *flow) udpAsked(r Request, attempts []Attempt) {
	guest, ok := f.accept(r)
	if !ok {
		return
	}
	var err error
	if attempts == nil {
		if attempts, err = f.candidates(f.ctx, f.alias, true); err != nil {
			f.dialFailed(f.alias, false, err)
			return
		}
	}
	a := attempts[0]
	if !a.Addr.IsValid() {
		f.refuse(Decision{Match: sandbox.MatchProtocol, Reason: "the host's proxy does not support UDP"})
		return
	}
	w, d := f.admit(f.ctx, a)
	if w == nil {
		f.refuse(d)
		return
	}
	defer f.leave(w)
	f.carryUDP(guest, w)
}

// udpHides returns why a flow that would hide names from a policy by names is refused, or
// "".
func udpHides(port uint16, certain, intercepted bool) string {
	switch {
	case port == quicPort && (!certain || intercepted):
		return "QUIC hides the name that the policy needs; programs fall back to TCP"
	case (port == dnsPort || port == dotPort) && !certain:
		return whyOtherDNS
	}
	return ""
}

// exchange copies datagrams in both directions until the flow has been idle for too long.
func (f *flow) exchange(guest *guestConn, remote net.Conn) {
	idle := udpIdle
	if f.to.Port() == dnsPort {
		idle = udpDNSIdle
	}
	timer := time.AfterFunc(idle, func() { guest.Close(); remote.Close() })
	defer timer.Stop()
	var wg sync.WaitGroup
	wg.Go(func() { f.datagrams(guest, remote, timer, idle) })
	f.datagrams(remote, guest, timer, idle)
	guest.Close()
	remote.Close()
	wg.Wait()
}

func (f *flow) datagrams(dst, src net.Conn, timer *time.Timer, idle time.Duration) {
	buf := largeBuffers.Get().(*[]byte)
	defer largeBuffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if err != nil {
			// An error before the first answer means that nothing receives datagrams there.
			if _, isGuest := src.(*guestConn); !isGuest && f.received.Load() == 0 && !errors.Is(err, net.ErrClosed) {
				f.failed(err)
			}
			dst.Close()
			return
		}
		timer.Reset(idle)
		if _, err := dst.Write((*buf)[:n]); err != nil && errors.Is(err, net.ErrClosed) {
			return // other errors lose a datagram, as networks do
		}
	}
}

// pingWait limits the wait for a reply.
const pingWait = 5 * time.Second

// Ping sends an ICMP echo request with the payload to an address, and waits up to 5
// seconds for the reply. It returns nil if the same payload came back. After any error,
// the sandbox must be told that the host is unreachable.
func (g *Gateway) Ping(ctx context.Context, to netip.Addr, payload []byte) error {
	to = plain(to)
	if to == g.cfg.GatewayAddr {
		return nil
	}
	f := g.begin(ctx, "icmp", netip.AddrPortFrom(to, 0))
	if f == nil {
		return errClosed
	}
	defer f.end()
	a := f.attempt(f.pinNames())
	w, d := f.enter(a)
	if d.Ask {
		d.Reason = "a ping does not wait until it is allowed; allow it in rules"
	}
	if w == nil {
		f.refuse(d)
		return &RefusedError{d}
	}
	defer f.leave(w)
	ctx, cancel := context.WithTimeout(f.ctx, pingWait)
	defer cancel()
	f.sent.Add(int64(len(payload)))
	err := echo(ctx, to, payload)
	if err != nil {
		f.failed(err)
		return err
	}
	f.received.Add(int64(len(payload)))
	return nil
}
