package cloud

import (
	"context"
	"slices"
	"strconv"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// secrets are the secrets that a sandbox gets.
type secrets struct {
	Entries   []secretEntry `json:"entries"`
	Violation violation     `json:"on_violation"`
}

// secretEntry is one of these secrets. The values are Cove's: a client names a Cove secret.
type secretEntry struct {
	Env         string              `json:"env_var"`
	Placeholder string              `json:"placeholder"`
	Value       sandbox.SecretValue `json:"value"`
	Source      struct {
		Type      string `json:"type"`
		Var       string `json:"var"`
		Reference string `json:"reference"`
	} `json:"source"`
	Hosts []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"allowed_hosts"`
	Injection struct {
		Headers *bool `json:"headers"`
		Basic   *bool `json:"basic_auth"`
		Query   bool  `json:"query_params"`
		Body    bool  `json:"body"`
	} `json:"injection"`
	Violation *violation `json:"on_violation"`
	TLS       *bool      `json:"require_tls_identity"`
}

type violation struct {
	Type  string   `json:"type"`
	Hosts []string `json:"hosts"`
}

// bind attaches the secrets that a description names to a new sandbox.
func (d *Door) bind(ctx context.Context, s *secrets, req *sandbox.CreateRequest) error {
	if s == nil || len(s.Entries) == 0 {
		return nil
	}
	switch s.Violation.Type {
	case "", "block", "block_and_log": // Cove's log has both
	default:
		return refused("network.secrets.on_violation", "a request with a secret for another host is blocked and logged; give block_and_log")
	}
	req.Secrets, req.Network.Placeholders = map[string]string{}, sandbox.PlaceholderBlock
	for i := range s.Entries {
		e := &s.Entries[i]
		name, err := e.check(s.Violation.Type)
		if err != nil {
			return err
		}
		there, err := d.cfg.Service.GetSecret(ctx, name)
		if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
			return refused("network.secrets.entries", "there is no secret "+strconv.Quote(clip.Text(name, maxShown))+"; make it with: cove secret create")
		}
		if err != nil {
			return err
		}
		if err := e.matches(there); err != nil {
			return err
		}
		if req.Secrets[e.Env] != "" {
			return refused("network.secrets.entries", "the variable "+strconv.Quote(clip.Text(e.Env, maxShown))+" is given twice")
		}
		req.Secrets[e.Env] = there.Name
	}
	return nil
}

// check refuses fields that would have no effect, and returns the name of the secret.
func (e *secretEntry) check(violation string) (name string, err error) {
	const field = "network.secrets.entries"
	switch {
	case e.Value.Reveal() != "":
		return "", refused(field, "a value in the description of a sandbox is refused; keep it with \"cove secret create NAME\" and give the source {type: store, reference: NAME}")
	case e.Placeholder != "" && e.Placeholder != "$MSB_"+e.Env:
		return "", refused(field, "placeholders are Cove's own; leave out that of "+strconv.Quote(clip.Text(e.Env, maxShown)))
	case off(e.TLS):
		return "", refused(field, "a secret goes to a host that proves its name alone; leave out require_tls_identity")
	case off(e.Injection.Headers) != e.Injection.Query:
		return "", refused(field+".injection", "a secret goes into headers, or into the query instead")
	case e.Violation != nil && e.Violation.Type != violation:
		return "", refused(field+".on_violation", "there is one answer to a violation, that of all secrets")
	}
	switch e.Source.Type {
	case "store":
		return e.Source.Reference, nil
	case "env": // the server's environment: its secrets are Cove's
		return e.Source.Var, nil
	}
	return "", refused(field+".source", "name a secret of Cove's: {type: store, reference: NAME}")
}

func off(b *bool) bool { return b != nil && !*b }

// matches refuses a secret that Cove would send to other hosts, or in another way, than the
// description says.
func (e *secretEntry) matches(s *sandbox.Secret) error {
	const field = "network.secrets.entries"
	var hosts []string
	for _, h := range e.Hosts {
		switch h.Type {
		case "exact", "wildcard":
			hosts = append(hosts, h.Value)
		default:
			return refused(field+".allowed_hosts", "a secret has hosts that it is for; give them, exact or wildcard")
		}
	}
	have := slices.Sorted(slices.Values(s.Hosts))
	if slices.Sort(hosts); !slices.Equal(slices.Compact(hosts), slices.Compact(have)) {
		return refused(field+".allowed_hosts", "the secret "+s.Name+" is for other hosts; give exactly its own, as \"cove secret list\" shows them")
	}
	basic := s.Auth.Type == "basic" || s.Auth.User != ""
	if e.Injection.Body != s.Auth.Body || e.Injection.Query != (s.Auth.Type == "query") || basic && off(e.Injection.Basic) {
		return refused(field+".injection", "the secret "+s.Name+" travels in another way; give its own (body, query_params, basic_auth), as \"cove secret list\" shows it")
	}
	return nil
}
