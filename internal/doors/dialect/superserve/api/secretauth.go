package api

import (
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// authRule says how a secret is sent, in the product's terms.
type authRule struct {
	Type     string            `json:"type"`
	Header   string            `json:"header"`
	Prefix   string            `json:"prefix"`
	Username string            `json:"username"`
	Headers  map[string]string `json:"headers"`
}

// secretAuth is a rule, or one for each of several hosts.
type secretAuth struct {
	authRule
	PerHost []hostRule `json:"per_host"`
}

type hostRule struct {
	authRule
	Hosts []string `json:"hosts"`
}

// valuePlace matches the placeholder for the value in a custom header.
var valuePlace = lazyregexp.New(`\{\{\s*value\s*\}\}`)

// mapped returns the rule for hosts in the service's terms.
func (a *secretAuth) mapped(hosts []string) (*sandbox.SecretAuth, error) {
	if slices.Contains(hosts, sandbox.AnyHost) {
		return nil, invalid("hosts: a secret that is for every host can be in no variable of a sandbox; name the hosts that it is for")
	}
	if a.PerHost == nil {
		return a.authRule.mapped()
	}
	if a.Type != "" || a.Header != "" || a.Prefix != "" || a.Username != "" || a.Headers != nil {
		return nil, invalid("auth.per_host excludes the other fields of auth")
	}
	if len(a.PerHost) != 1 || !slices.Equal(slices.Sorted(slices.Values(a.PerHost[0].Hosts)), slices.Sorted(slices.Values(hosts))) {
		return nil, invalid("auth.per_host: a secret of Cove's travels in one way to all of its hosts; make a secret for each rule, or use the provider github")
	}
	return a.PerHost[0].authRule.mapped()
}

func (a *authRule) mapped() (*sandbox.SecretAuth, error) {
	given := map[string]bool{"header": a.Header != "", "prefix": a.Prefix != "", "username": a.Username != "", "headers": a.Headers != nil}
	may := map[string][]string{"bearer": nil, "basic": {"username"}, "api-key": {"header", "prefix"}, "custom": {"headers"}}
	fields, ok := may[a.Type]
	if !ok {
		return nil, invalid("auth.type must be bearer, basic, api-key or custom")
	}
	for _, name := range []string{"header", "prefix", "username", "headers"} {
		if given[name] && !slices.Contains(fields, name) {
			return nil, invalid("auth.%s does not go with the type %s", name, a.Type)
		}
	}
	switch a.Type {
	case "basic":
		if a.Username == "" {
			return nil, invalid("auth.username: Cove needs the user of basic authentication; it does not take the one that the sandbox sends")
		}
		return &sandbox.SecretAuth{Type: "basic", User: a.Username}, nil
	case "api-key":
		if a.Header == "" {
			return nil, invalid("auth.header is missing; name the header that has the key")
		}
		return &sandbox.SecretAuth{Type: "header", Name: a.Header, Prefix: a.Prefix}, nil
	case "custom":
		return a.custom()
	}
	return &sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Bearer "}, nil
}

// custom maps the only form that Cove has: one header, with the value at its end.
func (a *authRule) custom() (*sandbox.SecretAuth, error) {
	for name, template := range a.Headers {
		at := valuePlace.FindStringIndex(template)
		if len(a.Headers) != 1 || at == nil || at[1] != len(template) {
			break
		}
		return &sandbox.SecretAuth{Type: "header", Name: name, Prefix: template[:at[0]]}, nil
	}
	return nil, invalid("auth.headers: a secret of Cove's travels in one header, which ends in {{ value }}; give one such header")
}

// authConfig returns the product's description of how a secret is sent, except its type.
func authConfig(a *sandbox.SecretAuth) map[string]any {
	out := map[string]any{}
	switch terms.AuthType(a) {
	case "basic":
		out["username"] = a.User
	case "api-key":
		out["header"] = a.Name
		if a.Prefix != "" {
			out["prefix"] = strings.TrimRight(a.Prefix, " ")
		}
	case "custom":
		out["in"], out["name"] = a.Type, a.Name
	}
	return out
}
