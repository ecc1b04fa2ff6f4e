package cell

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/cell/runsc"
)

// link is the cell's end of the sandbox's only network link. It is closed when the
// process ends.
type link struct {
	fd   int
	addr net.HardwareAddr
	// ns is the network namespace of the link. Only ns and fd give access to it: the cell
	// itself is in the host's namespace, since the sandbox's connections leave through it.
	ns *os.File
}

// The names of the two ends of the link in its network namespace. gVisor takes over the
// sandbox's end with its addresses and routes.
const (
	sandboxEnd = "eth0"
	gatewayEnd = "gateway"
)

// setUpLink makes a network namespace that contains the link.
func setUpLink() (l *link, err error) {
	err = runsc.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		l, err = makeLink()
		return err
	})
	return l, err
}

// makeLink makes the link in this thread's network namespace. The link is a pair of
// virtual Ethernet devices, not a TAP device: a TAP device needs /dev/net/tun, which many
// machines deny to ordinary users and which containers lack.
func makeLink() (*link, error) {
	// The kernel must not send packets of its own on the link, nor give it addresses.
	ipv6Off := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0) == nil
	if err := bringUp("lo"); err != nil {
		return nil, err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: sandboxEnd, MTU: netstack.MTU}, PeerName: gatewayEnd, PeerMTU: netstack.MTU}
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("make network link: %w", err)
	}
	if !ipv6Off { // containers cannot write settings
		keepFromIPv6(sandboxEnd, gatewayEnd)
	}
	if err := bringUp(gatewayEnd); err != nil {
		return nil, err
	}
	if err := configureSandboxEnd(); err != nil {
		return nil, err
	}
	return openGatewayEnd()
}

// keepFromIPv6 keeps the kernel from giving links an address of IPv6. It does nothing if
// the kernel has no IPv6.
func keepFromIPv6(names ...string) {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	for _, name := range names {
		if l, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkSetIP6AddrGenMode(l, none)
		}
	}
}

func bringUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring link %s up: %w", name, err)
	}
	return nil
}

func configureSandboxEnd() error {
	l, err := netlink.LinkByName(sandboxEnd)
	if err != nil {
		return fmt.Errorf("find link %s: %w", sandboxEnd, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   netstack.SandboxAddr.AsSlice(),
		Mask: net.CIDRMask(netstack.PrefixLen, 32),
	}}
	if err := netlink.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("set the sandbox's address: %w", err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring link %s up: %w", sandboxEnd, err)
	}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Gw: netstack.GatewayAddr.AsSlice()}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("set the sandbox's route: %w", err)
	}
	return nil
}

// openGatewayEnd opens a packet socket on the gateway's end.
func openGatewayEnd() (*link, error) {
	iface, err := net.InterfaceByName(gatewayEnd)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", gatewayEnd, err)
	}
	// Protocol 0 receives nothing until bind.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	const allProtocols = 0x0300 // ETH_P_ALL in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: iface.Index}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind packet socket: %w", err)
	}
	// As large as the buffers of the sandbox's end; smaller buffers work, but are slower.
	const buffer = 4 << 20
	for _, force := range []struct{ force, plain int }{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force.force, buffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, force.plain, buffer)
		}
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &link{fd: fd, addr: iface.HardwareAddr, ns: ns}, nil
}

// nsPath returns a path of the link's network namespace, valid in this process.
func (l *link) nsPath() string { return fmt.Sprintf("/proc/self/fd/%d", l.ns.Fd()) }
