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

// Handler handles everything that the sandbox tries to reach, at any address: the
// gateway's, others', and invalid ones. Each call runs on its own goroutine.
type Handler interface {
	// TCP handles a new connection. The net.Conn that Accept returns has CloseWrite, and
	// SetLinger, where 0 makes Close reset the connection.
	TCP(r Request)
	// UDP handles the first packet of a flow. It must accept or reject at once, since all
	// packets of the sandbox wait for it.
	UDP(r Request)
	// Ping reports whether an address replies with the same payload. It is not called for
	// the gateway's address, which always replies.
	Ping(to netip.Addr, payload []byte) bool
}

// Request is an attempt to reach something. Exactly one of Accept and Reject is called,
// once. Reject resets a TCP connection, and answers a UDP flow with "port unreachable".
type Request struct {
	Source, Destination netip.AddrPort
	Accept              func() (net.Conn, error)
	Reject              func()
}

const (
	// maxInFlight limits connections that are neither accepted nor rejected yet. Further SYN
	// packets are dropped, which the sandbox notices as slowness.
	maxInFlight = 16384
	// maxPings limits echo requests in progress.
	maxPings = 64
	// maxPing limits the size of an echo request that is answered, in bytes.
	maxPing = 1500
)

// bufferSizes limits what the connections of a sandbox buffer in the cell's memory, in
// each direction: the more connections, the smaller the buffers. Small buffers suffice,
// since the link's latency is microseconds.
var bufferSizes = []struct{ upTo, bytes int }{{64, 512 << 10}, {512, 128 << 10}, {4096, 48 << 10}, {1 << 30, 32 << 10}}

func bufferSize(connections int) int {
	for _, b := range bufferSizes {
		if connections <= b.upTo {
			return b.bytes
		}
	}
	return bufferSizes[len(bufferSizes)-1].bytes
}

// forwardAll passes everything that the sandbox tries to reach to the handler.
func (st *Stack) forwardAll() {
	tcpForwarder := tcp.NewForwarder(st.s, bufferSize(0), maxInFlight, st.forwardTCP)
	st.s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcpForwarder.HandlePacket)
	udpForwarder := udp.NewForwarder(st.s, st.forwardUDP)
	st.s.SetTransportProtocolHandler(udp.ProtocolNumber, udpForwarder.HandlePacket)
	st.s.SetTransportProtocolHandler(icmp.ProtocolNumber4, st.forwardPing)
}

// SetHandler sets the handler. Until then everything is refused.
func (st *Stack) SetHandler(h Handler) { st.handler.Store(&h) }

func (st *Stack) currentHandler() Handler {
	if h := st.handler.Load(); h != nil {
		return *h
	}
	return refuseAll{}
}

// refuseAll is the handler until one is set.
type refuseAll struct{}

func (refuseAll) TCP(r Request)                { r.Reject() }
func (refuseAll) UDP(r Request)                { r.Reject() }
func (refuseAll) Ping(netip.Addr, []byte) bool { return false }

// requestOf returns a request with the addresses of an endpoint.
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

// conn is an accepted connection of the sandbox.
type conn struct {
	*gonet.TCPConn
	ep     tcpip.Endpoint
	closed func()
}

func (c *conn) Close() error {
	defer c.closed()
	return c.TCPConn.Close()
}

// SetLinger is like that of [net.TCPConn]: with 0, Close resets the connection.
func (c *conn) SetLinger(sec int) error {
	c.ep.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: sec >= 0, Timeout: time.Duration(max(sec, 0)) * time.Second})
	return nil
}

// stackError is an error of the network stack.
type stackError struct{ err tcpip.Error }

func (e stackError) Error() string { return e.err.String() }

func (st *Stack) forwardUDP(r *udp.ForwarderRequest) bool {
	// The endpoint is created before this call returns. If it were created later, it would
	// miss packets, or be created twice.
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
		return false // the stack answers that the port is unreachable
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
