package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// maxShown is how many bytes of a caller's input a message quotes.
const maxShown = 64

const (
	maxNameBytes = 253
	maxRulePorts = 64
	peerPrefix   = "sandbox:"
	// secretPrefix begins the target of a rule that asks before a secret is used.
	secretPrefix = "secret:"
	// peerDomain is the domain of the sandbox's peers.
	peerDomain = "sandbox"
)

// targetKind is the kind of target of a rule.
type targetKind int

const (
	anyTarget    targetKind = iota
	domainTarget            // one name
	belowTarget             // all names below a domain
	rangeTarget
	peerTarget
	// secretTarget is the use of one secret or of any; it is not a connection.
	secretTarget
)

type portRange struct{ low, high uint16 }

// rule is one parsed line of a policy.
type rule struct {
	text  string
	allow bool
	// ask reports whether the rule asks for an approval; such a rule does not allow.
	ask   bool
	kind  targetKind
	name  string // of a domain, a peer or a secret; "*" is any secret
	addrs netip.Prefix
	// all reports whether a denied range covers everything, including IPv6.
	all   bool
	proto string
	ports []portRange
	// opens reports whether the rule allows, or asks about, internal addresses. Its whole
	// range must be internal.
	opens bool
}

var (
	labels    = lazyregexp.New(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)
	peerNames = lazyregexp.New(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)
	// toASCII is the mapping that browsers apply to names.
	toASCII = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false), idna.BidiRule(), idna.CheckHyphens(false))
)

// hostname returns the canonical form of a host's name: lower case, ASCII, without a
// trailing dot. It refuses what cannot be a host's name.
func hostname(s string) (string, bool) {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > maxNameBytes || !isASCII(s) {
		return "", false
	}
	s = strings.ToLower(s)
	all := strings.Split(s, ".")
	for _, l := range all {
		if !labels.MatchString(l) {
			return "", false
		}
	}
	if numeric(all[len(all)-1]) {
		return "", false
	}
	return s, true
}

// numeric reports whether a name's last label makes the name an address in a notation of
// old C libraries.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// parseTarget parses the target of a rule into r.
func parseTarget(to string, r *rule) error {
	switch {
	case to == "":
		return fmt.Errorf("is empty; use a domain, an address or a range")
	case len(to) > maxNameBytes+2:
		return fmt.Errorf("is longer than %d bytes", maxNameBytes+2)
	case to == "*":
		r.kind = anyTarget
		return nil
	case strings.HasPrefix(to, peerPrefix):
		r.kind, r.name = peerTarget, strings.TrimPrefix(to, peerPrefix)
		if len(r.name) > sandbox.MaxNameLength || !peerNames.MatchString(r.name) {
			return fmt.Errorf("%q does not name a sandbox; use sandbox: and the name of a sandbox", to)
		}
		return nil
	case strings.HasPrefix(to, secretPrefix):
		r.kind, r.name = secretTarget, strings.TrimPrefix(to, secretPrefix)
		if r.name != "*" && !peerNames.MatchString(r.name) {
			return fmt.Errorf("%q does not name a secret; use secret: and the name of a secret, or secret:* for all", to)
		}
		return nil
	case strings.Contains(to, "://"):
		return fmt.Errorf("%q is a URL; use only its host", to)
	case strings.Contains(to, "/"):
		return parseRange(to, r)
	}
	if a, err := netip.ParseAddr(to); err == nil {
		if a.Zone() != "" {
			return fmt.Errorf("%q has a zone; use the address without it", to)
		}
		a = a.Unmap()
		r.kind, r.addrs = rangeTarget, netip.PrefixFrom(a, a.BitLen())
		return nil
	}
	if strings.ContainsAny(to, ":[]") {
		return fmt.Errorf("%q is neither a domain nor an address; use it without port and brackets (a rule's ports are a separate field)", to)
	}
	return parseDomain(to, r)
}

func parseRange(to string, r *rule) error {
	p, err := netip.ParsePrefix(to)
	if err != nil {
		return fmt.Errorf("%q is not a range; use a form such as 203.0.113.0/24 or 2001:db8::/32, without leading zeros", to)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return fmt.Errorf("%q is a range around IPv4 addresses in IPv6; use the IPv4 range", to)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	r.kind, r.addrs = rangeTarget, p.Masked()
	return nil
}

func parseDomain(to string, r *rule) error {
	name, below := strings.CutPrefix(to, "*.")
	if strings.Contains(name, "*") {
		return fmt.Errorf("%q has a * in the wrong place; it can only stand for all names below a domain, as in *.example.com", to)
	}
	ascii := name
	if !isASCII(name) {
		var err error
		if ascii, err = toASCII.ToASCII(name); err != nil {
			return fmt.Errorf("%q is not a domain that can be looked up", to)
		}
	}
	host, ok := hostname(ascii)
	if !ok {
		if last := ascii[strings.LastIndexByte(ascii, '.')+1:]; numeric(strings.ToLower(last)) {
			return fmt.Errorf("%q looks like an address in a form that programs read differently; use four decimal numbers without leading zeros", to)
		}
		return fmt.Errorf("%q is neither a domain nor a range of addresses; use a form such as example.com, *.example.com or 203.0.113.0/24", to)
	}
	switch {
	case host == peerDomain || strings.HasSuffix(host, "."+peerDomain):
		return fmt.Errorf("%q is a sandbox's name; use sandbox:NAME", to)
	case host == "localhost" || strings.HasSuffix(host, ".localhost"):
		return fmt.Errorf("%q is the sandbox itself, which needs no rule; to connect to the host, allow its address in rules", to)
	case !below && !strings.Contains(host, "."):
		return fmt.Errorf("%q is a single word, which is not looked up; use the full domain", to)
	}
	r.kind, r.name = domainTarget, host
	if below {
		r.kind = belowTarget
	}
	return nil
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

// parseFilter parses protocol and ports into r.
func parseFilter(in sandbox.NetworkRule, r *rule) error {
	switch in.Protocol {
	case "", "tcp", "udp", "icmp":
		r.proto = in.Protocol
	default:
		return fmt.Errorf("protocol %q is not valid; use tcp, udp or icmp, or leave it out for all", clip.Text(in.Protocol, maxShown))
	}
	if len(in.Ports) > maxRulePorts {
		return fmt.Errorf("there are more than %d ports; use ranges", maxRulePorts)
	}
	if r.proto == "icmp" && len(in.Ports) > 0 {
		return fmt.Errorf("icmp has no ports; leave them out")
	}
	for _, s := range in.Ports {
		low, high, isRange := strings.Cut(s, "-")
		if !isRange {
			high = low
		}
		l, err1 := parsePort(low)
		h, err2 := parsePort(high)
		if err1 != nil || err2 != nil || l > h {
			return fmt.Errorf("port %q is not valid; use a form such as 443 or 8000-8999, from 1 to 65535", clip.Text(s, maxShown))
		}
		r.ports = append(r.ports, portRange{l, h})
	}
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("not a port")
	}
	return uint16(n), nil
}

// fits reports whether the rule covers this protocol and port.
func (r *rule) fits(proto string, port uint16) bool {
	if r.proto != "" && r.proto != proto {
		return false
	}
	return len(r.ports) == 0 || proto != "icmp" &&
		slices.ContainsFunc(r.ports, func(p portRange) bool { return p.low <= port && port <= p.high })
}

// limited reports whether the rule covers only some protocols or ports.
func (r *rule) limited() bool { return r.proto != "" || len(r.ports) > 0 }

// named reports whether the rule covers this name.
func (r *rule) named(name string) bool {
	switch r.kind {
	case domainTarget:
		return r.name == name
	case belowTarget:
		return len(name) > len(r.name)+1 && strings.HasSuffix(name, r.name) && name[len(name)-len(r.name)-1] == '.'
	}
	return false
}

// contains reports whether the rule covers this address. A denied IPv4 range also
// covers the IPv6 addresses that lead to it.
func (r *rule) contains(a netip.Addr) bool {
	if r.kind == anyTarget || r.all {
		return true
	}
	if r.kind != rangeTarget || !a.IsValid() {
		return false
	}
	if r.addrs.Contains(a) {
		return true
	}
	v4 := embedded(a)
	return !r.allow && v4.IsValid() && r.addrs.Contains(v4)
}

// outcome returns what the rule decides.
func (r *rule) outcome() outcome {
	switch {
	case r.ask:
		return outcomeAsk
	case r.allow:
		return outcomeAllow
	}
	return outcomeDeny
}

func (r *rule) match() sandbox.NetworkMatch {
	switch r.kind {
	case domainTarget, belowTarget:
		return sandbox.MatchDomain
	case peerTarget:
		return sandbox.MatchSandbox
	case secretTarget:
		return sandbox.MatchSecret
	case rangeTarget:
		return sandbox.MatchCIDR
	}
	return sandbox.MatchDefault
}
