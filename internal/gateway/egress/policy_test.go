package egress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// hostAddr is the host's own address in the tests.
var hostAddr = netip.MustParseAddr("203.0.113.99")

func testHost() []netip.Addr { return []netip.Addr{hostAddr} }

func mustCompile(t *testing.T, p sandbox.NetworkPolicy) *Policy {
	t.Helper()
	c, err := Compile(p, testHost)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func strict(allow ...string) sandbox.NetworkPolicy {
	return sandbox.NetworkPolicy{AllowOut: allow, DenyOut: []string{"0.0.0.0/0"}}
}

func rules(preset sandbox.NetworkPreset, lines ...string) sandbox.NetworkPolicy {
	p := sandbox.NetworkPolicy{Preset: preset}
	for _, l := range lines {
		f := strings.Fields(l)
		r := sandbox.NetworkRule{Action: sandbox.NetworkAction(f[0]), To: f[1]}
		if len(f) > 2 {
			r.Protocol = strings.Trim(f[2], "-")
		}
		if len(f) > 3 {
			r.Ports = strings.Split(f[3], ",")
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

const (
	publicAddr = "198.51.100.10"
	otherAddr  = "203.0.113.10"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy sandbox.NetworkPolicy
		addr   string
		host   string
		proto  string // tcp
		port   uint16 // 443
		allow  bool
		match  sandbox.NetworkMatch
	}{
		{name: "open is the default", addr: publicAddr, allow: true, match: sandbox.MatchDefault},
		{name: "none denies", policy: rules(sandbox.NetworkNone), addr: publicAddr, match: sandbox.MatchDefault},
		{name: "packages allows registries", policy: rules(sandbox.NetworkPackages), addr: publicAddr, host: "pypi.org", allow: true, match: sandbox.MatchDomain},
		{name: "packages allows below", policy: rules(sandbox.NetworkPackages), addr: publicAddr, host: "raw.githubusercontent.com", allow: true, match: sandbox.MatchDomain},
		{name: "packages denies others", policy: rules(sandbox.NetworkPackages), addr: publicAddr, host: "example.com", match: sandbox.MatchDefault},
		{name: "packages denies ports", policy: rules(sandbox.NetworkPackages), addr: publicAddr, host: "pypi.org", port: 25, match: sandbox.MatchDefault},
		{name: "packages allows ssh to code hosts", policy: rules(sandbox.NetworkPackages), addr: publicAddr, host: "github.com", port: 22, allow: true, match: sandbox.MatchDomain},
		{name: "rules come before the preset", policy: rules(sandbox.NetworkPackages, "deny pypi.org"), addr: publicAddr, host: "pypi.org", match: sandbox.MatchDomain},

		// The precedence of allow_out and deny_out.
		{name: "allow_out alone blocks nothing", policy: sandbox.NetworkPolicy{AllowOut: []string{"example.com"}}, addr: otherAddr, allow: true, match: sandbox.MatchDefault},
		{name: "deny_out blocks", policy: sandbox.NetworkPolicy{DenyOut: []string{"198.51.100.0/24"}}, addr: publicAddr, match: sandbox.MatchCIDR},
		{name: "deny_out leaves the rest", policy: sandbox.NetworkPolicy{DenyOut: []string{"198.51.100.0/24"}}, addr: otherAddr, allow: true, match: sandbox.MatchDefault},
		{name: "allow_out wins by domain", policy: strict("example.com"), addr: publicAddr, host: "example.com", allow: true, match: sandbox.MatchDomain},
		{name: "allow_out wins by address", policy: strict(publicAddr), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "allow_out wins by range", policy: strict("198.51.100.0/25"), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "strict denies the rest", policy: strict("example.com"), addr: publicAddr, host: "evil.example", match: sandbox.MatchCIDR},
		{name: "strict denies without a name", policy: strict("example.com"), addr: publicAddr, match: sandbox.MatchCIDR},
		{name: "strict denies IPv6", policy: strict("example.com"), addr: "2606:4700::1", match: sandbox.MatchCIDR},
		{name: "allow_out does not allow internal addresses", policy: strict("10.0.0.0/8"), addr: "10.1.2.3", match: sandbox.MatchInternal},
		{name: "allow_out comes before rules", policy: sandbox.NetworkPolicy{AllowOut: []string{"example.com"},
			Rules: []sandbox.NetworkRule{{Action: "deny", To: "example.com"}}}, addr: publicAddr, host: "example.com", allow: true, match: sandbox.MatchDomain},
		{name: "deny_out comes before rules", policy: sandbox.NetworkPolicy{DenyOut: []string{publicAddr},
			Rules: []sandbox.NetworkRule{{Action: "allow", To: publicAddr}}}, addr: publicAddr, match: sandbox.MatchCIDR},
		{name: "deny_out of all comes before opened rules", policy: sandbox.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"},
			Rules: []sandbox.NetworkRule{{Action: "allow", To: "10.1.2.3"}}}, addr: "10.1.2.3", match: sandbox.MatchCIDR},

		// Forms of rules.
		{name: "domain is not its subdomain", policy: strict("example.com"), addr: publicAddr, host: "www.example.com", match: sandbox.MatchCIDR},
		{name: "domain is not a suffix", policy: strict("example.com"), addr: publicAddr, host: "notexample.com", match: sandbox.MatchCIDR},
		{name: "below, one level", policy: strict("*.example.com"), addr: publicAddr, host: "a.example.com", allow: true, match: sandbox.MatchDomain},
		{name: "below, many levels", policy: strict("*.example.com"), addr: publicAddr, host: "a.b.c.example.com", allow: true, match: sandbox.MatchDomain},
		{name: "below is not the apex", policy: strict("*.example.com"), addr: publicAddr, host: "example.com", match: sandbox.MatchCIDR},
		{name: "below is not a suffix", policy: strict("*.example.com"), addr: publicAddr, host: "badexample.com", match: sandbox.MatchCIDR},
		{name: "case and dot do not count", policy: strict("ExAmPle.COM."), addr: publicAddr, host: "example.com", allow: true, match: sandbox.MatchDomain},
		{name: "international names", policy: strict("bücher.example"), addr: publicAddr, host: "xn--bcher-kva.example", allow: true, match: sandbox.MatchDomain},
		{name: "mapped address is the address", policy: strict("::ffff:198.51.100.10"), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "mapped range is the range", policy: strict("::ffff:198.51.100.0/120"), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "IPv6 range", policy: strict("2606:4700::/32"), addr: "2606:4700::1", allow: true, match: sandbox.MatchCIDR},
		{name: "host bits of a range do not count", policy: strict("198.51.100.77/24"), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "first rule decides: deny", policy: rules("", "deny 198.51.100.10", "allow *"), addr: publicAddr, match: sandbox.MatchCIDR},
		{name: "first rule decides: allow", policy: rules("", "allow 198.51.100.10", "deny *"), addr: publicAddr, allow: true, match: sandbox.MatchCIDR},
		{name: "a rule for all denies", policy: rules("", "allow example.com", "deny *"), addr: publicAddr, match: sandbox.MatchDefault},
		{name: "a denied domain", policy: rules("", "deny example.com"), addr: publicAddr, host: "example.com", match: sandbox.MatchDomain},
		{name: "protocol fits", policy: rules("none", "allow * udp"), addr: publicAddr, proto: "udp", allow: true, match: sandbox.MatchDefault},
		{name: "protocol does not fit", policy: rules("none", "allow * udp"), addr: publicAddr, match: sandbox.MatchDefault},
		{name: "port fits", policy: rules("none", "allow * tcp 80,440-450"), addr: publicAddr, allow: true, match: sandbox.MatchDefault},
		{name: "port does not fit", policy: rules("none", "allow * tcp 80,8000-8999"), addr: publicAddr, match: sandbox.MatchDefault},
		{name: "ports are not of icmp", policy: rules("none", "allow * - 1-65535"), addr: publicAddr, proto: "icmp", match: sandbox.MatchDefault},
		{name: "icmp by itself", policy: rules("none", "allow 198.51.100.0/24 icmp"), addr: publicAddr, proto: "icmp", allow: true, match: sandbox.MatchCIDR},

		// Internal addresses.
		{name: "opened by its address", policy: rules("", "allow 10.1.2.3"), addr: "10.1.2.3", allow: true, match: sandbox.MatchCIDR},
		{name: "opened by a range inside", policy: rules("", "allow 10.1.0.0/16"), addr: "10.1.2.3", allow: true, match: sandbox.MatchCIDR},
		{name: "a neighbour stays closed", policy: rules("", "allow 10.1.2.3"), addr: "10.1.2.4", match: sandbox.MatchInternal},
		{name: "not opened by everything", policy: rules("", "allow *"), addr: "10.1.2.3", match: sandbox.MatchInternal},
		{name: "not opened by all addresses", policy: rules("", "allow 0.0.0.0/0"), addr: "10.1.2.3", match: sandbox.MatchInternal},
		{name: "not opened by a range around", policy: rules("", "allow 8.0.0.0/5"), addr: "10.1.2.3", match: sandbox.MatchInternal},
		{name: "not opened by a name", policy: rules("", "allow example.com"), addr: "10.1.2.3", host: "example.com", match: sandbox.MatchInternal},
		{name: "opened for its port only", policy: rules("", "allow 10.1.2.3 tcp 5432"), addr: "10.1.2.3", match: sandbox.MatchInternal},
		{name: "opened, and denied before", policy: rules("", "deny 10.0.0.0/8", "allow 10.1.2.3"), addr: "10.1.2.3", match: sandbox.MatchCIDR},
		{name: "metadata opened on purpose", policy: rules("", "allow 169.254.169.254"), addr: "169.254.169.254", allow: true, match: sandbox.MatchCIDR},
		{name: "the host's public address", addr: hostAddr.String(), match: sandbox.MatchInternal},
		{name: "the host's public address opened", policy: rules("", "allow 203.0.113.99"), addr: hostAddr.String(), allow: true, match: sandbox.MatchCIDR},
		{name: "the host's public address not by its range", policy: rules("", "allow 203.0.113.0/24"), addr: hostAddr.String(), match: sandbox.MatchInternal},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(c.addr), Port: 443}
			if c.proto != "" {
				a.Protocol = c.proto
			}
			if c.port != 0 {
				a.Port = c.port
			}
			if c.host != "" {
				a.Names = []string{c.host}
			}
			d := mustCompile(t, c.policy).Judge(a)
			if d.Allow != c.allow || d.Match != c.match {
				t.Errorf("got %+v, want allow %t by %s", d, c.allow, c.match)
			}
			if d.Rule == "" || !d.Allow && d.Reason == "" {
				t.Errorf("%+v names no rule or no reason", d)
			}
		})
	}
}

// Attack: reach what only the host can reach, through every range that leads there, and
// every notation of an IPv4 address in IPv6.
func TestInternalAddressesAreDenied(t *testing.T) {
	p := mustCompile(t, rules("", "allow *", "allow 0.0.0.0/0", "allow ::/0"))
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.1.2.3", "168.63.129.16",
		"169.254.169.254", "169.254.77.1", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "198.19.255.255",
		"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "203.0.113.99",
		"::", "::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::ffff:203.0.113.99",
		"::127.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::1",
		"2001:0:1::1", "100::1",
	} {
		if d := p.Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(s), Port: 80}); d.Allow || d.Match != sandbox.MatchInternal {
			t.Errorf("%s: got %+v, want it refused as the host's", s, d)
		}
	}
	for _, s := range []string{"192.0.2.1", "198.51.100.1", "203.0.113.1", "1.1.1.1", "172.32.0.1", "100.128.0.1", "198.20.0.1", "223.255.255.255",
		"2606:4700::1", "2001:db8::1", "64:ff9b::1.1.1.1", "2002:101:101::1"} {
		if d := p.Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(s), Port: 80}); !d.Allow {
			t.Errorf("%s: got %+v, want it allowed", s, d)
		}
	}
}

// Attack: reach a denied IPv4 address through its IPv6 equivalents.
func TestDeniedIPv4IsDeniedThroughIPv6(t *testing.T) {
	p := mustCompile(t, sandbox.NetworkPolicy{DenyOut: []string{"198.51.100.0/24"}})
	for _, s := range []string{"::ffff:198.51.100.10", "64:ff9b::198.51.100.10", "::198.51.100.10", "2002:c633:640a::1"} {
		if d := p.Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(s), Port: 80}); d.Allow {
			t.Errorf("%s: got %+v, want it denied", s, d)
		}
	}
}

func TestDecidedWithoutAName(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  sandbox.NetworkPolicy
		allow   bool
		certain bool
	}{
		{"open", sandbox.NetworkPolicy{}, true, true},
		{"none", rules("none"), false, true},
		{"allow_out alone", sandbox.NetworkPolicy{AllowOut: []string{"example.com"}}, true, true},
		{"strict by name", strict("example.com"), false, false},
		{"strict by address", strict("198.51.100.0/24"), true, true},
		{"strict by both", strict("example.com", "198.51.100.0/24"), true, true},
		{"denied name", rules("", "deny example.com"), true, false},
		{"denied name on another port", rules("", "deny example.com tcp 80"), true, true},
		{"allowed name on another port", rules("none", "allow example.com tcp 80"), false, true},
		{"address before names", rules("none", "allow 198.51.100.10", "deny example.com"), true, true},
		{"a denied name before an allowed address", rules("none", "deny example.com", "allow 198.51.100.10"), true, false},
		{"packages", rules("packages"), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, certain := mustCompile(t, c.policy).decided(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr(publicAddr), Port: 443})
			if certain != c.certain || d.Allow != c.allow {
				t.Errorf("got allow %t, certain %t; want %t, %t", d.Allow, certain, c.allow, c.certain)
			}
		})
	}
}

func TestResolvable(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy sandbox.NetworkPolicy
		host   string
		want   bool
	}{
		{"open", sandbox.NetworkPolicy{}, "a.example", true},
		{"none", rules("none"), "a.example", false},
		{"none with a domain", rules("none", "allow a.example"), "a.example", true},
		{"none with another domain", rules("none", "allow a.example"), "b.example", false},
		{"all denied", strict(), "a.example", false},
		{"strict, allowed", strict("*.example"), "a.example", true},
		{"strict, other", strict("*.example"), "a.test", false},
		{"addresses only", strict("198.51.100.0/24"), "a.example", true},
		{"addresses and domains", strict("198.51.100.0/24", "b.example"), "a.example", false},
		{"denied", rules("", "deny a.example"), "a.example", false},
		{"denied on a port", rules("", "deny a.example tcp 80"), "a.example", true},
		{"allowed on a port", rules("none", "allow a.example tcp 80"), "a.example", true},
		{"denied below allowed", rules("none", "deny x.a.example", "allow *.a.example"), "x.a.example", false},
		{"denied everything", rules("", "allow a.example", "deny *"), "b.example", false},
		{"denied everything of udp", rules("", "deny * udp"), "b.example", true},
		{"packages", rules("packages"), "files.pythonhosted.org", true},
		{"packages, other", rules("packages"), "a.example", false},
		{"packages with an address", rules("packages", "allow 10.0.0.1"), "a.example", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := mustCompile(t, c.policy).resolvable(c.host); d.Allow != c.want {
				t.Errorf("got %+v, want %t", d, c.want)
			}
		})
	}
}

func TestPeersNeedTheirName(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy sandbox.NetworkPolicy
		want   bool
	}{
		{"open", sandbox.NetworkPolicy{}, false},
		{"everything", rules("", "allow *"), false},
		{"synthetic range", rules("", "allow 198.19.0.0/16"), false},
		{"by name", rules("none", "allow sandbox:db"), true},
		{"by another's name", rules("none", "allow sandbox:web"), false},
		{"by name and port", rules("none", "allow sandbox:db tcp 5432"), true},
		{"by name and another port", rules("none", "allow sandbox:db tcp 80"), false},
		{"denied before", rules("", "deny *", "allow sandbox:db"), false},
		{"strict", sandbox.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}, Rules: []sandbox.NetworkRule{{Action: "allow", To: "sandbox:db"}}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := mustCompile(t, c.policy).Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr("198.19.0.1"), Port: 5432, Peer: "db"})
			if d.Allow != c.want {
				t.Errorf("got %+v, want %t", d, c.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		policy sandbox.NetworkPolicy
		want   string // in the message
	}{
		{strict("*"), "must not be *"},
		{strict("sandbox:db"), "allow it in rules"},
		{strict(""), "is empty"},
		{strict("https://example.com"), "is a URL"},
		{strict("example.com:443"), "without port"},
		{strict("[::1]"), "brackets"},
		{strict("exa mple.com"), "neither a domain nor a range"},
		{strict("a.*.com"), "wrong place"},
		{strict("*example.com"), "wrong place"},
		{strict("-a.com"), "neither a domain nor a range"},
		{strict(strings.Repeat("a", 64) + ".com"), "neither a domain nor a range"},
		{strict(strings.Repeat("a.", 200) + "com"), "longer"},
		{strict("localhost"), "sandbox itself"},
		{strict("intranet"), "single word"},
		{strict("db.sandbox"), "sandbox:NAME"},
		// Attack: an address in a form that the policy reads as one thing and
		// a C library as another.
		{strict("2130706433"), "in a form that programs read differently"},
		{strict("0x7f000001"), "in a form that programs read differently"},
		{strict("0177.0.0.1"), "in a form that programs read differently"},
		{strict("127.1"), "in a form that programs read differently"},
		{strict("127.0.0.0x1"), "in a form that programs read differently"},
		{strict("010.0.0.1"), "in a form that programs read differently"},
		{strict("1.2.3.4.5"), "in a form that programs read differently"},
		{strict("010.0.0.0/8"), "not a range"},
		{strict("10.0.0.0/33"), "not a range"},
		{strict("10.0.0.0/255.0.0.0"), "not a range"},
		{strict("::ffff:0.0.0.0/64"), "IPv4 range"},
		{strict("fe80::1%eth0"), "zone"},
		{strict("0.0.0.0"), "unspecified"},
		{strict("224.0.0.1"), "multicast"},
		{sandbox.NetworkPolicy{DenyOut: []string{"example.com"}}, "deny domains in rules"},
		{sandbox.NetworkPolicy{DenyOut: []string{"*"}}, "0.0.0.0/0"},
		{sandbox.NetworkPolicy{Preset: "closed"}, "open, none or packages"},
		{rules("", "permit example.com"), "allow, deny or ask"},
		{rules("", "allow example.com sctp"), "tcp, udp or icmp"},
		{rules("", "allow example.com tcp 0"), "port"},
		{rules("", "allow example.com tcp 65536"), "port"},
		{rules("", "allow example.com tcp 90-80"), "port"},
		{rules("", "allow example.com tcp http"), "port"},
		{rules("", "allow example.com tcp +80"), "port"},
		{rules("", "allow example.com icmp 80"), "no ports"},
		{rules("", "allow sandbox:"), "does not name a sandbox"},
		{rules("", "allow sandbox:A/B"), "does not name a sandbox"},
		{rules("", "allow sandbox:db udp"), "tcp only"},
		{sandbox.NetworkPolicy{MaxConnections: -1}, "max_connections"},
		{sandbox.NetworkPolicy{ConnectionsPerSecond: sandbox.MaxConnectionsPerSecond + 1}, "connections_per_second"},
		{sandbox.NetworkPolicy{BytesPerSecond: -1}, "bytes_per_second"},
		{sandbox.NetworkPolicy{Placeholders: "drop"}, "forward or block"},
		{sandbox.NetworkPolicy{AllowOut: make([]string, sandbox.MaxNetworkRules+1)}, "more than"},
	} {
		err := Check(c.policy)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(sandbox.MessageOf(err), c.want) {
			t.Errorf("%+v: got %v, want an invalid error with %q", c.policy, err, c.want)
		}
	}
	for _, p := range []sandbox.NetworkPolicy{
		{}, strict("example.com", "*.example.com", "xn--bcher-kva.example", "_dmarc.example.com", "198.51.100.1", "2001:db8::/32", "10.0.0.0/8"),
		rules("packages", "allow * icmp", "allow sandbox:my-db.v2 tcp 5432", "deny * udp 1-65535", "allow 10.0.0.1 - 80"),
	} {
		if err := Check(p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com", "10.0.0.0/8", "sandbox:db", "::ffff:1.2.3.4", "bücher.example", "0x7f.1"} {
		f.Add(s, "tcp", "80-90")
	}
	f.Fuzz(func(t *testing.T, to, proto, port string) {
		p := sandbox.NetworkPolicy{Preset: "none", AllowOut: []string{to}, Rules: []sandbox.NetworkRule{{Action: "allow", To: to, Protocol: proto, Ports: []string{port}}}}
		c, err := Compile(p, testHost)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("got %v, want an invalid error", err)
			}
			return
		}
		// No rule allows an internal address by a name.
		d := c.Judge(Attempt{Protocol: "tcp", Addr: netip.MustParseAddr("169.254.169.254"), Port: 80, Names: []string{to}})
		if d.Allow && !c.rules[len(c.rules)-1].contains(netip.MustParseAddr("169.254.169.254")) {
			t.Fatalf("%q opens the metadata address", to)
		}
		_ = fmt.Sprint(d)
	})
}
