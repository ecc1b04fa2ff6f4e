// Package netstack is the cell's end of its sandbox's network: a TCP/IP stack
// in user space on a link whose other end is the sandbox's only way out.
// Packets come in, net.Conn values come out; the host's firewall and routes
// are not involved. It is the only importer of gVisor's pkg/tcpip.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// The addresses on the link, the same in every sandbox: no two sandboxes share
// a network.
var (
	// GatewayAddr is the cell.
	GatewayAddr = netip.MustParseAddr("169.254.77.1")
	// SandboxAddr is the sandbox.
	SandboxAddr = netip.MustParseAddr("169.254.77.2")
)

// PrefixLen is the length of the link's network prefix.
const PrefixLen = 30

// MTU is the link's largest packet. The link carries no physical frames, so
// large packets cost nothing and save work per byte.
const MTU = 65520

const nicID = 1

// Config describes the cell's end of the link.
type Config struct {
	// FD is a packet socket bound to the link, non-blocking or not. It stays
	// the caller's, and must be open for as long as the stack is used.
	FD int
	// LinkAddr is the Ethernet address of this end.
	LinkAddr net.HardwareAddr
}

// Stack is a running TCP/IP stack. It is safe for concurrent use.
type Stack struct {
	s       *stack.Stack
	handler atomic.Pointer[Handler]
	// connections is how many of the sandbox's own are open.
	connections atomic.Int64
	// pings holds a place for each echo request under way.
	pings chan struct{}
}

// New starts a stack at [GatewayAddr].
func New(cfg Config) (*Stack, error) {
	ep, err := fdbased.New(&fdbased.Options{
		FDs:                []int{cfg.FD},
		MTU:                MTU,
		EthernetHeader:     true,
		Address:            tcpip.LinkAddress(cfg.LinkAddr),
		PacketDispatchMode: fdbased.RecvMMsg,
		// The link never leaves the machine, nothing can damage a packet.
		RXChecksumOffload: true,
	})
	if err != nil {
		return nil, fmt.Errorf("attach network stack to link: %w", err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	st := &Stack{s: s, pings: make(chan struct{}, maxPings)}
	st.forwardAll()
	if err := st.configure(newFilter(ep)); err != nil {
		st.Close()
		return nil, err
	}
	return st, nil
}

func (st *Stack) configure(ep stack.LinkEndpoint) error {
	if err := st.s.CreateNIC(nicID, ep); err != nil {
		return fmt.Errorf("create network interface: %v", err)
	}
	addr := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(GatewayAddr), PrefixLen: PrefixLen},
	}
	if err := st.s.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("set gateway address: %v", err)
	}
	// Whatever the sandbox addresses is taken in, and answered from there.
	if err := errors.Join(asError(st.s.SetPromiscuousMode(nicID, true)), asError(st.s.SetSpoofing(nicID, true))); err != nil {
		return fmt.Errorf("take in packets to all addresses: %w", err)
	}
	st.s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	sack := tcpip.TCPSACKEnabled(true)
	if err := st.s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return fmt.Errorf("enable selective acknowledgements: %v", err)
	}
	buf := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	if err := st.s.SetTransportProtocolOption(tcp.ProtocolNumber, &buf); err != nil {
		return fmt.Errorf("set receive buffer: %v", err)
	}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20}
	if err := st.s.SetTransportProtocolOption(tcp.ProtocolNumber, &send); err != nil {
		return fmt.Errorf("set send buffer: %v", err)
	}
	// Connections that are over make room soon: nothing is late on this link.
	wait := tcpip.TCPTimeWaitTimeoutOption(5 * time.Second)
	if err := st.s.SetTransportProtocolOption(tcp.ProtocolNumber, &wait); err != nil {
		return fmt.Errorf("set how long ended connections are kept: %v", err)
	}
	return nil
}

// asError returns an error of the stack's as an ordinary one.
func asError(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return stackError{err}
}

// ErrRefused says that nothing listens on a port of the sandbox.
var ErrRefused = errors.New("connection refused")

// Dial opens a TCP connection to a port of the sandbox. If nothing listens
// there, the error is [ErrRefused].
func (st *Stack) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	to := tcpip.FullAddress{NIC: nicID, Addr: address(SandboxAddr), Port: port}
	c, err := gonet.DialContextTCP(ctx, st.s, to, ipv4.ProtocolNumber)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err.Error() == (&tcpip.ErrConnectionRefused{}).String() {
		err = ErrRefused
	}
	if err != nil {
		return nil, fmt.Errorf("dial sandbox port %d: %w", port, err)
	}
	return c, nil
}

// Traffic returns the bytes that came from and went to the sandbox.
func (st *Stack) Traffic() (in, out uint64) {
	nic, ok := st.s.NICInfo()[nicID]
	if !ok {
		return 0, 0
	}
	return nic.Stats.Rx.Bytes.Value(), nic.Stats.Tx.Bytes.Value()
}

// Close ends all connections. When it returns, the link is not used any more.
func (st *Stack) Close() {
	_ = st.s.RemoveNIC(nicID) // it is there
	st.s.Close()
}

// ListenUDP opens a port of the gateway's.
func (st *Stack) ListenUDP(port uint16) (net.PacketConn, error) {
	c, err := gonet.DialUDP(st.s, &tcpip.FullAddress{NIC: nicID, Addr: address(GatewayAddr), Port: port}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("open UDP port %d of the gateway: %w", port, err)
	}
	return c, nil
}

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }
