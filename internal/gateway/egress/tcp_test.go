package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/sandbox"
)

func echoServer(c net.Conn) { _, _ = io.Copy(c, c) }

func TestOpenPolicyCarriesAndRecords(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.address("echo.example", publicAddr)
	in.listen(publicAddr+":7", echoServer)
	in.lookup("echo.example")
	c := in.mustConnect(publicAddr + ":7")
	msg := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	go func() { _, _ = c.Write(msg); _ = c.CloseWrite() }()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, msg) {
		t.Fatalf("got %d bytes, %v; want %d back", len(got), err, len(msg))
	}
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection && !e.Open })
	if e.SandboxID != "sbx_test" || e.Host != "echo.example" || e.Address != publicAddr || e.Port != 7 || e.Verdict != sandbox.NetworkAllowed ||
		e.Match != sandbox.MatchDefault || e.Rule != "preset open" || e.BytesOut != int64(len(msg)) || e.BytesIn != int64(len(msg)) || e.Connection == 0 {
		t.Errorf("recorded as %+v", e)
	}
	d := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkDNS })
	if d.Host != "echo.example" || d.Question != "A" || !slices.Equal(d.Answers, []string{publicAddr}) || d.Verdict != sandbox.NetworkAllowed {
		t.Errorf("recorded as %+v", d)
	}
}

// TestHalfClose has a server that still sends after the sandbox has finished, and vice
// versa.
func TestHalfClose(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.listen(publicAddr+":7", func(c net.Conn) {
		all, _ := io.ReadAll(c) // until the sandbox has finished
		_, _ = c.Write(append([]byte("got "), all...))
	})
	in.listen(publicAddr+":8", func(c net.Conn) {
		_, _ = c.Write([]byte("mine"))
		_ = c.(*net.TCPConn).CloseWrite()
		all, _ := io.ReadAll(c)
		in.record(sandbox.NetworkEvent{Kind: "test", Host: string(all)})
	})
	c := in.mustConnect(publicAddr + ":7")
	_, _ = c.Write([]byte("hello"))
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "got hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	c = in.mustConnect(publicAddr + ":8")
	if got, err := io.ReadAll(c); string(got) != "mine" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, _ = c.Write([]byte("late"))
	c.Close()
	in.event(func(e sandbox.NetworkEvent) bool { return e.Host == "late" })
}

func TestRefusedConnectionIsRefused(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	if _, err := in.connect(publicAddr + ":81"); err == nil {
		t.Error("connected to where nothing listens")
	}
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection })
	if e.Verdict != sandbox.NetworkFailed || e.Reason != "connection refused" {
		t.Errorf("recorded as %+v", e)
	}
}

func TestDeniedAddressIsReset(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{DenyOut: []string{publicAddr}})
	in.listen(publicAddr+":80", echoServer)
	if _, err := in.connect(publicAddr + ":80"); err == nil {
		t.Error("connected to a denied address")
	}
	if e := in.blocked(sandbox.MatchCIDR); e.Rule != "deny_out "+publicAddr || e.Reason == "" {
		t.Errorf("recorded as %+v", e)
	}
	if d := in.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

// Attack: connect directly to an address under a policy by names, without ever asking for
// the name and without showing one.
func TestDirectAddressUnderAllowList(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.listen(otherAddr+":22", echoServer)
	c := in.mustConnect(otherAddr + ":22") // accepted to see its first bytes
	_, _ = c.Write([]byte("SSH-2.0-x\r\n"))
	if !closedByGateway(c) {
		t.Error("the connection goes on")
	}
	in.blocked(sandbox.MatchCIDR)
	if d := in.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

// Attack: claim an allowed server name on a connection to the attacker's address. The
// name's own server answers.
func TestServerNameSpoof(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.secureWeb(publicAddr+":443", "good.example")
	in.secureWeb(otherAddr+":443", "evil.example")
	got, err := reached(in.mustConnect(otherAddr+":443"), "good.example")
	if err != nil || got != "good.example" {
		t.Errorf("reached %q, %v; want good.example", got, err)
	}
	if d := in.dials(); !slices.Equal(d, []string{publicAddr + ":443"}) {
		t.Errorf("dialled %v, want only the name's own address", d)
	}
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection })
	if e.Host != "good.example" || e.Address != publicAddr || e.Match != sandbox.MatchDomain || e.Rule != "allow_out good.example" {
		t.Errorf("recorded as %+v", e)
	}
}

// Attack: resolve an allowed name, connect to its address, and name a server
// there that is not allowed.
func TestForeignServerNameAtAllowedAddress(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.address("evil.example", publicAddr)
	in.secureWeb(publicAddr+":443", "evil.example")
	in.lookup("good.example")
	c := in.mustConnect(publicAddr + ":443")
	if got, err := reached(c, "evil.example"); err == nil {
		t.Errorf("reached %q", got)
	}
	e := in.blocked(sandbox.MatchCIDR)
	if e.Host != "evil.example" || e.Rule != "deny_out 0.0.0.0/0" {
		t.Errorf("recorded as %+v", e)
	}
	if slices.Contains(in.questions(), "evil.example") {
		t.Error("the denied name was looked up")
	}
}

// Attack: wait until the gateway takes the connection for one on which the server speaks
// first, as the address of an allowed name permits, and only then send the ClientHello
// for another name.
func TestLateServerName(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.secureWeb(publicAddr+":443", "evil.example")
	in.lookup("good.example")
	c := in.mustConnect(publicAddr + ":443")
	for end := time.Now().Add(patience); len(in.dials()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the gateway does not dial the server")
		}
	}
	if got, err := reached(c, "evil.example"); err == nil {
		t.Errorf("reached %q", got)
	}
	in.blocked(sandbox.MatchCIDR)
}

// Attack: the same, with a server of the attacker's choice that speaks first to make the
// gateway pass the bytes.
func TestServerNameAfterTheServerSpoke(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	got := make(chan byte, 1)
	in.listen(publicAddr+":443", func(c net.Conn) {
		_, _ = c.Write([]byte("220 hello\r\n"))
		b := make([]byte, 1)
		if n, _ := c.Read(b); n > 0 {
			got <- b[0]
		}
	})
	in.lookup("good.example")
	c := in.mustConnect(publicAddr + ":443")
	if _, err := c.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if _, err := reached(c, "evil.example"); err == nil {
		t.Error("the handshake went through")
	}
	in.blocked(sandbox.MatchProtocol)
	select {
	case <-got:
		t.Error("the server got the ClientHello")
	default:
	}
}

func TestServerThatSpeaksFirstByItsPinnedAddress(t *testing.T) {
	in := newInternet(t, strict("mail.example"))
	in.address("mail.example", publicAddr)
	in.listen(publicAddr+":25", func(c net.Conn) {
		_, _ = c.Write([]byte("220 mail.example\r\n"))
		line := make([]byte, 64)
		n, _ := c.Read(line)
		_, _ = c.Write(line[:n])
	})
	in.lookup("mail.example")
	c := in.mustConnect(publicAddr + ":25")
	hello := make([]byte, 18)
	if _, err := io.ReadFull(c, hello); err != nil || string(hello) != "220 mail.example\r\n" {
		t.Fatalf("got %q, %v", hello, err)
	}
	_, _ = c.Write([]byte("EHLO me\r\n"))
	if got, _ := io.ReadAll(c); string(got) != "EHLO me\r\n" {
		t.Errorf("got %q back", got)
	}
	c.Close()
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection && !e.Open })
	if e.Host != "mail.example" || e.Match != sandbox.MatchDomain {
		t.Errorf("recorded as %+v", e)
	}
}

// clientHello returns the first bytes of a handshake.
func clientHello(t *testing.T, conf *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	conf.InsecureSkipVerify = true
	go func() { _ = tls.Client(a, conf).Handshake(); a.Close() }()
	buf := make([]byte, maxSniff)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// Attack: TLS without a server name, to hide it.
func TestNoServerName(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.secureWeb(publicAddr+":443", "good.example")
	in.secureWeb(otherAddr+":443", "evil.example")
	if got, err := reached(in.mustConnect(otherAddr+":443"), ""); err == nil {
		t.Errorf("reached %q, whose address no allowed name has", got)
	}
	in.blocked(sandbox.MatchCIDR)
	in.lookup("good.example")
	if got, err := reached(in.mustConnect(publicAddr+":443"), ""); err != nil || got != "good.example" {
		t.Errorf("reached %q, %v; want good.example, whose address it is", got, err)
	}
}

// splitHello spreads a ClientHello over records of n bytes.
func splitHello(hello []byte, n int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		body = body[len(part):]
		out = append(out, 22, 3, 1, byte(len(part)>>8), byte(len(part)))
		out = append(out, part...)
	}
	return out
}

// Attack: spread the ClientHello over many records and segments, so that a filter that
// examines only the first sees no name.
func TestFragmentedClientHello(t *testing.T) {
	for _, size := range []int{1, 7, 100} {
		in := newInternet(t, strict("good.example"))
		in.secureWeb(otherAddr+":443", "evil.example")
		c := in.mustConnect(otherAddr + ":443")
		for _, b := range splitHello(clientHello(t, &tls.Config{ServerName: "evil.example"}), size) {
			if _, err := c.Write([]byte{b}); err != nil {
				break
			}
		}
		if !closedByGateway(c) {
			t.Errorf("records of %d bytes: the connection goes on", size)
		}
		if e := in.blocked(sandbox.MatchCIDR); e.Host != "evil.example" {
			t.Errorf("records of %d bytes: recorded as %+v", size, e)
		}
	}
}

// Attack: hide the server name in an encrypted ClientHello inside one that shows an
// allowed name, whose server decrypts it.
func TestEncryptedClientHello(t *testing.T) {
	hello := withExtension(clientHello(t, &tls.Config{ServerName: "good.example"}), extensionECH, make([]byte, 80))
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.listen(publicAddr+":443", echoServer)
	c := in.mustConnect(publicAddr + ":443")
	_, _ = c.Write(hello)
	if !closedByGateway(c) {
		t.Error("the connection goes on")
	}
	if e := in.blocked(sandbox.MatchProtocol); e.Host != "good.example" {
		t.Errorf("recorded as %+v", e)
	}
	// Where names do not decide, it is allowed.
	in.set(sandbox.NetworkPolicy{})
	c = in.mustConnect(publicAddr + ":443")
	_, _ = c.Write(hello)
	if _, err := io.ReadFull(c, make([]byte, len(hello))); err != nil {
		t.Errorf("under an open policy: %v", err)
	}
}

// withExtension adds an extension at the end of a ClientHello.
func withExtension(hello []byte, typ uint16, data []byte) []byte {
	ext := append([]byte{byte(typ >> 8), byte(typ), byte(len(data) >> 8), byte(len(data))}, data...)
	b := append(slices.Clone(hello), ext...)
	grow := func(at, size, n int) {
		v := 0
		for i := range size {
			v = v<<8 | int(b[at+i])
		}
		v += n
		for i := size - 1; i >= 0; i-- {
			b[at+i] = byte(v)
			v >>= 8
		}
	}
	grow(3, 2, len(ext))
	grow(6, 3, len(ext))
	at := 5 + 4 + 34
	at += 1 + int(b[at])                   // session
	at += 2 + int(b[at])<<8 + int(b[at+1]) // suites
	at += 1 + int(b[at])                   // compression
	grow(at, 2, len(ext))                  // extensions
	return b
}

// Attack: two server names in one ClientHello, of which the filter uses one and the
// server the other.
func TestTwoServerNames(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.listen(publicAddr+":443", echoServer)
	name := "evil.example"
	data := append([]byte{0, byte(len(name) + 3), 0, 0, byte(len(name))}, name...)
	c := in.mustConnect(publicAddr + ":443")
	_, _ = c.Write(withExtension(clientHello(t, &tls.Config{ServerName: "good.example"}), extensionServerName, data))
	if !closedByGateway(c) {
		t.Error("the connection goes on")
	}
	in.blocked(sandbox.MatchProtocol)
}

// Attack: a name of the attacker's own that resolves to an internal address, either at
// once or at the second lookup.
func TestRebinding(t *testing.T) {
	in := newInternet(t, strict("*.attacker.example"))
	in.g.speakWait = patience // the client speaks first
	for i, addr := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", hostAddr.String(), "100.100.100.200", "0.0.0.0", "198.19.0.1"} {
		name := string(rune('a'+i)) + ".attacker.example"
		in.address(name, addr)
		in.listen(addr+":443", echoServer)
		if got := in.lookup(name); len(got) != 0 {
			t.Errorf("%s resolves to %v", name, got)
		}
		c := in.mustConnect(publicAddr + ":443")
		if got, err := reached(c, name); err == nil {
			t.Errorf("%s: reached %q", name, got)
		}
	}
	if d := in.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
	in.blocked(sandbox.MatchInternal)
	// One public address among them does not open the others.
	in.address("mix.attacker.example", "127.0.0.1", publicAddr)
	in.secureWeb(publicAddr+":443", "mix.attacker.example")
	if got := in.lookup("mix.attacker.example"); !slices.Equal(got, []string{publicAddr}) {
		t.Errorf("resolves to %v, want %s alone", got, publicAddr)
	}
	if _, err := reached(in.mustConnect(publicAddr+":443"), "mix.attacker.example"); err != nil {
		t.Error(err)
	}
	if d := in.dials(); !slices.Equal(d, []string{publicAddr + ":443"}) {
		t.Errorf("dialled %v", d)
	}
}

// Attack: a redirect of an allowed server to the metadata address.
func TestMetadataIsClosed(t *testing.T) {
	for _, p := range []sandbox.NetworkPolicy{{}, rules("", "allow *"), strict("169.254.0.0/16")} {
		in := newInternet(t, p)
		in.web("169.254.169.254:80", "metadata")
		if _, err := in.connect("169.254.169.254:80"); err == nil {
			t.Errorf("%+v: connected", p)
		}
		if _, err := in.connect("[::ffff:169.254.169.254]:80"); err == nil {
			t.Errorf("%+v: connected by IPv6", p)
		}
		in.blocked(sandbox.MatchInternal)
	}
}

// Attack: reach resolvers that know other names, to tunnel through them or to
// learn addresses past the gateway.
func TestOtherResolvers(t *testing.T) {
	in := newInternet(t, rules("", "deny evil.example"))
	in.address("dns.google", "8.8.8.8")
	for _, to := range []string{"8.8.8.8:53", "8.8.8.8:853", otherAddr + ":53", otherAddr + ":853"} {
		in.listen(to, echoServer)
		c, err := in.connect(to)
		if err == nil {
			_, _ = c.Write([]byte("\x00\x10some question.."))
			if got, _ := io.ReadAll(c); len(got) > 0 {
				t.Errorf("%s answered", to)
			}
		}
		if _, err := in.flow(to); err == nil {
			t.Errorf("%s: UDP was accepted", to)
		}
	}
	in.secureWeb("8.8.8.8:443", "dns.google")
	if _, err := reached(in.mustConnect("8.8.8.8:443"), "dns.google"); err == nil {
		t.Error("reached dns.google over HTTPS")
	}
	if _, err := reached(in.mustConnect("8.8.8.8:443"), ""); err == nil {
		t.Error("reached 8.8.8.8 over HTTPS without a name")
	}
	in.blocked(sandbox.MatchProtocol)
	// Where names do not decide, or a rule names it, it is allowed.
	in.set(rules("", "allow dns.google", "deny evil.example"))
	if _, err := reached(in.mustConnect("8.8.8.8:443"), "dns.google"); err != nil {
		t.Errorf("with a rule for it: %v", err)
	}
}

func TestPolicyChangeClosesConnections(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.address("good.example", publicAddr)
	in.listen(publicAddr+":7", echoServer)
	in.listen(otherAddr+":7", echoServer)
	in.lookup("good.example")
	good, other := in.mustConnect(publicAddr+":7"), in.mustConnect(otherAddr+":7")
	ping := func(c net.Conn) error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	for _, c := range []net.Conn{good, other} {
		if err := ping(c); err != nil {
			t.Fatal(err)
		}
	}
	in.set(strict("good.example"))
	if err := ping(good); err != nil {
		t.Errorf("the connection that is still allowed: %v", err)
	}
	if err := ping(other); err == nil {
		t.Error("the connection that is denied now goes on")
	}
	e := in.blocked(sandbox.MatchCIDR)
	if e.Address != otherAddr || e.BytesOut != 1 || e.BytesIn != 1 {
		t.Errorf("recorded as %+v", e)
	}
	in.set(rules("none"))
	if err := ping(good); err == nil {
		t.Error("the connection goes on under the preset none")
	}
}

// Attack: open a connection to the attacker's address while the policy is open,
// with the server name of a host that will be allowed.
func TestClaimedNameEndsWithPolicy(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.address("good.example", publicAddr)
	in.listen(otherAddr+":443", echoServer)
	in.lookup("good.example")
	c := in.mustConnect(otherAddr + ":443")
	hello := clientHello(t, &tls.Config{ServerName: "good.example"})
	_, _ = c.Write(hello)
	if _, err := io.ReadFull(c, make([]byte, len(hello))); err != nil {
		t.Fatal(err)
	}
	in.set(strict("good.example"))
	if !closedByGateway(c) {
		t.Error("the connection goes on")
	}
}

func TestLimits(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{MaxConnections: 3, ConnectionsPerSecond: 5})
	in.listen(publicAddr+":7", echoServer)
	for range 3 {
		in.mustConnect(publicAddr + ":7")
	}
	if _, err := in.connect(publicAddr + ":7"); err == nil {
		t.Error("a fourth connection was accepted")
	}
	if e := in.blocked(sandbox.MatchLimit); e.Rule != "max_connections" {
		t.Errorf("recorded as %+v", e)
	}
	for range 20 {
		_, _ = in.connect(publicAddr + ":7")
	}
	in.event(func(e sandbox.NetworkEvent) bool { return e.Rule == "connections_per_second" })
	if n := len(in.g.allFlows()); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

func TestEverythingIsRefusedBeforeSet(t *testing.T) {
	g, err := New(Config{GatewayAddr: gatewayAddr})
	if err != nil {
		t.Fatal(err)
	}
	in := &internet{t: t, g: g}
	if _, err := in.connect(publicAddr + ":80"); err == nil {
		t.Error("TCP was accepted")
	}
	if _, err := in.flow(publicAddr + ":80"); err == nil {
		t.Error("UDP was accepted")
	}
	if m := in.ask("example.com", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeRefused {
		t.Errorf("the resolver answered %v", m.RCode)
	}
	if err := g.Ping(t.Context(), gatewayAddr.Next(), nil); err == nil {
		t.Error("a ping was answered")
	}
}

func TestCancelledHandlerEndsItsConnection(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.listen(publicAddr+":7", echoServer)
	ctx, cancel := context.WithCancel(t.Context())
	ours, theirs := pair(t)
	defer theirs.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.g.HandleTCP(ctx, Request{Destination: destination(Request{Destination: mustAddrPort(publicAddr + ":7")}),
			Accept: func() (net.Conn, error) { return ours, nil }, Reject: func() {}})
	}()
	_, _ = theirs.Write([]byte("x"))
	_, _ = io.ReadFull(theirs, make([]byte, 1))
	cancel()
	<-done
}
