package egress

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sh/cove/sandbox"
)

func TestResolverAnswers(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.address("a.example", publicAddr, otherAddr)
	in.name("www.example", &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("cdn.example.")})
	in.name("cdn.example", &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("a.example.")})
	in.name("six.example", &dnsmessage.AAAAResource{AAAA: [16]byte{0x20, 1, 0xd, 0xb8, 15: 1}})
	for i := range 60 {
		in.name("many.example", &dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 100), fmt.Sprint(i)}})
		in.address("large.example", fmt.Sprintf("198.51.100.%d", i))
	}
	if got := in.lookup("a.example"); !slices.Equal(got, []string{publicAddr, otherAddr}) {
		t.Errorf("a.example: got %v", got)
	}
	if got := in.lookup("A.eXample"); !slices.Equal(got, []string{publicAddr, otherAddr}) {
		t.Errorf("A.eXample: got %v", got)
	}
	m := in.ask("www.example", dnsmessage.TypeA)
	var chain []string
	for _, a := range m.Answers {
		chain = append(chain, a.Header.Name.String()+" "+typeName(a.Header.Type))
		if a.Header.TTL == 0 || a.Header.TTL > 60 {
			t.Errorf("time to live of %d seconds", a.Header.TTL)
		}
	}
	if want := []string{"www.example. CNAME", "cdn.example. CNAME", "a.example. A", "a.example. A"}; !slices.Equal(chain, want) {
		t.Errorf("got %v, want %v", chain, want)
	}
	for name, c := range map[string]struct {
		typ     dnsmessage.Type
		code    dnsmessage.RCode
		answers int
	}{
		"gone.example":  {dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		"six.example":   {dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0}, // there is no IPv6 route
		"many.example":  {dnsmessage.TypeTXT, dnsmessage.RCodeSuccess, 0},  // truncated
		"localhost":     {dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		"x.localhost":   {dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 1},
		"intranet":      {dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		"printer.local": {dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		"db.sandbox":    {dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		"a.example":     {dnsmessage.TypeALL, dnsmessage.RCodeNotImplemented, 0},
		"1.2.3":         {dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		"www.example":   {dnsmessage.TypeCNAME, dnsmessage.RCodeSuccess, 2},
	} {
		m := in.ask(name, c.typ)
		if m.RCode != c.code || len(m.Answers) != c.answers {
			t.Errorf("%s: got %v with %d answers, want %v with %d", name, m.RCode, len(m.Answers), c.code, c.answers)
		}
		if m.Truncated != (name == "many.example") {
			t.Errorf("%s: truncated is %t", name, m.Truncated)
		}
	}
	for _, never := range []string{"localhost", "x.localhost", "intranet", "printer.local", "db.sandbox", "1.2.3"} {
		if slices.Contains(in.questions(), never) {
			t.Errorf("%s was asked of others", never)
		}
	}
	if got := in.lookup("large.example"); len(got) != maxAddresses {
		t.Errorf("got %d addresses, want %d", len(got), maxAddresses)
	}
	before := len(in.questions())
	in.lookup("a.example")
	if after := len(in.questions()); after != before {
		t.Error("what is known was asked again")
	}
}

func TestResolverOverTCPAndTheGatewaysAddress(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	for i := range 60 {
		in.name("many.example", &dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 100), fmt.Sprint(i)}})
	}
	query, _, err := packQuery(dnsmessage.Question{Name: dnsmessage.MustNewName("many.example."), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET})
	if err != nil {
		t.Fatal(err)
	}
	c := in.mustConnect(gatewayAddr.String() + ":53")
	for range 2 {
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...))
		answer, err := readTCPMessage(c)
		if err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || len(m.Answers) != 60 || m.Truncated {
			t.Errorf("got %d answers, %v, want 60", len(m.Answers), err)
		}
	}
	c.Close()
	u, err := in.flow(gatewayAddr.String() + ":53")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = u.Write(query)
	buf := make([]byte, 4096)
	n, err := u.Read(buf)
	if err != nil || buf[2]&2 == 0 || n > udpAnswer {
		t.Errorf("got %d bytes, %v, want a truncated answer", n, err)
	}
	if _, err := in.connect(gatewayAddr.String() + ":80"); err == nil {
		t.Error("another port of the gateway was opened")
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- in.g.ServeDNS(t.Context(), pc) }()
	d, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, _ = d.Write(query)
	_ = d.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := d.Read(buf); err != nil || n < 12 {
		t.Errorf("got %d bytes, %v", n, err)
	}
	pc.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Attack: send data out in the names of queries, and back in records, through the
// resolver itself.
func TestTunnelThroughTheResolver(t *testing.T) {
	in := newInternet(t, strict("good.example", "198.51.100.0/24"))
	in.name("secret.evil.example", &dnsmessage.TXTResource{TXT: []string{"command"}})
	in.name("good.example", &dnsmessage.TXTResource{TXT: []string{"text"}})
	in.name("good.example", &dnsmessage.MXResource{MX: dnsmessage.MustNewName("mail.evil.example.")})
	in.address("good.example", publicAddr)
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeHTTPS, dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeNS} {
		if m := in.ask("secret.evil.example", typ); m.RCode != dnsmessage.RCodeNameError || len(m.Answers) > 0 {
			t.Errorf("%v: got %v", typ, m)
		}
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeNS, dnsmessage.TypeSRV, 65280} {
		if m := in.ask("good.example", typ); len(m.Answers) > 0 {
			t.Errorf("%v of the allowed name: got %v", typ, m)
		}
	}
	if got := in.questions(); len(got) > 0 {
		t.Errorf("others were asked for %v", got)
	}
	if got := in.lookup("good.example"); !slices.Equal(got, []string{publicAddr}) {
		t.Errorf("got %v", got)
	}
	e := in.blocked(sandbox.MatchCIDR)
	if e.Kind != sandbox.NetworkDNS || e.Host != "secret.evil.example" || e.Rule != "deny_out 0.0.0.0/0" {
		t.Errorf("recorded as %+v", e)
	}
	// Under an open policy it is an ordinary query.
	in.set(sandbox.NetworkPolicy{})
	if m := in.ask("good.example", dnsmessage.TypeTXT); len(m.Answers) != 1 {
		t.Errorf("under an open policy: got %v", m)
	}
	if m := in.ask("good.example", dnsmessage.TypeMX); len(m.Answers) != 1 {
		t.Errorf("under an open policy: got %v", m)
	}
}

func TestPolicyNoneResolvesNothing(t *testing.T) {
	in := newInternet(t, rules("none"))
	in.address("a.example", publicAddr)
	if got := in.lookup("a.example"); len(got) > 0 || len(in.questions()) > 0 {
		t.Errorf("got %v, asked %v", got, in.questions())
	}
	in.blocked(sandbox.MatchDefault)
}

// Attack: learn the keys that hide server names, or addresses past the pins,
// from service records.
func TestServiceRecordsHideNothing(t *testing.T) {
	for _, p := range []sandbox.NetworkPolicy{{}, strict("a.example")} {
		in := newInternet(t, p)
		in.name("a.example", &dnsmessage.HTTPSResource{SVCBResource: dnsmessage.SVCBResource{Priority: 1, Target: dnsmessage.MustNewName("."), Params: []dnsmessage.SVCParam{
			{Key: dnsmessage.SVCParamALPN, Value: []byte("\x02h2")},
			{Key: dnsmessage.SVCParamIPv4Hint, Value: []byte{127, 0, 0, 1}},
			{Key: dnsmessage.SVCParamECH, Value: []byte("key")},
			{Key: dnsmessage.SVCParamIPv6Hint, Value: make([]byte, 16)},
		}}})
		in.name("a.example", &dnsmessage.HTTPSResource{SVCBResource: dnsmessage.SVCBResource{Priority: 2, Target: dnsmessage.MustNewName("."), Params: []dnsmessage.SVCParam{
			{Key: dnsmessage.SVCParamMandatory, Value: []byte{0, byte(dnsmessage.SVCParamECH)}},
			{Key: dnsmessage.SVCParamECH, Value: []byte("key")},
		}}})
		m := in.ask("a.example", dnsmessage.TypeHTTPS)
		if len(m.Answers) != 1 {
			t.Fatalf("got %v, want one record", m)
		}
		r := m.Answers[0].Body.(*dnsmessage.HTTPSResource)
		if len(r.Params) != 1 || r.Params[0].Key != dnsmessage.SVCParamALPN {
			t.Errorf("got parameters %v", r.Params)
		}
	}
}

// Attack: answers to other queries, which an attacker sends faster than the resolver
// does.
func TestForgedAnswers(t *testing.T) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	other := q
	other.Name = dnsmessage.MustNewName("b.example.")
	rr := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{}}
	for name, m := range map[string]dnsmessage.Message{
		"another id":       {Header: dnsmessage.Header{ID: 8, Response: true}, Questions: []dnsmessage.Question{q}, Answers: []dnsmessage.Resource{rr}},
		"another question": {Header: dnsmessage.Header{ID: 7, Response: true}, Questions: []dnsmessage.Question{other}, Answers: []dnsmessage.Resource{rr}},
		"no question":      {Header: dnsmessage.Header{ID: 7, Response: true}, Answers: []dnsmessage.Resource{rr}},
		"a question":       {Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{q}},
	} {
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parseAnswer(b, 7, q); ok {
			t.Errorf("%s was taken", name)
		}
	}
	// Addresses of other names in an answer do not belong to the name.
	_, addrs, _ := follow([]dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: other.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte{1, 2, 3, 4}}}},
		"a.example", dnsmessage.TypeA, new([]string))
	if len(addrs) > 0 {
		t.Errorf("got %v of another name", addrs)
	}
}

func TestCNAMELoop(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.name("a.example", &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("b.example.")})
	in.name("b.example", &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("a.example.")})
	if m := in.ask("a.example", dnsmessage.TypeA); len(m.Answers) > 2*maxChain {
		t.Errorf("got %d answers", len(m.Answers))
	}
}

func TestResolverIsBounded(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{ConnectionsPerSecond: 1})
	in.address("a.example", publicAddr)
	refused := 0
	for range 30 {
		if in.ask("a.example", dnsmessage.TypeA).RCode == dnsmessage.RCodeRefused {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no question was refused")
	}
	in.blocked(sandbox.MatchLimit)
}

func TestPinsAreBounded(t *testing.T) {
	p := newPins()
	a := mustAddrPort(publicAddr + ":1").Addr()
	for i := range maxPins * 2 {
		p.add(fmt.Sprint(i, ".example"), nil, time.Minute)
		p.add(fmt.Sprint(i, ".example"), []netip.Addr{a}, time.Minute)
		a = a.Next()
	}
	if p.count > maxPins || len(p.names) > maxPins {
		t.Errorf("%d pins of %d addresses, want at most %d", p.count, len(p.names), maxPins)
	}
}

func TestResolvConf(t *testing.T) {
	got := parseResolvConf(strings.NewReader("# x\nsearch a\nnameserver 192.0.2.1\nnameserver x\nnameserver\nnameserver 2001:db8::1\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n"))
	if fmt.Sprint(got) != "[192.0.2.1:53 [2001:db8::1]:53 192.0.2.3:53]" {
		t.Errorf("got %v", got)
	}
}

func TestUDP(t *testing.T) {
	in := newInternet(t, sandbox.NetworkPolicy{})
	in.address("good.example", publicAddr)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	for _, port := range []string{":123", ":443", ":5353"} {
		in.at("udp", publicAddr+port, pc.LocalAddr())
		in.at("udp", otherAddr+port, pc.LocalAddr())
	}
	echo := func(to string) error {
		c, err := in.flow(to)
		if err != nil {
			return err
		}
		defer in.idle()
		defer c.Close()
		for _, size := range []int{1, 1400, 60_000} {
			msg := bytes.Repeat([]byte("x"), size)
			_, _ = c.Write(msg)
			got := make([]byte, 64<<10)
			if n, err := c.Read(got); err != nil || n != size {
				return fmt.Errorf("got %d bytes, %v, want %d", n, err, size)
			}
		}
		return nil
	}
	if err := echo(otherAddr + ":443"); err != nil {
		t.Errorf("open: %v", err)
	}
	in.set(strict("good.example"))
	if echo(publicAddr+":123") == nil {
		t.Error("strict: an address was reached that no name has")
	}
	in.lookup("good.example")
	if err := echo(publicAddr + ":123"); err != nil {
		t.Errorf("strict, by a pinned address: %v", err)
	}
	// Attack: QUIC, whose names cannot be seen.
	if echo(publicAddr+":443") == nil {
		t.Error("strict: QUIC was let through")
	}
	in.blocked(sandbox.MatchProtocol)
	// A rule with a port opens only that port of the name, for the rule's protocol; a rule
	// without a protocol applies to UDP too.
	for _, test := range []struct {
		rule string
		port string
		want bool
	}{
		{"allow good.example udp 123", ":123", true},
		{"allow good.example udp 123", ":5353", false},
		{"allow good.example - 123", ":123", true},
		{"allow good.example - 123", ":5353", false},
		{"allow good.example tcp 123", ":123", false},
		{"allow good.example", ":5353", true},
	} {
		in.set(rules("none", test.rule))
		if err := echo(publicAddr + test.port); (err == nil) != test.want {
			t.Errorf("%s: UDP to %s: %v", test.rule, test.port, err)
		}
	}
	e := in.event(func(e sandbox.NetworkEvent) bool { return e.Protocol == "udp" && e.BytesIn == 61_401 && !e.Open })
	if e.BytesOut != 61_401 || e.Verdict != sandbox.NetworkAllowed {
		t.Errorf("recorded as %+v", e)
	}
	in.set(sandbox.NetworkPolicy{})
	c, err := in.flow(otherAddr + ":123")
	if err != nil {
		t.Fatal(err)
	}
	in.set(rules("none"))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the flow outlives its policy")
	}
	if _, err := in.flow("10.0.0.1:123"); err == nil {
		t.Error("a private address was reached")
	}
}

func FuzzQuestion(f *testing.F) {
	q, _, _ := packQuery(dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
	f.Add(q)
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	g, err := New(Config{GatewayAddr: gatewayAddr})
	if err != nil {
		f.Fatal(err)
	}
	if err := g.Set(Network{Policy: sandbox.NetworkPolicy{Preset: sandbox.NetworkNone, ConnectionsPerSecond: sandbox.MaxConnectionsPerSecond}}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := g.names.answer(t.Context(), b, "udp")
		if answer == nil {
			return
		}
		if len(answer) > udpAnswer {
			t.Fatalf("an answer of %d bytes over UDP", len(answer))
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response {
			t.Fatalf("answered %x: %v", answer, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	q := dnsmessage.Question{Name: dnsmessage.MustNewName("a.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: true}, Questions: []dnsmessage.Question{q}, Answers: []dnsmessage.Resource{
		{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{1, 2, 3, 4}}}}}
	b, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		if m, ok := parseAnswer(b, 7, q); ok {
			var chain []string
			follow(m.Answers, "a.example", dnsmessage.TypeA, &chain)
			in := question{q: q, size: 512, edns: true}
			pack(in, reply{names: chain, records: m.Answers}, in.size)
		}
	})
}
