package egress

import (
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// secretName matches the reference to a secret in a header's value.
var secretName = lazyregexp.New(`\$\{secret:([A-Za-z0-9_-]{1,63})\}`)

// transportHeaders concern the connection or how a request travels, which the gateway
// decides.
var transportHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// HeadersFor returns the rule that sets the headers of requests to a host, or nil. The
// host is in lower case without a trailing dot. The rules are as [BindHeaders] returns
// them.
func HeadersFor(rules []sandbox.HeaderRule, host string) *sandbox.HeaderRule {
	var best *sandbox.HeaderRule
	for i := range rules {
		r := &rules[i]
		switch domain, below := strings.CutPrefix(r.To, "*"); { // ".example.com"
		case r.To == host:
			return r
		case below && len(host) > len(domain) && strings.HasSuffix(host, domain) && (best == nil || len(r.To) > len(best.To)):
			best = r
		}
	}
	return best
}

// BindHeaders returns the header rules of a checked policy with their domains and names
// in the form that requests have, and with the result of placeholder in place of each
// secret's name.
func BindHeaders(rules []sandbox.HeaderRule, placeholder func(secret string) string) []sandbox.HeaderRule {
	var bound []sandbox.HeaderRule
	for _, r := range rules {
		to, err := headerHost(r.To)
		if err != nil {
			continue // the policy was checked
		}
		set := make(map[string]string, len(r.Set))
		for name, value := range r.Set {
			set[textproto.CanonicalMIMEHeaderKey(name)] = secretName.ReplaceAllStringFunc(value, func(ref string) string {
				return placeholder(secretName.FindStringSubmatch(ref)[1])
			})
		}
		bound = append(bound, sandbox.HeaderRule{To: to, Set: set})
	}
	return bound
}

// HeaderSecrets returns the hosts to which the header rules of a checked policy send
// secrets, by the names of the secrets.
func HeaderSecrets(rules []sandbox.HeaderRule) map[string][]string {
	hosts := map[string][]string{}
	for _, r := range rules {
		to, err := headerHost(r.To)
		if err != nil {
			continue // the policy was checked
		}
		for _, value := range r.Set {
			for _, m := range secretName.FindAllStringSubmatch(value, -1) {
				if !slices.Contains(hosts[m[1]], to) {
					hosts[m[1]] = append(hosts[m[1]], to)
				}
			}
		}
	}
	return hosts
}

// headerHost returns a domain, or "*." and a domain, in lower case and ASCII.
func headerHost(to string) (string, error) {
	var r rule
	if err := parseDomain(to, &r); err != nil {
		return "", err
	}
	if r.kind == belowTarget {
		return "*." + r.name, nil
	}
	return r.name, nil
}

func checkHeaders(rules []sandbox.HeaderRule) error {
	if n := len(rules); n > sandbox.MaxHeaderRules {
		return invalid("headers has %d rules; use at most %d, and *.domain for all below a domain", n, sandbox.MaxHeaderRules)
	}
	seen := map[string]bool{}
	for i, r := range rules {
		to, err := headerHost(r.To)
		if err != nil {
			return invalid("headers[%d].to %w", i, err)
		}
		if seen[to] {
			return invalid("headers[%d].to %q already has a rule; use one rule for each domain", i, to)
		}
		seen[to] = true
		if n := len(r.Set); n == 0 || n > sandbox.MaxHeaders {
			return invalid("headers[%d].set has %d headers; use 1 to %d", i, n, sandbox.MaxHeaders)
		}
		names := map[string]bool{}
		for name, value := range r.Set {
			canonical := textproto.CanonicalMIMEHeaderKey(name)
			if err := checkHeader(canonical, value); err != nil {
				return invalid("headers[%d].set: %w", i, err)
			}
			if names[canonical] {
				return invalid("headers[%d].set has %s twice; leave one out", i, canonical)
			}
			names[canonical] = true
		}
	}
	return nil
}

func checkHeader(name, value string) error {
	rest := secretName.ReplaceAllString(value, "")
	switch {
	case len(name) > sandbox.MaxHeaderName || !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%q is not a valid header name; use 1 to %d of the characters that HTTP allows in names", clip.Text(name, maxShown), sandbox.MaxHeaderName)
	case slices.Contains(transportHeaders, name):
		return fmt.Errorf("%s controls how a request is sent, which the gateway decides; leave it out", name)
	case len(value) > sandbox.MaxHeaderValue:
		return fmt.Errorf("%s has %d bytes; use at most %d", name, len(value), sandbox.MaxHeaderValue)
	case !httpguts.ValidHeaderFieldValue(value) || strings.Trim(value, " \t") != value:
		return fmt.Errorf("%s has control characters, or leading or trailing white space, which HTTP removes", name)
	case strings.Contains(rest, "${"):
		return fmt.Errorf("%s has a ${ that does not name a secret; use ${secret:NAME}", name)
	case len(rest) < len(value) && slices.Contains(ShownHeaders, name):
		return fmt.Errorf("%s is a header that servers show and log; put the secret into another header", name)
	}
	return nil
}

// ShownHeaders are headers that carry no credentials: servers write them to logs and
// pages, or pass them on. The names are in canonical form.
var ShownHeaders = []string{
	"Forwarded", "From", "Host", "Origin", "Referer", "User-Agent", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
	"X-Real-Ip", "X-Request-Id",
}
