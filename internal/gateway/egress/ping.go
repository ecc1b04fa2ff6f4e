package egress

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	protocolICMP   = 1
	protocolICMPv6 = 58
)

// echo sends an ICMP echo request and waits for the answer. The host must allow this
// user ping sockets or, as root, raw sockets.
func echo(ctx context.Context, to netip.Addr, payload []byte) error {
	c, raw, err := pingSocket(to)
	if err != nil {
		return errors.New("this host does not allow the gateway to ping")
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	body := &icmp.Echo{ID: int(binary.BigEndian.Uint16(random[:])), Seq: int(binary.BigEndian.Uint16(random[2:])), Data: payload}
	kind, proto := icmp.Type(ipv4.ICMPTypeEcho), protocolICMP
	if to.Is6() {
		kind, proto = ipv6.ICMPTypeEchoRequest, protocolICMPv6
	}
	msg, err := (&icmp.Message{Type: kind, Body: body}).Marshal(nil)
	if err != nil {
		return err
	}
	var dst net.Addr = &net.UDPAddr{IP: to.AsSlice()}
	if raw {
		dst = &net.IPAddr{IP: to.AsSlice()}
	}
	if _, err := c.WriteTo(msg, dst); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return awaitEcho(ctx, c, proto, raw, body)
}

func awaitEcho(ctx context.Context, c *icmp.PacketConn, proto int, raw bool, sent *icmp.Echo) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := c.ReadFrom(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
			continue
		}
		got, ok := m.Body.(*icmp.Echo)
		// The kernel chooses the id of a ping socket, and delivers no other answers to it.
		if ok && got.Seq == sent.Seq && (!raw || got.ID == sent.ID) && bytes.Equal(got.Data, sent.Data) {
			return nil
		}
	}
}

func pingSocket(to netip.Addr) (c *icmp.PacketConn, raw bool, err error) {
	plain, root, any := "udp4", "ip4:icmp", "0.0.0.0"
	if to.Is6() {
		plain, root, any = "udp6", "ip6:ipv6-icmp", "::"
	}
	if c, err = icmp.ListenPacket(plain, any); err == nil {
		return c, false, nil
	}
	c, err = icmp.ListenPacket(root, any)
	return c, true, err
}
