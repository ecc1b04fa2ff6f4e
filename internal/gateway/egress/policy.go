package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// Decision is what a policy says about an attempt.
type Decision struct {
	Allow bool
	// Ask reports whether the attempt needs an approval. Until it is given, the attempt is
	// refused: Allow is false.
	Ask   bool
	Match sandbox.NetworkMatch
	// Rule is the text of the rule that matched.
	Rule string
	// Reason says why the attempt is refused.
	Reason string
	// byAddr reports whether the rule is about addresses: an answer applies to one of them.
	byAddr bool
	// addrOnly reports whether the address was allowed, whatever its name leads to.
	addrOnly bool
}

// Attempt is a connection, flow or ping that a policy judges.
type Attempt struct {
	// Protocol is "tcp", "udp" or "icmp".
	Protocol string
	// Addr is the address that would be dialled. It is invalid only if a proxy will
	// resolve the name.
	Addr netip.Addr
	Port uint16
	// Names are the known names of the address, in lower case and ASCII.
	Names []string
	// Peer is the name of the sandbox that is the destination, or empty.
	Peer string
	// claimed is a name that the sandbox sent. Deny rules apply to it; allow rules do not.
	claimed string
	// resolved reports whether Names is the single name for which the gateway itself has
	// looked up Addr, or will.
	resolved bool
}

// Policy is a parsed network policy. It is immutable and safe for concurrent use.
type Policy struct {
	rules []*rule
	// secrets are the rules that ask before a secret is used.
	secrets  []*rule
	preset   sandbox.NetworkPreset
	internal *InternalAddrs
	// byName reports whether rules allow domains. If so, names without a rule are not even
	// looked up, although rules may allow addresses too.
	byName bool
}

// Check returns an invalid error, which says what to write instead, if the policy is not
// valid.
func Check(p sandbox.NetworkPolicy) error {
	_, err := compile(p, NewInternalAddrs(nil))
	return err
}

// Compile parses a policy for a host with the given own addresses; if hostAddrs is nil,
// it asks the system for them. Its error is an invalid error.
func Compile(p sandbox.NetworkPolicy, hostAddrs func() []netip.Addr) (*Policy, error) {
	return compile(p, NewInternalAddrs(hostAddrs))
}

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, "network policy: "+format, args...)
}

func compile(in sandbox.NetworkPolicy, w *InternalAddrs) (*Policy, error) {
	if err := checkNumbers(in); err != nil {
		return nil, err
	}
	p := &Policy{preset: in.Preset, internal: w}
	switch in.Preset {
	case "":
		p.preset = sandbox.NetworkOpen
	case sandbox.NetworkOpen, sandbox.NetworkNone, sandbox.NetworkPackages:
	default:
		return nil, invalid("preset %q is not valid; use open, none or packages", clip.Text(string(in.Preset), maxShown))
	}
	if n := len(in.AllowOut) + len(in.DenyOut) + len(in.Rules); n > sandbox.MaxNetworkRules {
		return nil, invalid("%d rules are more than the limit of %d; use ranges and *.domain", n, sandbox.MaxNetworkRules)
	}
	for i, to := range in.AllowOut {
		r := &rule{text: "allow_out " + to, allow: true}
		if err := parseAllowOut(to, r); err != nil {
			return nil, invalid("allow_out[%d] %w", i, err)
		}
		p.rules = append(p.rules, r)
	}
	for i, to := range in.DenyOut {
		r := &rule{text: "deny_out " + to}
		if err := parseDenyOut(to, r); err != nil {
			return nil, invalid("deny_out[%d] %w", i, err)
		}
		p.rules = append(p.rules, r)
	}
	for i, nr := range in.Rules {
		r, err := parseRule(nr)
		if err != nil {
			return nil, invalid("rules[%d] %w", i, err)
		}
		if r.kind == secretTarget {
			p.secrets = append(p.secrets, r)
			continue
		}
		p.rules = append(p.rules, r)
	}
	if p.preset == sandbox.NetworkPackages {
		p.rules = append(p.rules, packageRules()...)
	}
	if err := checkHeaders(in.Headers); err != nil {
		return nil, err
	}
	p.byName = slices.ContainsFunc(p.rules, func(r *rule) bool {
		return (r.allow || r.ask) && (r.kind == domainTarget || r.kind == belowTarget)
	})
	return p, nil
}

func checkNumbers(p sandbox.NetworkPolicy) error {
	switch p.Placeholders {
	case "", sandbox.PlaceholderForward, sandbox.PlaceholderBlock:
	default:
		return invalid("placeholders %q is not valid; use forward or block", clip.Text(string(p.Placeholders), maxShown))
	}
	switch {
	case p.MaxConnections < 0 || p.MaxConnections > sandbox.MaxMaxConnections:
		return invalid("max_connections must be from 1 to %d; 0 means the default", sandbox.MaxMaxConnections)
	case p.ConnectionsPerSecond < 0 || p.ConnectionsPerSecond > sandbox.MaxConnectionsPerSecond:
		return invalid("connections_per_second must be from 1 to %d; 0 means the default", sandbox.MaxConnectionsPerSecond)
	case p.AskTimeoutSeconds < 0 || p.AskTimeoutSeconds > sandbox.MaxAskTimeoutSeconds:
		return invalid("ask_timeout_seconds must be from 1 to %d; 0 means the default", sandbox.MaxAskTimeoutSeconds)
	case p.BytesPerSecond < 0:
		return invalid("bytes_per_second must not be negative; 0 means no limit")
	}
	return nil
}

func parseAllowOut(to string, r *rule) error {
	if to == "*" {
		return fmt.Errorf("must not be *; use domains, addresses and ranges, or a rule in rules")
	}
	if err := parseTarget(to, r); err != nil {
		return err
	}
	if r.kind == secretTarget {
		return fmt.Errorf("%q is a secret; only ask rules can name secrets", clip.Text(to, maxShown))
	}
	if r.kind == peerTarget {
		return fmt.Errorf("%q is a sandbox; allow it in rules", clip.Text(to, maxShown))
	}
	return checkUsable(r)
}

func parseDenyOut(to string, r *rule) error {
	if err := parseTarget(to, r); err != nil {
		return err
	}
	if r.kind != rangeTarget {
		return fmt.Errorf("%q is not an address or a range; deny domains in rules, and everything with 0.0.0.0/0", clip.Text(to, maxShown))
	}
	r.all = r.addrs == everyIPv4
	return nil
}

func parseRule(in sandbox.NetworkRule) (*rule, error) {
	r := &rule{allow: in.Action == sandbox.NetworkAllow, ask: in.Action == sandbox.NetworkAsk}
	if !r.allow && !r.ask && in.Action != sandbox.NetworkDeny {
		return r, fmt.Errorf("has action %q; use allow, deny or ask", clip.Text(string(in.Action), maxShown))
	}
	if err := parseTarget(in.To, r); err != nil {
		return r, err
	}
	if err := parseFilter(in, r); err != nil {
		return r, err
	}
	if r.kind == secretTarget && (!r.ask || in.Protocol != "" || len(in.Ports) > 0) {
		return r, fmt.Errorf("names a secret, which is used without a rule unless you want to be asked; use the action ask without protocol and ports, or detach the secret")
	}
	if r.ask && r.kind == peerTarget {
		return r, fmt.Errorf("asks about a sandbox; ask works only for domains, addresses and ranges, so allow or deny %q", clip.Text(in.To, maxShown))
	}
	if r.ask && r.proto == "icmp" {
		return r, fmt.Errorf("asks about icmp, but a ping does not wait for an answer; allow or deny it")
	}
	if r.kind == peerTarget && (r.proto == "udp" || r.proto == "icmp") {
		return r, fmt.Errorf("has protocol %s; sandboxes connect to each other over tcp only", r.proto)
	}
	r.text = string(in.Action) + " " + in.To
	if r.proto != "" {
		r.text += " " + r.proto
	}
	if len(in.Ports) > 0 {
		r.text += " " + strings.Join(in.Ports, ",")
	}
	r.all = !r.allow && r.kind == rangeTarget && r.addrs == everyIPv4
	if (r.allow || r.ask) && r.kind == rangeTarget {
		r.opens = true
		return r, checkUsable(r)
	}
	return r, nil
}

// checkUsable refuses rules that allow something that cannot be a destination.
func checkUsable(r *rule) error {
	if r.kind != rangeTarget {
		return nil
	}
	a := r.addrs.Addr()
	switch {
	case a.IsUnspecified() && r.addrs.IsSingleIP():
		return fmt.Errorf("is the unspecified address, which systems treat as the host itself; use the address you mean")
	case a.IsMulticast():
		return fmt.Errorf("is multicast, which does not leave the sandbox")
	}
	return nil
}

// Judge decides about an attempt.
func (p *Policy) Judge(a Attempt) Decision {
	if a.Peer != "" {
		return p.judgePeer(a)
	}
	d, _ := p.walk(a, true)
	return d
}

// askFor returns the rule that asks before a secret is used, or nil.
func (p *Policy) askFor(secret string) *rule {
	i := slices.IndexFunc(p.secrets, func(r *rule) bool { return r.name == "*" || r.name == secret })
	if i < 0 {
		return nil
	}
	return p.secrets[i]
}

// decided returns the decision about an attempt, and whether it is the same for all names
// that the address may have.
func (p *Policy) decided(a Attempt) (Decision, bool) {
	if a.Peer != "" {
		return p.judgePeer(a), true
	}
	return p.walk(a, false)
}

// walk applies the first rule that matches. If the names are unknown, rules for names may
// or may not match, and the decision is certain only if all of them agree with it.
func (p *Policy) walk(a Attempt, namesKnown bool) (d Decision, certain bool) {
	if a.Addr.IsValid() {
		a.Addr = plain(a.Addr)
		if p.internal.Has(a.Addr) {
			switch by := p.opened(a); {
			case by == nil:
				return Decision{Match: sandbox.MatchInternal, Rule: "internal " + a.Addr.String(),
					Reason: a.Addr.String() + " is an internal address of the host's network; to allow it, add its address to rules"}, true
			case by.ask:
				// A rule that allows the name does not allow the address: that needs an approval.
				defer func() {
					if d.Allow || d.Ask {
						d = decide(by)
					}
				}()
			}
		}
	}
	var maybe [3]bool // whether a rule for names has this outcome
	for _, r := range p.rules {
		if !r.fits(a.Protocol, a.Port) {
			continue
		}
		switch r.kind {
		case peerTarget:
			continue
		case domainTarget, belowTarget:
			if !namesKnown {
				maybe[r.outcome()] = true
				continue
			}
			if !slices.ContainsFunc(a.Names, r.named) && (r.allow || !r.named(a.claimed)) {
				continue
			}
		default:
			if !r.contains(a.Addr) {
				continue
			}
		}
		return decide(r), only(maybe, r.outcome())
	}
	d = p.byPreset()
	if d.Allow {
		return d, only(maybe, outcomeAllow)
	}
	return d, only(maybe, outcomeDeny)
}

// outcome is what a rule decides.
type outcome int

const (
	outcomeDeny outcome = iota
	outcomeAllow
	outcomeAsk
)

// only reports whether is, and nothing else, may be the outcome.
func only(maybe [3]bool, is outcome) bool {
	maybe[is] = false
	return maybe == [3]bool{}
}

func decide(r *rule) Decision {
	d := Decision{Allow: r.allow, Ask: r.ask, Match: r.match(), Rule: r.text, byAddr: r.kind == rangeTarget && !r.all}
	switch {
	case d.Ask:
		d.Reason = "nobody has allowed it, and the policy says ask"
	case !d.Allow:
		d.Reason = "denied by " + r.text
	}
	return d
}

func (p *Policy) byPreset() Decision {
	d := Decision{Allow: p.preset == sandbox.NetworkOpen, Match: sandbox.MatchDefault, Rule: "preset " + string(p.preset)}
	if !d.Allow {
		d.Reason = "no rule allows it, and preset " + string(p.preset) + " denies the rest"
	}
	return d
}

// opened returns the first rule that allows an attempt's internal address or asks about
// it, or nil if there is none.
func (p *Policy) opened(a Attempt) *rule {
	i := slices.IndexFunc(p.rules, func(r *rule) bool {
		return r.opens && r.fits(a.Protocol, a.Port) && r.addrs.Contains(a.Addr) && p.internal.covers(r.addrs)
	})
	if i < 0 {
		return nil
	}
	return p.rules[i]
}

// judgePeer decides about a connection to another sandbox, which only a rule with that
// sandbox's name can allow.
func (p *Policy) judgePeer(a Attempt) Decision {
	for _, r := range p.rules {
		if !r.fits(a.Protocol, a.Port) {
			continue
		}
		if r.kind == peerTarget && r.name == a.Peer || !r.allow && (r.all || r.kind == anyTarget) {
			d := decide(r)
			if d.Ask { // approvals are about names and addresses, not about peers
				d.Ask, d.Reason = false, "no rule allows sandbox:"+a.Peer
			}
			return d
		}
	}
	return Decision{Match: sandbox.MatchSandbox, Rule: "default",
		Reason: "no rule allows sandbox:" + a.Peer}
}

// resolvable decides whether a name may be looked up: whether the policy could allow a
// connection to a host of that name.
func (p *Policy) resolvable(name string) Decision {
	var some *rule // allows addresses, which may be this name's
	for _, r := range p.rules {
		switch r.kind {
		case peerTarget:
			continue
		case domainTarget, belowTarget:
			if !r.named(name) {
				continue
			}
			if r.allow || r.ask || !r.limited() {
				return decide(r)
			}
		case anyTarget:
			if r.ask {
				return decide(r) // also where addresses are allowed: a lookup reveals the name
			}
			if r.allow || !r.limited() {
				return p.allowLookup(decide(r), some)
			}
		case rangeTarget:
			if r.allow && some == nil {
				some = r
			}
			if r.all && (r.ask || !r.limited()) {
				return p.allowLookup(decide(r), some)
			}
		}
	}
	return p.allowLookup(p.byPreset(), some)
}

// allowLookup allows a denied name to be looked up if some rule allows addresses, which may be
// this name's, and no rule allows domains. If a rule does, other names are not looked up:
// a DNS query is itself a message to the domain's name server.
func (p *Policy) allowLookup(d Decision, some *rule) Decision {
	if !d.Allow && !d.Ask && some != nil && !p.byName {
		return decide(some)
	}
	return d
}

// allowsByDefault reports whether names without a rule are allowed.
func (p *Policy) allowsByDefault() bool {
	for _, r := range p.rules {
		if (r.kind == anyTarget || r.all) && !r.limited() {
			return r.allow
		}
	}
	return p.preset == sandbox.NetworkOpen
}

// peerAllowed reports whether any port of a peer is allowed.
func (p *Policy) peerAllowed(name string) bool {
	for _, r := range p.rules {
		switch {
		case r.kind == peerTarget && r.name == name && (r.allow || !r.limited()):
			return r.allow
		case !r.allow && (r.all || r.kind == anyTarget) && !r.limited():
			return false
		}
	}
	return false
}
