package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// recorder is an interceptor that records what it is given, and passes bytes on.
type recorder struct {
	mu  sync.Mutex
	got []string // guarded by mu
	to  string   // the host to dial; if empty, the connection's name
}

func (r *recorder) Intercept(ctx context.Context, c *Intercepted) error {
	r.mu.Lock()
	r.got = append(r.got, fmt.Sprintf("%t %s %s", c.TLS, c.Name, c.Destination))
	host := r.to
	r.mu.Unlock()
	if host == "" {
		host = c.Name
	}
	remote, err := c.Dial(ctx, host)
	if err != nil {
		return err
	}
	defer remote.Close()
	c.Record(sandbox.NetworkEvent{Kind: sandbox.NetworkRequest, Protocol: "tcp", Host: host, Secret: "key", Verdict: sandbox.NetworkAllowed})
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(c.Conn, remote); c.Conn.Close() })
	_, _ = io.Copy(remote, c.Conn)
	_ = remote.(interface{ CloseWrite() error }).CloseWrite()
	wg.Wait()
	return nil
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func intercepted(r *recorder) func(*Config, *Network) {
	return func(_ *Config, n *Network) { n.Interceptor = r }
}

func TestInterceptorGetsTLSAndHTTP(t *testing.T) {
	for name, p := range map[string]sandbox.NetworkPolicy{"open": {}, "strict": strict("good.example")} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			in := newInternet(t, p, intercepted(r))
			in.address("good.example", publicAddr)
			in.secureWeb(publicAddr+":443", "good.example")
			in.secureWeb(otherAddr+":443", "evil.example")
			in.web(publicAddr+":80", "good")
			c := in.mustConnect(otherAddr + ":443") // the name decides where it goes
			if got, err := reached(c, "good.example"); err != nil || got != "good.example" {
				t.Errorf("reached %q, %v", got, err)
			}
			c.Close()
			if code, body := say(t, in.mustConnect(publicAddr+":80"), "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"); code != 200 {
				t.Errorf("got %d %q", code, body)
			}
			want := []string{"true good.example " + otherAddr + ":443", "false good.example " + publicAddr + ":80"}
			if got := r.seen(); !slices.Equal(got, want) {
				t.Errorf("it was given %q, want %q", got, want)
			}
			e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkRequest })
			if e.SandboxID != "sbx_test" || e.Connection == 0 || e.Address == "" || e.Port != 443 || e.Time.IsZero() {
				t.Errorf("recorded as %+v", e)
			}
			conn := in.event(func(e sandbox.NetworkEvent) bool {
				return e.Kind == sandbox.NetworkConnection && e.Port == 443 && !e.Open
			})
			if conn.Connection != e.Connection || conn.Host != "good.example" || conn.BytesIn == 0 || conn.BytesOut == 0 {
				t.Errorf("recorded as %+v", conn)
			}
		})
	}
}

// Attack: an interceptor that was tricked into dialling a host that is not allowed is
// refused the connection, and a name that is not allowed is refused before a certificate
// is made for it.
func TestInterceptorIsJudged(t *testing.T) {
	r := &recorder{to: "evil.example"}
	in := newInternet(t, strict("good.example"), intercepted(r))
	in.address("good.example", publicAddr)
	in.address("evil.example", otherAddr)
	in.secureWeb(publicAddr+":443", "good.example")
	in.secureWeb(otherAddr+":443", "evil.example")
	if got, err := reached(in.mustConnect(publicAddr+":443"), "good.example"); err == nil {
		t.Errorf("reached %q", got)
	}
	if got, err := reached(in.mustConnect(otherAddr+":443"), "evil.example"); err == nil {
		t.Errorf("reached %q", got)
	}
	if got := r.seen(); len(got) != 1 {
		t.Errorf("it was given %q, want the first alone", got)
	}
	if d := in.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

// Attack: a plain HTTP request for a host whose name the sandbox maps to an address of
// its own, to be sent the secret of that name.
func TestPlainHTTPIsDialledByName(t *testing.T) {
	r := &recorder{}
	in := newInternet(t, sandbox.NetworkPolicy{}, intercepted(r))
	in.g.speakWait = patience // or a late request goes to its address
	in.web(otherAddr+":80", "evil")
	c := in.mustConnect(otherAddr + ":80")
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.unknown.example\r\n\r\n")
	_ = c.CloseWrite()
	if got, _ := io.ReadAll(c); len(got) > 0 {
		t.Errorf("got %q", got)
	}
	if d := in.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

func TestQUICIsRefusedWithAnInterceptor(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{}, intercepted(&recorder{}))
	if _, err := in.flow(publicAddr + ":443"); err == nil {
		t.Error("QUIC was accepted")
	}
	in.blocked(sandbox.MatchProtocol)
}

func TestServerThatSpeaksFirstWithAnInterceptor(t *testing.T) {
	r := &recorder{}
	in := newInternet(t, sandbox.NetworkPolicy{}, intercepted(r))
	in.listen(publicAddr+":22", func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-x\r\n")); echoServer(c) })
	c := in.mustConnect(publicAddr + ":22")
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "SSH-2.0-x\r\n" || len(r.seen()) > 0 {
		t.Errorf("got %q, %v; intercepted %v", line, err, r.seen())
	}
}

// team implements the other sandboxes.
type team struct {
	mu    sync.Mutex
	asked []string
}

func (p *team) Dial(_ context.Context, name string, port uint16) (net.Conn, error) {
	p.mu.Lock()
	p.asked = append(p.asked, fmt.Sprintf("%s:%d", name, port))
	p.mu.Unlock()
	if name != "my-db.v2" {
		return nil, errors.New("no such sandbox")
	}
	a, b := net.Pipe()
	go func() { defer b.Close(); echoServer(b) }()
	return a, nil
}

func TestPeers(t *testing.T) {
	peers := &team{}
	in := newInternet(t, rules("none", "allow sandbox:my-db.v2 tcp 5432", "allow sandbox:gone"), func(c *Config, _ *Network) { c.Peers = peers })
	addrs := in.lookup("my-db.v2.sandbox")
	if len(addrs) != 1 {
		t.Fatalf("resolves to %v", addrs)
	}
	c := in.mustConnect(addrs[0] + ":5432")
	_, _ = c.Write([]byte("hello"))
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	if _, err := in.connect(addrs[0] + ":22"); err == nil {
		t.Error("another port was reached")
	}
	if got := in.lookup("other.sandbox"); len(got) > 0 {
		t.Errorf("a sandbox that no rule allows resolves to %v", got)
	}
	gone := in.lookup("gone.sandbox")
	if _, err := in.connect(gone[0] + ":80"); err == nil {
		t.Error("a sandbox that is gone was reached")
	}
	// Attack: an address of the synthetic range that was never given out.
	if _, err := in.connect("198.19.200.200:5432"); err == nil {
		t.Error("an address without a name was reached")
	}
	e := in.blocked(sandbox.MatchSandbox)
	if e.Kind != sandbox.NetworkConnection && e.Kind != sandbox.NetworkDNS {
		t.Errorf("recorded as %+v", e)
	}
	if want := []string{"my-db.v2:5432", "gone:80"}; !slices.Equal(peers.asked, want) {
		t.Errorf("asked for %v, want %v", peers.asked, want)
	}
	if got := in.questions(); len(got) > 0 {
		t.Errorf("others were asked for %v", got)
	}
	in.set(rules("none"))
	if !closedByGateway(c) {
		t.Error("the connection outlives its rule")
	}
}

func TestPing(t *testing.T) {
	in := newInternet(t, rules("", "allow 127.0.0.1 icmp", "deny good.example"))
	if err := in.g.Ping(t.Context(), gatewayAddr, nil); err != nil {
		t.Errorf("the gateway: %v", err)
	}
	if err := in.g.Ping(t.Context(), netip.MustParseAddr("10.0.0.1"), nil); err == nil {
		t.Error("a private address answered")
	}
	in.blocked(sandbox.MatchInternal)
	c, _, err := pingSocket(netip.MustParseAddr("127.0.0.1"))
	needs.NoError(t, err) // some machines allow no one to ping
	c.Close()
	if err := in.g.Ping(t.Context(), netip.MustParseAddr("127.0.0.1"), []byte("payload")); err != nil {
		t.Errorf("loopback, which a rule allows: %v", err)
	}
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Protocol == "icmp" && e.Verdict == sandbox.NetworkAllowed })
	if e.BytesIn != 7 || e.BytesOut != 7 || e.Port != 0 {
		t.Errorf("recorded as %+v", e)
	}
}

func TestNextAddressIsTried(t *testing.T) {
	in := newInternet(t, strict("good.example"))
	in.address("good.example", "198.51.100.77", publicAddr)
	in.secureWeb(publicAddr+":443", "good.example")
	if got, err := reached(in.mustConnect("198.51.100.77:443"), "good.example"); err != nil || got != "good.example" {
		t.Errorf("reached %q, %v", got, err)
	}
	if d := in.dials(); !slices.Equal(d, []string{"198.51.100.77:443", publicAddr + ":443"}) {
		t.Errorf("dialled %v", d)
	}

	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Kind == sandbox.NetworkConnection })
	if e.Verdict != sandbox.NetworkAllowed || e.Address != publicAddr {
		t.Errorf("recorded as %+v", e)
	}
}

func TestAddressRuleAndNameRule(t *testing.T) {
	in := newInternet(t, strict("good.example", otherAddr))
	in.secureWeb(otherAddr+":443", "other.example")
	// The address is allowed under any name: nothing is looked up.
	if got, err := reached(in.mustConnect(otherAddr+":443"), "other.example"); err != nil || got != "other.example" {
		t.Errorf("reached %q, %v", got, err)
	}
	if got := in.questions(); len(got) > 0 {
		t.Errorf("asked for %v", got)
	}
}

func TestBytesPerSecond(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{BytesPerSecond: 1 << 20})
	in.listen(publicAddr+":7", echoServer)
	c := in.mustConnect(publicAddr + ":7")
	msg := bytes.Repeat([]byte("x"), 3<<20)
	start := time.Now()
	go func() { _, _ = c.Write(msg); _ = c.CloseWrite() }()
	got, err := io.ReadAll(c)
	if err != nil || len(got) != len(msg) {
		t.Fatalf("got %d bytes, %v", len(got), err)
	}
	// A burst of one second's bytes is free; the rest takes two.
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("3 MiB took %v at 1 MiB a second", took)
	}
}

func TestManyConnections(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{MaxConnections: 500, ConnectionsPerSecond: sandbox.MaxConnectionsPerSecond})
	in.listen(publicAddr+":7", echoServer)
	var wg sync.WaitGroup
	for range 300 {
		c := in.mustConnect(publicAddr + ":7")
		wg.Go(func() {
			defer c.Close()
			msg := bytes.Repeat([]byte("y"), 100<<10)
			go func() { _, _ = c.Write(msg); _ = c.CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, msg) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	for i := range 20 { // rules change under load
		in.set(sandbox.NetworkPolicy{MaxConnections: 500, ConnectionsPerSecond: sandbox.MaxConnectionsPerSecond, DenyOut: []string{fmt.Sprintf("203.0.113.%d", i)}})
	}
	wg.Wait()
	in.idle()
}

// After two concurrent Sets, one of them is in force as a whole.
func TestSetIsSafeForConcurrentUse(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				in.set(strict(fmt.Sprintf("h%d.example", i)))
				_, _ = in.connect("10.0.0.1:80")
			}
		})
	}
	wg.Wait()
	if err := in.g.Set(Network{Policy: strict("*")}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("got %v, want invalid", err)
	}
	if got := in.lookup("a.example"); len(got) > 0 {
		t.Errorf("an invalid policy changed what is in force: %v", got)
	}
}

func TestIPv6Route(t *testing.T) {
	in := newInternet(t, strict("good.example"), func(c *Config, _ *Network) { c.IPv6 = true })
	six := netip.MustParseAddr("2001:db8::10")
	in.name("good.example", &dnsmessage.AAAAResource{AAAA: six.As16()})
	in.name("bad.good.example", &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("fd00:ec2::254").As16()})
	in.secureWeb("[2001:db8::10]:443", "good.example")
	if m := in.ask("good.example", dnsmessage.TypeAAAA); len(m.Answers) != 1 {
		t.Errorf("got %v", m)
	}
	if got, err := reached(in.mustConnect("[2001:db8::10]:443"), "good.example"); err != nil || got != "good.example" {
		t.Errorf("reached %q, %v", got, err)
	}
	in.set(strict("*.good.example"))
	if m := in.ask("bad.good.example", dnsmessage.TypeAAAA); len(m.Answers) > 0 {
		t.Errorf("got %v", m)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	// Attack: a redirect to an internal address, which a gateway that follows it
	// would fetch.
	in := newInternet(t, strict("good.example"))
	in.address("good.example", publicAddr)
	in.listen(publicAddr+":80", func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}
	})
	if code, _ := say(t, in.mustConnect(publicAddr+":80"), "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n"); code != 302 {
		t.Errorf("got %d, want the redirect itself", code)
	}
	if d := strings.Join(in.dials(), " "); d != publicAddr+":80" {
		t.Errorf("dialled %s", d)
	}
}
