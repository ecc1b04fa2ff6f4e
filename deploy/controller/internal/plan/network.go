package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"

	extensions "github.com/cove-sh/cove/deploy/controller/api/extensions/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// Network returns the value of [NetworkAnnotation] for the network policy of a template:
// rules about addresses. The error is an [Error]. Nothing connects to a sandbox in any
// case, except by previews, which need a key.
func Network(n *extensions.NetworkPolicySpec) (string, error) {
	policy := sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	var problems []string
	var denied, allowed []block
	for i, rule := range n.Egress {
		problem := func(why string) {
			problems = append(problems, fmt.Sprintf("networkPolicy.egress[%d]: %s", i, why))
		}
		blocks, why := peers(rule.To)
		if why != "" {
			problem(why)
		}
		ports, why := protocols(rule.Ports)
		if why != "" {
			problem(why)
		}
		for _, b := range blocks {
			allowed = append(allowed, b)
			for _, not := range b.except {
				policy.Rules = append(policy.Rules, sandbox.NetworkRule{Action: sandbox.NetworkDeny, To: not})
				denied = append(denied, block{cidr: not, of: b.cidr})
			}
			for _, p := range ports {
				p.Action, p.To = sandbox.NetworkAllow, b.cidr
				policy.Rules = append(policy.Rules, p)
			}
		}
	}
	// Of the rules of Cove, the first that matches decides; those of Kubernetes add up.
	for _, not := range denied {
		for _, b := range allowed {
			if b.cidr != not.of && overlap(b.cidr, not.cidr) {
				problems = append(problems, fmt.Sprintf("networkPolicy.egress: %s is excepted from %s and allowed by %s; write ranges that do not overlap", not.cidr, not.of, b.cidr))
			}
		}
	}
	if len(problems) > 0 {
		return "", &Error{problems}
	}
	data, err := json.Marshal(policy)
	return string(data), err
}

// block is a range of addresses, with those that are excepted, or the one it is excepted from.
type block struct {
	cidr   string
	except []string
	of     string
}

func overlap(a, b string) bool {
	if a == "*" {
		return true
	}
	p, err := netip.ParsePrefix(a)
	q, err2 := netip.ParsePrefix(b)
	return err == nil && err2 == nil && p.Overlaps(q)
}

func peers(to []networkingv1.NetworkPolicyPeer) (all []block, why string) {
	if len(to) == 0 {
		return []block{{cidr: "*"}}, ""
	}
	for _, peer := range to {
		if peer.IPBlock == nil || peer.PodSelector != nil || peer.NamespaceSelector != nil {
			return nil, "sandboxes and what they reach are no Pods: use ipBlock, or the annotation " + NetworkAnnotation + " on the podTemplate, which takes names too"
		}
		all = append(all, block{cidr: peer.IPBlock.CIDR, except: peer.IPBlock.Except})
	}
	return all, ""
}

func protocols(ports []networkingv1.NetworkPolicyPort) (rules []sandbox.NetworkRule, why string) {
	if len(ports) == 0 {
		return []sandbox.NetworkRule{{}}, ""
	}
	for _, p := range ports {
		rule := sandbox.NetworkRule{Protocol: "tcp"}
		if p.Protocol != nil {
			switch *p.Protocol {
			case "TCP":
			case "UDP":
				rule.Protocol = "udp"
			default:
				return nil, "sandboxes have no " + string(*p.Protocol)
			}
		}
		if p.Port != nil {
			if p.Port.StrVal != "" {
				return nil, "use numbers of ports, not names"
			}
			ports := fmt.Sprint(p.Port.IntVal)
			if p.EndPort != nil {
				ports += fmt.Sprintf("-%d", *p.EndPort)
			}
			rule.Ports = []string{ports}
		}
		rules = append(rules, rule)
	}
	return rules, ""
}
