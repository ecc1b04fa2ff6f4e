package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// sandboxStack returns a stack in place of the sandbox's, with the given address.
func sandboxStack(t *testing.T, fd int, addr netip.Addr) *stack.Stack {
	t.Helper()
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: MTU, EthernetHeader: true, Address: tcpip.LinkAddress("\x02\x00\x00\x00\x00\x02"),
		PacketDispatchMode: fdbased.RecvMMsg, RXChecksumOffload: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	pa := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(addr), PrefixLen: PrefixLen}}
	if err := s.AddProtocolAddress(1, pa, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, Gateway: address(GatewayAddr), NIC: 1}})
	return s
}

// pair returns a gateway's stack and a sandbox's, on one link.
func pair(t *testing.T, addr netip.Addr) (*Stack, *stack.Stack) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, 4<<20)
		}
	}
	gateway, err := New(Config{FD: fds[0], LinkAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	inside := sandboxStack(t, fds[1], addr)
	t.Cleanup(func() {
		_ = inside.RemoveNIC(1)
		inside.Close()
		gateway.Close()
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return gateway, inside
}

// seen is a handler that records what it is asked, and echoes.
type seen struct {
	mu    sync.Mutex
	asked []string // guarded by mu
	allow bool
}

func (s *seen) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

func (s *seen) TCP(r Request) {
	s.note("tcp " + r.Destination.String())
	if !s.allow {
		r.Reject()
		return
	}
	c, err := r.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.Copy(c, c)
}

func (s *seen) UDP(r Request) {
	s.note("udp " + r.Destination.String())
	if !s.allow {
		r.Reject()
		return
	}
	c, err := r.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	b := make([]byte, 2048)
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		_, _ = c.Write(b[:n])
	}
}

func (s *seen) Ping(to netip.Addr, payload []byte) bool {
	s.note("ping " + to.String() + " " + string(payload))
	return s.allow
}

func dialFrom(ctx context.Context, s *stack.Stack, to string) (*gonet.TCPConn, error) {
	ap := netip.MustParseAddrPort(to)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return gonet.DialContextTCP(ctx, s, tcpip.FullAddress{NIC: 1, Addr: address(ap.Addr()), Port: ap.Port()}, ipv4.ProtocolNumber)
}

func TestTCP(t *testing.T) {
	gateway, inside := pair(t, SandboxAddr)
	if c, err := dialFrom(t.Context(), inside, "203.0.113.10:80"); err == nil {
		c.Close()
		t.Error("a connection came about without a handler")
	}
	h := &seen{allow: true}
	gateway.SetHandler(h)
	c, err := dialFrom(t.Context(), inside, "203.0.113.10:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB: more than is buffered
	go func() {
		_, _ = c.Write(want)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("echoed %d bytes of %d, %v", len(got), len(want), err)
	}
	gateway.SetHandler(&seen{})
	if _, err := dialFrom(t.Context(), inside, "203.0.113.10:443"); err == nil || !bytes.Contains([]byte(err.Error()), []byte("refused")) {
		t.Errorf("dial of what is refused: %v", err)
	}
	if got := fmt.Sprint(h.all()); got != "[tcp 203.0.113.10:443]" {
		t.Errorf("the handler was asked %s", got)
	}
}

func TestResetByLinger(t *testing.T) {
	gateway, inside := pair(t, SandboxAddr)
	gateway.SetHandler(handlerFunc(func(accept func() (net.Conn, error)) {
		c, err := accept()
		if err != nil {
			t.Error(err)
			return
		}
		if err := c.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
			t.Error(err)
		}
		c.Close()
	}))
	c, err := dialFrom(t.Context(), inside, "203.0.113.10:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("read %v, want a reset", err)
	}
	// The connection is discounted a moment after it is closed.
	for end := time.Now().Add(time.Minute); gateway.connections.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a connection that was closed is counted as open")
		}
	}
}

type handlerFunc func(accept func() (net.Conn, error))

func (f handlerFunc) TCP(r Request)              { f(r.Accept) }
func (handlerFunc) UDP(r Request)                { r.Reject() }
func (handlerFunc) Ping(netip.Addr, []byte) bool { return false }

func TestUDP(t *testing.T) {
	gateway, inside := pair(t, SandboxAddr)
	ask := func(to string) (string, error) {
		ap := netip.MustParseAddrPort(to)
		c, err := gonet.DialUDP(inside, nil, &tcpip.FullAddress{NIC: 1, Addr: address(ap.Addr()), Port: ap.Port()}, ipv4.ProtocolNumber)
		if err != nil {
			return "", err
		}
		defer c.Close()
		b := make([]byte, 100)
		// An error does not wake the reader.
		for range 600 {
			if _, err := c.Write([]byte("hello")); err != nil {
				return "", err
			}
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			n, err := c.Read(b)
			if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
				return string(b[:n]), err
			}
		}
		return "", errors.New("nothing came back")
	}
	if _, err := ask("203.0.113.10:53"); err == nil || !bytes.Contains([]byte(err.Error()), []byte("refused")) {
		t.Errorf("without a handler: %v, want port unreachable", err)
	}
	h := &seen{allow: true}
	gateway.SetHandler(h)
	if got, err := ask("203.0.113.10:53"); got != "hello" || err != nil {
		t.Errorf("echo: %q, %v", got, err)
	}
	own, err := gateway.ListenUDP(53)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	go func() {
		b := make([]byte, 100)
		n, from, err := own.ReadFrom(b)
		if err == nil {
			_, _ = own.WriteTo(append(b[:n], '!'), from)
		}
	}()
	if got, err := ask("169.254.77.1:53"); got != "hello!" || err != nil {
		t.Errorf("echo of the gateway: %q, %v", got, err)
	}
}

// ping sends an echo request and reports whether the reply came.
func ping(t *testing.T, s *stack.Stack, to netip.Addr, wait time.Duration) bool {
	t.Helper()
	var wq waiter.Queue
	ep, err := s.NewEndpoint(icmp.ProtocolNumber4, ipv4.ProtocolNumber, &wq)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	entry, ch := waiter.NewChannelEntry(waiter.ReadableEvents)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if err := ep.Bind(tcpip.FullAddress{}); err != nil {
		t.Fatal(err)
	}
	request := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize+4))
	request.SetType(header.ICMPv4Echo)
	copy(request[header.ICMPv4MinimumSize:], "ping")
	if _, err := ep.Write(bytes.NewReader(request), tcpip.WriteOptions{To: &tcpip.FullAddress{Addr: address(to)}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ch:
	case <-time.After(wait):
		return false
	}
	var b bytes.Buffer
	res, err := ep.Read(&b, tcpip.ReadOptions{NeedRemoteAddr: true})
	return err == nil && res.RemoteAddr.Addr == address(to) && bytes.HasSuffix(b.Bytes(), []byte("ping"))
}

func TestPing(t *testing.T) {
	gateway, inside := pair(t, SandboxAddr)
	other := netip.MustParseAddr("203.0.113.10")
	if !ping(t, inside, GatewayAddr, patience) {
		t.Error("the gateway does not answer")
	}
	if ping(t, inside, other, time.Second) {
		t.Error("an address answers without a handler")
	}
	h := &seen{allow: true}
	gateway.SetHandler(h)
	if !ping(t, inside, other, patience) {
		t.Error("an address that is allowed does not answer")
	}
	if got := fmt.Sprint(h.all()); got != "[ping 203.0.113.10 ping]" {
		t.Errorf("the handler was asked %s", got)
	}
	gateway.SetHandler(&seen{})
	if ping(t, inside, other, time.Second) {
		t.Error("an address that is denied answers")
	}
}

// TestForeignSource is an attack: root in the sandbox takes another address, to
// impersonate others or to hide.
func TestForeignSource(t *testing.T) {
	for _, addr := range []string{"169.254.77.1", "169.254.77.3", "10.0.0.7", "203.0.113.99", "127.0.0.1"} {
		gateway, inside := pair(t, netip.MustParseAddr(addr))
		h := &seen{allow: true}
		gateway.SetHandler(h)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if c, err := gonet.DialContextTCP(ctx, inside, tcpip.FullAddress{NIC: 1, Addr: address(netip.MustParseAddr("203.0.113.10")), Port: 80}, ipv4.ProtocolNumber); err == nil {
			c.Close()
			t.Errorf("%s: connected", addr)
		}
		cancel()
		if got := h.all(); len(got) != 0 {
			t.Errorf("%s: the handler was asked %v", addr, got)
		}
	}
}

func TestDial(t *testing.T) {
	gateway, inside := pair(t, SandboxAddr)
	if _, err := gateway.Dial(t.Context(), 81); !errors.Is(err, ErrRefused) {
		t.Errorf("dial of a port where nothing listens: %v, want ErrRefused", err)
	}
	l, err := gonet.ListenTCP(inside, tcpip.FullAddress{Addr: address(SandboxAddr), Port: 80}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.WriteString(c, "hi")
			c.Close()
		}
	}()
	c, err := gateway.Dial(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "hi" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}
