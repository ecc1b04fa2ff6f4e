package egress

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// dnsIdle is how long a connection or flow to the resolver may be idle.
	dnsIdle = 10 * time.Second
	// maxDNSConns limits the connections and flows to the resolver.
	maxDNSConns = 128
	dnsPort     = 53
)

// ServeDNS answers the sandbox's queries on pc until ctx is cancelled, which is not an
// error, or pc fails. It is not needed if all flows are passed to [Gateway.HandleTCP] and
// [Gateway.HandleUDP], which answer queries to the gateway's port 53 themselves.
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
		g.names.work(ctx, &wg, bytes.Clone(buf[:n]), func(answer []byte) {
			_, _ = pc.WriteTo(answer, from) // a client without an answer asks again
		})
	}
}

// work answers one datagram, or drops it if too many are in progress: its client asks
// again.
func (r *resolver) work(ctx context.Context, wg *sync.WaitGroup, msg []byte, send func([]byte)) {
	select {
	case r.slots <- struct{}{}:
	default:
		return
	}
	wg.Go(func() {
		defer func() { <-r.slots }()
		if answer := r.answer(ctx, msg, "udp"); answer != nil {
			send(answer)
		}
	})
}

// serveTCP answers the queries on one connection, one after another.
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
		if writeTCPMessage(c, answer) != nil {
			return
		}
	}
}

// serveUDP answers the queries of one flow.
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
		r.work(ctx, &wg, bytes.Clone(buf[:n]), func(answer []byte) {
			_, _ = c.Write(answer) // a client without an answer asks again
		})
	}
}

// toGateway serves a request to the gateway's own address, on which only the resolver
// listens.
func (g *Gateway) toGateway(ctx context.Context, r Request, serve func(context.Context, net.Conn)) {
	if r.Destination.Port() != dnsPort {
		r.Reject()
		return
	}
	defer g.dnsConns.Add(-1)
	if g.dnsConns.Add(1) > maxDNSConns {
		r.Reject()
		return
	}
	if c, err := r.Accept(); err == nil {
		serve(ctx, c)
	}
}

// destination returns a request's destination in the form that is judged.
func destination(r Request) netip.AddrPort {
	return netip.AddrPortFrom(plain(r.Destination.Addr()), r.Destination.Port())
}
