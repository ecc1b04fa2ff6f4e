// Package netstack is the cell's end of its sandbox's network: a TCP/IP stack in user
// space on the sandbox's only link. It turns packets into net.Conn values, without the
// host's firewall and routes. It is the only importer of gVisor's pkg/tcpip.
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

// The addresses on the link. They are the same in every sandbox, since no two sandboxes
// share a network.
var (
	// GatewayAddr is the cell.
	GatewayAddr = netip.MustParseAddr("169.254.77.1")
	// SandboxAddr is the sandbox.
	SandboxAddr = netip.MustParseAddr("169.254.77.2")
)

// PrefixLen is the length of the link's network prefix.
const PrefixLen = 30

// MTU is the largest packet of the link. The link is virtual, so large packets cost
// nothing and save work per byte.
const MTU = 65520

const nicID = 1

// Config describes the cell's end of the link.
type Config struct {
	// FD is a packet socket bound to the link, non-blocking or not. The caller owns it and
	// keeps it open while the stack is in use.
	FD int
	// LinkAddr is the Ethernet address of this end.
	LinkAddr net.HardwareAddr
}

// Stack is a running TCP/IP stack. It is safe for concurrent use.
type Stack struct {
	s       *stack.Stack
	handler atomic.Pointer[Handler]
	// connections is the number of open connections of the sandbox.
	connections atomic.Int64
	// pings is a semaphore with a slot for each echo request in progress.
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
		// The link is inside the machine, where nothing damages packets.
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
	// The stack receives packets to all addresses, and answers from them.
	if err := errors.Join(asError(st.s.SetPromiscuousMode(nicID, true)), asError(st.s.SetSpoofing(nicID, true))); err != nil {
		return fmt.Errorf("receive packets to all addresses: %w", err)
	}
	st.s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	for _, option := range []tcpip.SettableTransportProtocolOption{
		new(tcpip.TCPSACKEnabled(true)),
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20},
		&tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 8 << 20},
		// Short, since no packet is delayed on this link.
		new(tcpip.TCPTimeWaitTimeoutOption(5 * time.Second)),
	} {
		if err := st.s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set TCP option %T: %v", option, err)
		}
	}
	return nil
}

// asError converts an error of the stack.
func asError(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return stackError{err}
}

// ErrRefused means that nothing listens on a port of the sandbox.
var ErrRefused = errors.New("connection refused")

// Dial opens a TCP connection to a port of the sandbox. If nothing listens there, the
// error is [ErrRefused].
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

// Traffic returns the bytes received from (in) and sent to (out) the sandbox.
func (st *Stack) Traffic() (in, out uint64) {
	nic, ok := st.s.NICInfo()[nicID]
	if !ok {
		return 0, 0
	}
	return nic.Stats.Rx.Bytes.Value(), nic.Stats.Tx.Bytes.Value()
}

// Close ends all connections. When it returns, the link is no longer used.
func (st *Stack) Close() {
	_ = st.s.RemoveNIC(nicID) // fails only if there is none
	st.s.Close()
}

// ListenUDP opens a UDP port of the gateway.
func (st *Stack) ListenUDP(port uint16) (net.PacketConn, error) {
	c, err := gonet.DialUDP(st.s, &tcpip.FullAddress{NIC: nicID, Addr: address(GatewayAddr), Port: port}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("open UDP port %d of the gateway: %w", port, err)
	}
	return c, nil
}

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }
