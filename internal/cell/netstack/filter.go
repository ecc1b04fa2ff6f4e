package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// filter drops all packets except IPv4 and ARP from the sandbox's own address: root in
// the sandbox can set any other address.
type filter struct{ nested.Endpoint }

func newFilter(ep stack.LinkEndpoint) *filter {
	f := &filter{}
	f.Init(ep, f)
	return f
}

func (f *filter) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if source, ok := sourceOf(protocol, pkt); ok && source == SandboxAddr {
		f.Endpoint.DeliverNetworkPacket(protocol, pkt)
	}
}

// sourceOf returns the source address in a packet.
func sourceOf(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) (netip.Addr, bool) {
	switch protocol {
	case ipv4.ProtocolNumber:
		if h, ok := pkt.Data().PullUp(header.IPv4MinimumSize); ok {
			return netip.AddrFromSlice(header.IPv4(h).SourceAddressSlice())
		}
	case arp.ProtocolNumber:
		if h, ok := pkt.Data().PullUp(header.ARPSize); ok && header.ARP(h).IsValid() {
			return netip.AddrFromSlice(header.ARP(h).ProtocolAddressSender())
		}
	}
	return netip.Addr{}, false
}
