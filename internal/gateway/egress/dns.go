package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// dnsIdle is how long a connection or flow to the resolver stays without a
	// question.
	dnsIdle = 10 * time.Second
	// maxDNSConns bounds connections and flows to the resolver.
	maxDNSConns = 128
	dnsPort     = 53
)

// ServeDNS answers the sandbox's questions that come on pc until ctx is
// cancelled, which is not an error, or pc fails. A gateway that is handed all
// flows needs it not: [Gateway.HandleTCP] and [Gateway.HandleUDP] answer what
// goes to the gateway's port 53.
func (g *Gateway) ServeDNS(ctx context.Context, pc net.PacketConn) error {
	stop := context.AfterFunc(ctx, func() { pc.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		g.names.work(ctx, &wg, append([]byte(nil), buf[:n]...), func(answer []byte) {
			_, _ = pc.WriteTo(answer, from) // the sandbox asks again
		})
	}
}

// work answers one datagram, unless too many are worked on.
func (r *resolver) work(ctx context.Context, wg *sync.WaitGroup, msg []byte, send func([]byte)) {
	select {
	case r.slots <- struct{}{}:
	default:
		return // it asks again
	}
	wg.Go(func() {
		defer func() { <-r.slots }()
		if answer := r.answer(ctx, msg, "udp"); answer != nil {
			send(answer)
		}
	})
}

// serveTCP answers the questions of one connection, one after another.
func (r *resolver) serveTCP(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	for {
		if c.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		msg, err := readTCPMessage(c)
		if err != nil {
			return
		}
		answer := r.answer(ctx, msg, "tcp")
		if answer == nil || c.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// serveUDP answers the questions of one flow.
func (r *resolver) serveUDP(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	buf := make([]byte, 4096)
	for {
		if c.SetReadDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		r.work(ctx, &wg, append([]byte(nil), buf[:n]...), func(answer []byte) {
			_, _ = c.Write(answer) // the sandbox asks again
		})
	}
}

// toGateway serves a request to the gateway's own address, of which only the
// resolver is there.
func (g *Gateway) toGateway(ctx context.Context, r Request, serve func(context.Context, net.Conn)) {
	if r.Destination.Port() != dnsPort || !g.dnsConn(1) {
		r.Reject()
		return
	}
	defer g.dnsConn(-1)
	c, err := r.Accept()
	if err != nil {
		return
	}
	serve(ctx, c)
}

// dnsConn counts connections to the resolver, and tells whether there may be
// one more.
func (g *Gateway) dnsConn(n int32) bool {
	if g.dnsConns.Add(n) > maxDNSConns && n > 0 {
		g.dnsConns.Add(-n)
		return false
	}
	return true
}

// destination returns where a request goes in the form that is judged.
func destination(r Request) netip.AddrPort {
	return netip.AddrPortFrom(plain(r.Destination.Addr()), r.Destination.Port())
}
