package control

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// allTraffic is what the clients call ALL_TRAFFIC.
const allTraffic = "0.0.0.0/0"

// egress is the network policy of a sandbox, and who may connect to it.
type egress struct {
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	// The following are refused.
	Rules           json.RawMessage `json:"rules,omitempty"`
	EgressProxy     json.RawMessage `json:"egressProxy,omitempty"`
	MaskRequestHost json.RawMessage `json:"maskRequestHost,omitempty"`
	HTTPSPorts      json.RawMessage `json:"httpsPorts,omitempty"`
}

// check refuses fields that would have no effect, and what E2B refuses.
func (e *egress) check(in string) error {
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"rules", e.Rules}, {"egressProxy", e.EgressProxy}, {"maskRequestHost", e.MaskRequestHost}, {"httpsPorts", e.HTTPSPorts}} {
		if len(f.raw) > 0 {
			return refused(in + f.name)
		}
	}
	for _, to := range e.DenyOut {
		if !isAddress(to) {
			return invalid("invalid denied CIDR %.80q", to)
		}
	}
	names := slices.ContainsFunc(e.AllowOut, func(to string) bool { return !isAddress(to) })
	if names && !slices.Contains(e.DenyOut, allTraffic) {
		return invalid("domains in %sallowOut have an effect only if %sdenyOut holds %s (ALL_TRAFFIC); add it", in, in, allTraffic)
	}
	return nil
}

func isAddress(text string) bool {
	if strings.Contains(text, "/") {
		_, err := netip.ParsePrefix(text)
		return err == nil
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}

// policyOf returns a policy with the rules of a request. What E2B's rules cannot
// express is unchanged.
func policyOf(was *sandbox.NetworkPolicy, e *egress, internet *bool) *sandbox.NetworkPolicy {
	var policy sandbox.NetworkPolicy
	if was != nil {
		policy = *was
	}
	policy.AllowOut, policy.DenyOut = slices.Clone(e.AllowOut), slices.Clone(e.DenyOut)
	if internet != nil && !*internet && !slices.Contains(policy.DenyOut, allTraffic) {
		policy.DenyOut = append(policy.DenyOut, allTraffic)
	}
	return &policy
}

type networkBody struct {
	egress
	AllowInternetAccess *bool `json:"allow_internet_access"`
}

// setNetwork replaces what a sandbox may reach.
func (p *plane) setNetwork(r *http.Request, args []string, body *networkBody) (*response, error) {
	if err := body.check(""); err != nil {
		return nil, err
	}
	if body.AllowPublicTraffic != nil {
		return nil, refused("allowPublicTraffic")
	}
	box, err := p.running(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	was, err := p.cfg.Service.GetNetwork(r.Context(), box.ID)
	if err != nil {
		return nil, about(args[0], err)
	}
	if _, err := p.cfg.Service.SetNetwork(r.Context(), box.ID, *policyOf(was, &body.egress, body.AllowInternetAccess)); err != nil {
		return nil, about(args[0], err)
	}
	return noContent, nil
}
