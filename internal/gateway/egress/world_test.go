package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// patience is how long a test waits for something that must happen.
const patience = 2 * time.Minute

var (
	gatewayAddr = netip.MustParseAddr("169.254.77.1")
	dnsAddr     = netip.MustParseAddrPort("192.0.2.53:53")
)

// internet is the outside world of the tests: real servers on loopback, at the addresses
// that they claim, a DNS server, and the gateway between it and a sandbox.
type internet struct {
	t *testing.T
	g *Gateway

	mu      sync.Mutex
	servers map[string]string                // network and address → on loopback
	dialled []string                         // addresses, in order
	zone    map[string][]dnsmessage.Resource // by name and type
	asked   []string                         // names, in order
	events  []sandbox.NetworkEvent
}

func newInternet(t *testing.T, policy sandbox.NetworkPolicy, change ...func(*Config, *Network)) *internet {
	t.Helper()
	in := &internet{t: t, servers: map[string]string{}, zone: map[string][]dnsmessage.Resource{}}
	cfg := Config{GatewayAddr: gatewayAddr, Resolvers: []netip.AddrPort{dnsAddr}, Record: in.record, HostAddrs: testHost, Dialer: in,
		Logger: slog.New(slog.DiscardHandler)}
	n := Network{SandboxID: "sbx_test", Policy: policy}
	for _, c := range change {
		c(&cfg, &n)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Set(n); err != nil {
		t.Fatal(err)
	}
	in.g = g
	t.Cleanup(g.Close)
	in.serveDNS()
	return in
}

func (in *internet) set(p sandbox.NetworkPolicy) {
	in.t.Helper()
	if err := in.g.Set(Network{SandboxID: "sbx_test", Policy: p}); err != nil {
		in.t.Fatal(err)
	}
}

func (in *internet) record(e sandbox.NetworkEvent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.events = append(in.events, e)
}

// event waits for an event for which want returns true.
func (in *internet) event(want func(sandbox.NetworkEvent) bool) sandbox.NetworkEvent {
	in.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		in.mu.Lock()
		for _, e := range in.events {
			if want(e) {
				in.mu.Unlock()
				return e
			}
		}
		in.mu.Unlock()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.t.Fatalf("no such event among %+v", in.events)
	return sandbox.NetworkEvent{}
}

func (in *internet) blocked(match sandbox.NetworkMatch) sandbox.NetworkEvent {
	in.t.Helper()
	return in.event(func(e sandbox.NetworkEvent) bool { return e.Verdict == sandbox.NetworkBlocked && e.Match == match })
}

// DialContext implements [Dialer].
func (in *internet) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	in.mu.Lock()
	real, ok := in.servers[network+" "+address]
	if address != dnsAddr.String() {
		in.dialled = append(in.dialled, address)
	}
	in.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return (&net.Dialer{}).DialContext(ctx, network, real)
}

// listen puts a server on an address.
func (in *internet) listen(address string, serve func(net.Conn)) {
	in.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		in.t.Fatal(err)
	}
	in.at("tcp", address, l.Addr())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	in.t.Cleanup(func() { l.Close(); in.g.Close(); wg.Wait() })
}

func (in *internet) at(network, address string, real net.Addr) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.servers[network+" "+address] = real.String()
}

// web puts a plain HTTP server on an address. It answers with its name and the request.
func (in *internet) web(address, name string) {
	in.serveHTTP(address, nil, name)
}

// secureWeb is web over TLS, with a certificate for its name.
func (in *internet) secureWeb(address, name string) {
	in.serveHTTP(address, &tls.Config{Certificates: []tls.Certificate{certificate(in.t, name)}}, name)
}

func (in *internet) serveHTTP(address string, conf *tls.Config, name string) {
	in.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		in.t.Fatal(err)
	}
	in.at("tcp", address, l.Addr())
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s: %s %s host=%s body=%q", name, r.Method, r.RequestURI, r.Host, body)
	}), Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l) //nolint:errcheck // it is closed
	in.t.Cleanup(func() { s.Close() })
}

func certificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// name puts a record into the zone.
func (in *internet) name(name string, body dnsmessage.ResourceBody) {
	in.t.Helper()
	typ := map[string]dnsmessage.Type{"*dnsmessage.AResource": dnsmessage.TypeA, "*dnsmessage.AAAAResource": dnsmessage.TypeAAAA,
		"*dnsmessage.CNAMEResource": dnsmessage.TypeCNAME, "*dnsmessage.TXTResource": dnsmessage.TypeTXT,
		"*dnsmessage.HTTPSResource": dnsmessage.TypeHTTPS, "*dnsmessage.MXResource": dnsmessage.TypeMX}[fmt.Sprintf("%T", body)]
	in.mu.Lock()
	defer in.mu.Unlock()
	in.zone[name] = append(in.zone[name], dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET, TTL: 60}, Body: body})
}

func (in *internet) address(name string, addrs ...string) {
	in.t.Helper()
	for _, a := range addrs {
		in.name(name, &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()})
	}
}

func (in *internet) questions() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.asked...)
}

func (in *internet) dials() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.dialled...)
}

// serveDNS answers from the zone over UDP, and long answers over TCP.
func (in *internet) serveDNS() {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		in.t.Fatal(err)
	}
	in.at("udp", dnsAddr.String(), pc.LocalAddr())
	in.t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := in.zoneAnswer(buf[:n]); answer != nil {
				if len(answer) > udpAnswer {
					answer = append(answer[:2:2], answer[2]|2, answer[3], 0, 1, 0, 0, 0, 0, 0, 0)
					answer = append(answer, buf[12:n-11]...) // the question, without EDNS
				}
				pc.WriteTo(answer, from)
			}
		}
	}()
	in.listen(dnsAddr.String(), func(c net.Conn) {
		for {
			m, err := readTCPMessage(c)
			if err != nil {
				return
			}
			answer := in.zoneAnswer(m)
			c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		}
	})
}

func (in *internet) zoneAnswer(query []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	in.mu.Lock()
	in.asked = append(in.asked, name)
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	known := false
	for range 10 {
		next := ""
		for _, rr := range in.zone[name] {
			known = true
			if c, ok := rr.Body.(*dnsmessage.CNAMEResource); ok {
				next = strings.TrimSuffix(c.CNAME.String(), ".")
				out.Answers = append(out.Answers, rr)
			} else if rr.Header.Type == q.Type {
				out.Answers = append(out.Answers, rr)
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	in.mu.Unlock()
	if !known {
		out.RCode = dnsmessage.RCodeNameError
	}
	packed, err := out.Pack()
	if err != nil {
		in.t.Error(err)
	}
	return packed
}

// The sandbox's side.

// connect opens a connection as the sandbox does.
func (in *internet) connect(to string) (*net.TCPConn, error) {
	in.t.Helper()
	type end struct {
		c   net.Conn
		err error
	}
	ends := make(chan end, 1)
	r := Request{
		Source:      netip.MustParseAddrPort("169.254.77.2:40000"),
		Destination: netip.MustParseAddrPort(to),
		Accept: func() (net.Conn, error) {
			ours, theirs := pair(in.t)
			ends <- end{c: theirs}
			return ours, nil
		},
		Reject: func() { ends <- end{err: syscall.ECONNREFUSED} },
	}
	var wg sync.WaitGroup
	wg.Go(func() { in.g.HandleTCP(context.Background(), r) })
	in.t.Cleanup(wg.Wait)
	e := <-ends
	if e.err != nil {
		return nil, e.err
	}
	c := e.c.(*net.TCPConn)
	in.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c, nil
}

func (in *internet) mustConnect(to string) *net.TCPConn {
	in.t.Helper()
	c, err := in.connect(to)
	if err != nil {
		in.t.Fatalf("connect to %s: %v", to, err)
	}
	return c
}

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if a, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// flow opens a UDP flow as the sandbox does.
func (in *internet) flow(to string) (net.Conn, error) {
	in.t.Helper()
	type end struct {
		c   net.Conn
		err error
	}
	ends := make(chan end, 1)
	r := Request{Destination: netip.MustParseAddrPort(to), Accept: func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		ends <- end{c: theirs}
		return ours, nil
	}, Reject: func() { ends <- end{err: syscall.ECONNREFUSED} }}
	var wg sync.WaitGroup
	wg.Go(func() { in.g.HandleUDP(context.Background(), r) })
	in.t.Cleanup(wg.Wait)
	e := <-ends
	if e.c != nil {
		in.t.Cleanup(func() { e.c.Close() })
		_ = e.c.SetDeadline(time.Now().Add(patience))
	}
	return e.c, e.err
}

// ask sends a query to the gateway's resolver.
func (in *internet) ask(name string, typ dnsmessage.Type) dnsmessage.Message {
	in.t.Helper()
	q := dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}
	query, _, err := packQuery(q)
	if err != nil {
		in.t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(in.g.names.answer(in.t.Context(), query, "udp")); err != nil {
		in.t.Fatal(err)
	}
	return m
}

// lookup returns the addresses that the sandbox gets for a name.
func (in *internet) lookup(name string) []string {
	in.t.Helper()
	var addrs []string
	for _, a := range in.ask(name, dnsmessage.TypeA).Answers {
		if body, ok := a.Body.(*dnsmessage.AResource); ok {
			addrs = append(addrs, netip.AddrFrom4(body.A).String())
		}
	}
	return addrs
}

// reached does a TLS handshake with a server name and returns whose certificate it
// received.
func reached(c net.Conn, name string) (string, error) {
	t := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := t.Handshake(); err != nil {
		return "", err
	}
	return t.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// closedByGateway reports whether the gateway ended a connection.
func closedByGateway(c net.Conn) bool {
	_, err := io.ReadAll(c)
	return err == nil || !errors.Is(err, context.DeadlineExceeded) && !timedOut(err)
}

// idle waits until all connections have ended.
func (in *internet) idle() {
	for end := time.Now().Add(patience); len(in.g.allFlows()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			in.t.Fatalf("%d connections are not over", len(in.g.allFlows()))
		}
	}
}

func mustAddrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
