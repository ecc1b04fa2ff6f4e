package cloud

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// network is the network part of a description.
type network struct {
	Enabled bool     `json:"enabled"`
	Policy  *policy  `json:"policy,omitempty"`
	Secrets *secrets `json:"secrets,omitempty"`
	Max     int      `json:"max_connections,omitempty"`
	Strict  bool     `json:"strict"`
}

type policy struct {
	Egress  string `json:"default_egress"`
	Ingress string `json:"default_ingress"`
	Rules   []rule `json:"rules"`
}

type rule struct {
	Direction   string          `json:"direction"`
	Destination json.RawMessage `json:"destination"`
	Protocols   []string        `json:"protocols"`
	Ports       []portRange     `json:"ports"`
	Action      string          `json:"action"`
}

type portRange struct {
	Start uint16 `json:"start"`
	End   uint16 `json:"end"`
}

const (
	allow  = "allow"
	deny   = "deny"
	egress = "egress"
	dns    = 53
)

// groups are the addresses of the product's groups. The group public is everything in none
// of them, which Cove denies unless a rule names it.
var groups = map[string][]string{
	"loopback":   {"127.0.0.0/8", "::1/128"},
	"private":    {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"},
	"link_local": {"169.254.0.0/16", "fe80::/10"},
	"metadata":   {"169.254.169.254/32"},
	"multicast":  {"224.0.0.0/4", "ff00::/8"},
}

// mapped returns the policy in Cove's terms, or nil for the server's default.
func (n *network) mapped() (*sandbox.NetworkPolicy, error) {
	if n.Strict {
		return nil, refused("network.strict", "what Cove cannot judge by a policy is denied in any case; leave it out")
	}
	out := sandbox.NetworkPolicy{MaxConnections: n.Max}
	switch {
	case !n.Enabled:
		out.Preset = sandbox.NetworkNone
		return &out, nil
	case n.Policy == nil && n.Secrets == nil && n.Max == 0:
		return nil, nil
	case n.Policy == nil:
		return &out, nil
	}
	return &out, n.Policy.apply(&out)
}

func (p *policy) apply(out *sandbox.NetworkPolicy) error {
	for name, action := range map[string]string{"default_egress": p.Egress, "default_ingress": p.Ingress} {
		if action != allow && action != deny {
			return refused("network.policy."+name, "give allow or deny")
		}
	}
	if p.Egress == deny {
		out.Preset = sandbox.NetworkNone
	}
	rules := p.Rules
	// A last rule that allows everything public is equivalent to Cove's preset.
	if n := len(rules); n > 0 && p.Egress == deny && rules[n-1].allPublic() {
		out.Preset, rules = sandbox.NetworkOpen, rules[:n-1]
	}
	for i := range rules {
		mapped, err := rules[i].mapped()
		if err != nil {
			return err
		}
		out.Rules = append(out.Rules, mapped...)
	}
	return nil
}

// destination is the destination of a rule; exactly one field is set.
type destination struct {
	Any    bool   `json:"-"`
	CIDR   string `json:"cidr"`
	Domain string `json:"domain"`
	Suffix string `json:"domain_suffix"`
	Group  string `json:"group"`
}

func (r *rule) destination() (d destination, err error) {
	var word string
	if json.Unmarshal(r.Destination, &word) == nil {
		d.Any = word == "any"
	} else if err := sdkdoor.DecodeKnown(r.Destination, &d, sdkdoor.Empty); err != nil {
		return d, refused("network.policy.rules.destination", "it is neither a word nor an object of what Cove knows: "+clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
	}
	n := 0
	for _, set := range []bool{d.Any, d.CIDR != "", d.Domain != "", d.Suffix != "", d.Group != ""} {
		if set {
			n++
		}
	}
	if n != 1 {
		return d, refused("network.policy.rules.destination", `give "any", cidr, domain, domain_suffix or group`)
	}
	return d, nil
}

func (r *rule) allPublic() bool {
	d, err := r.destination()
	return err == nil && r.Direction == egress && r.Action == allow && len(r.Protocols) == 0 && len(r.Ports) == 0 && (d.Any || d.Group == "public")
}

// mapped returns Cove's rules for one of the product's.
func (r *rule) mapped() ([]sandbox.NetworkRule, error) {
	switch {
	case r.Direction != egress:
		return nil, refused("network.policy.rules.direction", "nothing comes into a sandbox but by its owner's own calls, so there are rules for egress alone (got "+strconv.Quote(clip.Text(r.Direction, maxShown))+")")
	case r.Action != allow && r.Action != deny:
		return nil, refused("network.policy.rules.action", "give allow or deny")
	}
	to, err := r.targets()
	if err != nil || to == nil {
		return nil, err
	}
	protocols, err := r.protocols()
	if err != nil {
		return nil, err
	}
	ports, err := r.ports()
	if err != nil {
		return nil, err
	}
	var out []sandbox.NetworkRule
	for _, target := range to {
		for _, protocol := range protocols {
			out = append(out, sandbox.NetworkRule{Action: sandbox.NetworkAction(r.Action), To: target, Protocol: protocol, Ports: ports})
		}
	}
	return out, nil
}

// targets returns a rule's destinations in Cove's terms; nil if Cove does what the rule
// says anyway.
func (r *rule) targets() ([]string, error) {
	d, err := r.destination()
	switch {
	case err != nil:
		return nil, err
	case d.Any, d.Group == "public" && r.Action == allow:
		return []string{"*"}, nil
	case d.CIDR != "":
		return []string{d.CIDR}, nil
	case d.Domain != "":
		return []string{d.Domain}, nil
	case d.Suffix != "":
		return []string{d.Suffix, "*." + d.Suffix}, nil
	case d.Group == "host":
		// The product's resolver is at the host's address. Cove's resolver answers under
		// every policy that allows anything, and no other service of the host can be
		// reached.
		if r.Action == deny && len(r.Ports) == 0 || r.Action == allow && slices.Equal(r.Ports, []portRange{{dns, dns}}) {
			return nil, nil
		}
		return nil, refused("network.policy.rules.destination", "of the host, a sandbox reaches the resolver and nothing else")
	case groups[d.Group] == nil || d.Group == "public":
		return nil, refused("network.policy.rules.destination", fmt.Sprintf("Cove has no rule to %s the group %q", r.Action, clip.Text(d.Group, maxShown)))
	case r.Action == allow && d.Group != "private":
		return nil, refused("network.policy.rules.destination", "Cove does not open the group "+d.Group+" to a sandbox; name an address")
	}
	return groups[d.Group], nil
}

func (r *rule) protocols() ([]string, error) {
	var out []string
	for _, name := range r.Protocols {
		switch name {
		case "tcp", "udp":
		case "icmpv4", "icmpv6":
			name = "icmp"
		default:
			return nil, refused("network.policy.rules.protocols", "give tcp, udp, icmpv4 and icmpv6")
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		out = []string{""}
	}
	return out, nil
}

func (r *rule) ports() ([]string, error) {
	var out []string
	for _, p := range r.Ports {
		switch {
		case p.Start == 0 || p.End < p.Start:
			return nil, refused("network.policy.rules.ports", "give ranges of ports from 1 to 65535")
		case p.Start == p.End:
			out = append(out, strconv.Itoa(int(p.Start)))
		default:
			out = append(out, fmt.Sprintf("%d-%d", p.Start, p.End))
		}
	}
	return out, nil
}
