package control

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// everything is the range of all addresses.
const everything = "0.0.0.0/0"

// networkBody says what a sandbox can reach. Lists are separated by commas.
type networkBody struct {
	BlockAll *bool   `json:"networkBlockAll"`
	CIDRs    *string `json:"networkAllowList"`
	Domains  *string `json:"domainAllowList"`
}

// policyOf returns a policy with a client's settings, or nil if there are none. It does
// not change what the product's settings cannot express.
func policyOf(was *sandbox.NetworkPolicy, b networkBody) (*sandbox.NetworkPolicy, error) {
	var allow []string
	if b.CIDRs != nil {
		for _, text := range splitList(*b.CIDRs) {
			if !isRange(text) {
				return nil, answer.Invalid("networkAllowList: %.80q is no range of addresses such as 192.0.2.0/24", text)
			}
			allow = append(allow, text)
		}
	}
	if b.Domains != nil {
		for _, name := range splitList(*b.Domains) {
			if isRange(name) {
				return nil, answer.Invalid("domainAllowList: %.80q is no domain; give ranges in networkAllowList", name)
			}
			allow = append(allow, name)
		}
	}
	block := b.BlockAll != nil && *b.BlockAll
	if block && len(allow) > 0 {
		return nil, answer.Invalid("networkBlockAll and a list of what is allowed exclude each other; give one of them")
	}
	if was == nil && !block && len(allow) == 0 {
		return nil, nil
	}
	var policy sandbox.NetworkPolicy
	if was != nil {
		policy = *was
	}
	policy.AllowOut, policy.DenyOut = nil, slices.DeleteFunc(slices.Clone(policy.DenyOut), func(s string) bool { return s == everything })
	switch {
	case block:
		policy.DenyOut = append(policy.DenyOut, everything)
	case len(allow) > 0:
		policy.AllowOut, policy.DenyOut = allow, append(policy.DenyOut, everything)
	}
	return &policy, nil
}

func isRange(text string) bool {
	if strings.Contains(text, "/") {
		_, err := netip.ParsePrefix(text)
		return err == nil
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}

// setNetwork describes a policy in the product's terms.
func (o *object) setNetwork(policy *sandbox.NetworkPolicy) {
	if policy == nil {
		return
	}
	closed := policy.Preset == sandbox.NetworkNone || slices.Contains(policy.DenyOut, everything)
	o.NetworkBlockAll = closed && len(policy.AllowOut) == 0
	if !closed {
		return
	}
	var ranges, domains []string
	for _, to := range policy.AllowOut {
		if isRange(to) {
			ranges = append(ranges, to)
		} else {
			domains = append(domains, to)
		}
	}
	o.NetworkAllowList, o.DomainAllowList = strings.Join(ranges, ","), strings.Join(domains, ",")
}

// setNetwork changes what a sandbox can reach.
func (p *plane) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var body networkBody
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if body == (networkBody{}) {
		return answer.Invalid("no setting is given; give networkBlockAll, networkAllowList or domainAllowList")
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	was, err := p.cfg.Service.GetNetwork(r.Context(), box.ID)
	if err != nil {
		return about(box.ID, err)
	}
	policy, err := policyOf(was, body)
	if err != nil {
		return err
	}
	if _, err = p.cfg.Service.SetNetwork(r.Context(), box.ID, *policy); err == nil {
		box, err = p.cfg.Service.Get(r.Context(), box.ID)
	}
	return p.respond(w, r, box, err)
}
