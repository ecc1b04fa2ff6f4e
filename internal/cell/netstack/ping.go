package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// forwardPing passes echo requests to the handler, except those to the gateway, which the
// stack answers itself.
func (st *Stack) forwardPing(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	destination := pkt.Network().DestinationAddress()
	to, ok := netip.AddrFromSlice(destination.AsSlice())
	if !ok || to == GatewayAddr {
		return false
	}
	message := stack.PayloadSince(pkt.TransportHeader())
	defer message.Release()
	if message.Size() > maxPing {
		return true
	}
	request := header.ICMPv4(message.ToSlice())
	if len(request) < header.ICMPv4MinimumSize || request.Type() != header.ICMPv4Echo {
		return true
	}
	select {
	case st.pings <- struct{}{}:
	default:
		return true // dropped, as on any busy network
	}
	go func() {
		defer func() { <-st.pings }()
		if st.currentHandler().Ping(to, request.Payload()) {
			st.answerPing(to, request)
		}
	}()
	return true
}

// answerPing turns an echo request into its reply, and sends it.
func (st *Stack) answerPing(from netip.Addr, message header.ICMPv4) {
	message.SetType(header.ICMPv4EchoReply)
	message.SetChecksum(0)
	message.SetChecksum(^checksum.Checksum(message, 0))
	route, err := st.s.FindRoute(nicID, address(from), address(SandboxAddr), ipv4.ProtocolNumber, false)
	if err != nil {
		return
	}
	defer route.Release()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(message),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = header.ICMPv4ProtocolNumber
	params := stack.NetworkHeaderParams{Protocol: header.ICMPv4ProtocolNumber, TTL: route.DefaultTTL(), TOS: stack.DefaultTOS}
	_ = route.WritePacket(params, pkt) // like any packet, a reply may be lost
}
