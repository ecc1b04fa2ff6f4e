package netstack

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Handler is told what the sandbox tries to reach, whatever the address: the
// gateway's own, others, and such as cannot be. Each call has a goroutine of its
// own.
type Handler interface {
	// TCP is a new connection. The one that Accept returns has CloseWrite, and
	// SetLinger, of which 0 makes Close reset it.
	TCP(r Request)
	// UDP is the first packet of a flow. It accepts or rejects at once, since
	// all packets of the sandbox wait for it.
	UDP(r Request)
	// Ping reports whether an address answers with the same payload. That of
	// the gateway does without being asked for.
	Ping(to netip.Addr, payload []byte) bool
}

// Request is an attempt to reach something. Exactly one of Accept and Reject is
// called, once. Reject resets a connection, and tells a flow that the port is
// unreachable.
type Request struct {
	Source, Destination netip.AddrPort
	Accept              func() (net.Conn, error)
	Reject              func()
}

const (
	// maxInFlight bounds connections that are neither accepted nor refused yet;
	// more are dropped, which a sandbox notices as slowness.
	maxInFlight = 16384
	// maxPings bounds echo requests under way.
	maxPings = 64
	// maxPing is the largest echo request that is answered, in bytes.
	maxPing = 1500
)

// bufferSizes bounds what the connections of a sandbox buffer in the cell's
// memory: the more there are, the less each of them, per direction. All that
// crosses the link does so within microseconds, so that little suffices.
var bufferSizes = []struct{ upTo, bytes int }{{64, 512 << 10}, {512, 128 << 10}, {4096, 48 << 10}, {1 << 30, 32 << 10}}

func bufferSize(connections int) int {
	for _, b := range bufferSizes {
		if connections <= b.upTo {
			return b.bytes
		}
	}
	return bufferSizes[len(bufferSizes)-1].bytes
}

// forwardAll sends what the sandbox addresses to anybody to the handler.
func (st *Stack) forwardAll() {
	tcpForwarder := tcp.NewForwarder(st.s, bufferSize(0), maxInFlight, st.forwardTCP)
	st.s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcpForwarder.HandlePacket)
	udpForwarder := udp.NewForwarder(st.s, st.forwardUDP)
	st.s.SetTransportProtocolHandler(udp.ProtocolNumber, udpForwarder.HandlePacket)
	st.s.SetTransportProtocolHandler(icmp.ProtocolNumber4, st.forwardPing)
}

// SetHandler sets who decides about what the sandbox tries to reach. Until then
// everything is refused.
func (st *Stack) SetHandler(h Handler) { st.handler.Store(&h) }

func (st *Stack) currentHandler() Handler {
	if h := st.handler.Load(); h != nil {
		return *h
	}
	return refuseAll{}
}

// refuseAll is the handler before there is one.
type refuseAll struct{}

func (refuseAll) TCP(r Request)                { r.Reject() }
func (refuseAll) UDP(r Request)                { r.Reject() }
func (refuseAll) Ping(netip.Addr, []byte) bool { return false }

// requestOf tells who wants to go where.
func requestOf(id stack.TransportEndpointID) Request {
	from, _ := netip.AddrFromSlice(id.RemoteAddress.AsSlice())
	to, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	return Request{Source: netip.AddrPortFrom(from, id.RemotePort), Destination: netip.AddrPortFrom(to, id.LocalPort)}
}

func (st *Stack) forwardTCP(r *tcp.ForwarderRequest) {
	request := requestOf(r.ID())
	request.Reject = func() { r.Complete(true) }
	request.Accept = func() (net.Conn, error) {
		var wq waiter.Queue
		ep, err := r.CreateEndpoint(&wq)
		if err != nil {
			r.Complete(true)
			return nil, &net.OpError{Op: "accept", Net: "tcp", Err: stackError{err}}
		}
		r.Complete(false)
		size := int64(bufferSize(int(st.connections.Add(1))))
		ep.SocketOptions().SetReceiveBufferSize(size, true)
		ep.SocketOptions().SetSendBufferSize(size, true)
		return &conn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, closed: sync.OnceFunc(func() { st.connections.Add(-1) })}, nil
	}
	st.currentHandler().TCP(request)
}

// conn is a connection of the sandbox's to somebody.
type conn struct {
	*gonet.TCPConn
	ep     tcpip.Endpoint
	closed func()
}

// Close closes the connection.
func (c *conn) Close() error {
	defer c.closed()
	return c.TCPConn.Close()
}

// SetLinger is that of [net.TCPConn]: with 0, Close resets the connection.
func (c *conn) SetLinger(sec int) error {
	c.ep.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: sec >= 0, Timeout: time.Duration(max(sec, 0)) * time.Second})
	return nil
}

// stackError is an error of the network stack's.
type stackError struct{ err tcpip.Error }

// Error says what happened.
func (e stackError) Error() string { return e.err.String() }

func (st *Stack) forwardUDP(r *udp.ForwarderRequest) bool {
	// The answer of the stack is its own to give, here and now: an endpoint that
	// is made later would miss packets, or be made twice.
	type flow struct {
		conn net.Conn
		err  error
	}
	answer, accepted := make(chan bool, 1), make(chan flow, 1)
	request := requestOf(r.ID())
	request.Reject = func() { answer <- false }
	request.Accept = func() (net.Conn, error) {
		answer <- true
		f := <-accepted
		return f.conn, f.err
	}
	go st.currentHandler().UDP(request)
	if !<-answer {
		return false // the stack tells that the port is unreachable
	}
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		accepted <- flow{err: &net.OpError{Op: "accept", Net: "udp", Err: stackError{err}}}
		return true
	}
	accepted <- flow{conn: gonet.NewUDPConn(&wq, ep)}
	return true
}
