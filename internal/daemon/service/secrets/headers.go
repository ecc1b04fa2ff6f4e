package secrets

import (
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// HeaderBindings makes bindings of the caller's secrets that the headers of a checked network
// policy name. A secret that is gone keeps its binding among the old ones, and is
// refused where it is used.
func (s *Secrets) HeaderBindings(c *call.Call, p *sandbox.NetworkPolicy, old []store.Binding) ([]store.Binding, error) {
	hosts := egress.HeaderSecrets(p.Headers)
	if len(hosts) > 0 && s.cfg.Vault == nil {
		return nil, ErrNone
	}
	var bound []store.Binding
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		r, err := s.cfg.Store.SecretByName(c.Ctx, c.Caller.Team, name)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			i := slices.IndexFunc(old, func(b store.Binding) bool { return b.Env == "" && b.Secret == name })
			if i < 0 {
				return nil, notFound(name)
			}
			bound = append(bound, old[i])
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, host := range hosts[name] {
			if !covers(r.Hosts, host) {
				return nil, validate.Errorf("headers for %s have secret %q, which is for %s only", host, name, strings.Join(r.Hosts, ", "))
			}
		}
		placeholder, err := vault.NewPlaceholder("")
		if err != nil {
			return nil, err
		}
		bound = append(bound, store.Binding{SecretID: r.ID, Secret: r.Name, Placeholder: placeholder})
	}
	return bound, nil
}

// ReplaceHeaderBindings replaces the bindings of a record that are for headers, and refuses too many.
func ReplaceHeaderBindings(r *store.Record, bound []store.Binding) error {
	r.Bindings = append(slices.DeleteFunc(slices.Clone(r.Bindings), func(b store.Binding) bool { return b.Env == "" }), bound...)
	return CheckBindings(r)
}

// HeaderPlaceholder returns the placeholder of a secret in the headers of a record's policy.
func HeaderPlaceholder(r *store.Record, secret string) string {
	for _, b := range r.Bindings {
		if b.Env == "" && b.Secret == secret {
			return b.Placeholder
		}
	}
	return ""
}

// HeaderHosts returns the hosts of header rules that a secret is for.
func HeaderHosts(r *store.SecretRecord, hosts []string) []string {
	return slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return !covers(r.Hosts, host) })
}

// covers reports whether a secret with these hosts is for a host, or for all hosts below a
// domain.
func covers(hosts []string, host string) bool {
	return slices.ContainsFunc(hosts, func(h string) bool {
		below, wildcard := strings.CutPrefix(h, "*") // ".example.com"
		return h == sandbox.AnyHost || h == host || wildcard && strings.HasSuffix(strings.TrimPrefix(host, "*"), below)
	})
}
