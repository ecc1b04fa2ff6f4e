package control

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// allTraffic is what the clients call ALL_TRAFFIC.
const allTraffic = "0.0.0.0/0"

// egress is the network policy of a sandbox, and who may connect to it.
type egress struct {
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	// Rules are by domain, at most one for each.
	Rules map[string][]networkRule `json:"rules,omitempty"`
	// The following are refused.
	EgressProxy     json.RawMessage `json:"egressProxy,omitempty"`
	MaskRequestHost json.RawMessage `json:"maskRequestHost,omitempty"`
	HTTPSPorts      json.RawMessage `json:"httpsPorts,omitempty"`
}

// check refuses fields that would have no effect, and what E2B refuses.
func (e *egress) check(in string) error {
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"egressProxy", e.EgressProxy}, {"maskRequestHost", e.MaskRequestHost}, {"httpsPorts", e.HTTPSPorts}} {
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
	for to, rules := range e.Rules {
		if len(rules) != 1 {
			return invalid("%srules of %.80q has %d rules; give one", in, to, len(rules))
		}
		for name, value := range rules[0].Transform.Headers {
			if rest := e2bSecret.ReplaceAllString(value, ""); strings.Contains(rest, "${") {
				return invalid("%srules: header %.80q has a placeholder that Cove does not resolve; it resolves ${e2b.secrets.NAME}", in, name)
			}
		}
	}
	return nil
}

// networkRule sets headers of HTTPS requests.
type networkRule struct {
	Transform struct {
		Headers map[string]string `json:"headers,omitempty"`
	} `json:"transform,omitzero"`
}

// How a header names a secret, in the product and in Cove.
var (
	e2bSecret  = lazyregexp.New(`\$\{e2b\.secrets\.([A-Za-z0-9_-]+)\}`)
	coveSecret = lazyregexp.New(`\$\{secret:([A-Za-z0-9_-]+)\}`)
)

// headersOf translates rules.
func headersOf(rules map[string][]networkRule) []sandbox.HeaderRule {
	var out []sandbox.HeaderRule
	for _, to := range slices.Sorted(maps.Keys(rules)) {
		set := map[string]string{}
		for name, value := range rules[to][0].Transform.Headers {
			set[name] = e2bSecret.ReplaceAllString(value, "$${secret:$1}")
		}
		if len(set) > 0 {
			out = append(out, sandbox.HeaderRule{To: to, Set: set})
		}
	}
	return out
}

// findSecrets refuses rules that name a secret which is not there, as an error of the
// request: that the sandbox is not there would be another. Each is looked for once.
func (p *plane) findSecrets(ctx context.Context, rules map[string][]networkRule) error {
	found := map[string]bool{}
	for to, list := range rules {
		for _, value := range list[0].Transform.Headers {
			for _, m := range e2bSecret.FindAllStringSubmatch(value, -1) {
				if found[m[1]] {
					continue
				}
				if len(found) == sandbox.MaxSecretsPerSandbox {
					return invalid("the rules name more than %d secrets; name fewer", sandbox.MaxSecretsPerSandbox)
				}
				found[m[1]] = true
				if _, err := p.cfg.Service.GetSecret(ctx, m[1]); sandbox.CodeOf(err) == sandbox.CodeNotFound {
					return invalid("the rules for %.80q name the secret %.80q, which there is not; create it first", to, m[1])
				} else if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// viewRules is headersOf the other way.
func viewRules(headers []sandbox.HeaderRule) map[string][]networkRule {
	var rules map[string][]networkRule
	for _, h := range headers {
		var r networkRule
		r.Transform.Headers = map[string]string{}
		for name, value := range h.Set {
			r.Transform.Headers[name] = coveSecret.ReplaceAllString(value, "$${e2b.secrets.$1}")
		}
		if rules == nil {
			rules = map[string][]networkRule{}
		}
		rules[h.To] = []networkRule{r}
	}
	return rules
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
	policy.AllowOut, policy.DenyOut, policy.Headers = slices.Clone(e.AllowOut), slices.Clone(e.DenyOut), headersOf(e.Rules)
	if internet != nil && !*internet && !slices.Contains(policy.DenyOut, allTraffic) {
		policy.DenyOut = append(policy.DenyOut, allTraffic)
	}
	return &policy
}

type networkBody struct {
	egress
	AllowInternetAccess *bool `json:"allow_internet_access"`
}

// setNetwork replaces what a sandbox can reach.
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
	if err := p.findSecrets(r.Context(), body.Rules); err != nil {
		return nil, err
	}
	if _, err := p.cfg.Service.SetNetwork(r.Context(), box.ID, *policyOf(was, &body.egress, body.AllowInternetAccess)); err != nil {
		return nil, about(args[0], err)
	}
	return noContent, nil
}
