package config

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// SSO lets people sign in to the console by an identity provider that speaks OpenID
// Connect. Without an issuer there is none.
type SSO struct {
	// Name is what people call the provider: "Sign in with NAME".
	Name string `yaml:"name"`
	// Issuer is the provider's address, exactly as it says it itself.
	Issuer   string `yaml:"issuer"`
	ClientID string `yaml:"client_id"`
	// ClientSecretFile is a file with the client's secret. The environment may have it
	// instead; a client without one is a public client.
	ClientSecretFile string `yaml:"client_secret_file"`
	// RedirectURL is where people come back, as the provider knows it: the console's
	// address and /console/sso/callback. Empty is made of what is known of the server's
	// address.
	RedirectURL string `yaml:"redirect_url"`
	// RequestScopes are what the provider is asked for.
	RequestScopes []string `yaml:"request_scopes"`
	// SessionLifetime is how long somebody is signed in at most: what the provider
	// takes away from them counts after that.
	SessionLifetime time.Duration `yaml:"session_lifetime"`
	// Rules say who may sign in, and what they may do. The first that somebody fulfils
	// counts; who fulfils none is refused.
	Rules []SSORule `yaml:"rules"`
}

// SSORule gives those a team and scopes of whom the provider says something.
type SSORule struct {
	// Claim is the name of what the provider says, and Value what it must be, or hold if
	// it is a list. The claim email must be verified, and takes *@example.com.
	Claim  string          `yaml:"claim"`
	Value  string          `yaml:"value"`
	Team   string          `yaml:"team"`
	Scopes []sandbox.Scope `yaml:"scopes"`
}

const (
	// ssoReturnPath is the path of a redirect URL.
	ssoReturnPath = "/console/sso/callback"

	maxSSOLifetime = 7 * 24 * time.Hour
	maxSSORules    = 256
	maxSSOText     = 256
)

// given reports whether anything is said without which there is no single sign-on.
func (s *SSO) given() bool {
	return s.ClientID+s.ClientSecretFile+s.RedirectURL != "" || len(s.Rules) > 0
}

var (
	// teams are those that keys may have.
	teams       = lazyregexp.New(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	scopeTokens = lazyregexp.New(`^[\x21\x23-\x5b\x5d-\x7e]+$`) // of RFC 6749
)

func (c *Config) validateSSO() error {
	s := &c.SSO
	for _, check := range []struct {
		key, problem string
		bad          bool
	}{
		{"sso", "does not work with dev, which needs no sign-in; remove one of them", c.Dev},
		{"sso.name", "must be 1 to 64 characters in one line", badSSOText(s.Name) || len(s.Name) > 64},
		{"sso.issuer", "must be the https address of an identity provider without query and fragment, such as https://login.example.com; http is allowed only for one on this machine", badSSOAddress(s.Issuer)},
		{"sso.client_id", "must be 1 to 256 bytes long; set it to the id that the provider has for this server", badSSOText(s.ClientID)},
		{"sso.client_secret_file", "must be an absolute path", relative(s.ClientSecretFile)},
		{"sso.redirect_url", "must be the https address of this server with the path " + ssoReturnPath + "; http is allowed only for one on this machine", s.RedirectURL != "" && badSSOReturn(s.RedirectURL)},
		{"sso.request_scopes", "must be valid scopes and include openid; use at least [openid]", !slices.Contains(s.RequestScopes, "openid") || slices.ContainsFunc(s.RequestScopes, badSSOScope)},
		{"sso.session_lifetime", "must be from 1m to 168h", s.SessionLifetime < time.Minute || s.SessionLifetime > maxSSOLifetime},
		{"sso.rules", "must be 1 to 256 rules; without a rule nobody can sign in", len(s.Rules) == 0 || len(s.Rules) > maxSSORules},
		{"sso.rules", "must have claims and values of 1 to 256 characters in one line", slices.ContainsFunc(s.Rules, func(r SSORule) bool { return badSSOText(r.Claim) || badSSOText(r.Value) })},
		{"sso.rules", "must have teams of 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", slices.ContainsFunc(s.Rules, func(r SSORule) bool { return !teams.MatchString(r.Team) })},
		{"sso.rules", "must have scopes; use some of " + scopeNames(), slices.ContainsFunc(s.Rules, badSSOScopes)},
		{"sso.rules", "must have, for the claim email, an address or *@ and a domain as the value", slices.ContainsFunc(s.Rules, func(r SSORule) bool { return r.Claim == "email" && badSSOEmail(r.Value) })},
	} {
		if check.bad {
			return sandbox.Errorf(sandbox.CodeInvalid, "configuration: %s %s", check.key, check.problem)
		}
	}
	return nil
}

func badSSOText(s string) bool {
	return s == "" || len(s) > maxSSOText || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// badSSOAddress reports whether an address is none to which people and secrets may go.
func badSSOAddress(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.ContainsAny(s, "?#") || len(s) > maxSSOText {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return u.Scheme != "https" && (u.Scheme != "http" || !local)
}

func badSSOReturn(s string) bool {
	u, err := url.Parse(s)
	return badSSOAddress(s) || err != nil || u.Path != ssoReturnPath
}

func badSSOScope(s string) bool { return !scopeTokens.MatchString(s) || len(s) > maxSSOText }

func badSSOScopes(r SSORule) bool {
	return len(r.Scopes) == 0 || slices.ContainsFunc(r.Scopes, func(s sandbox.Scope) bool { return !slices.Contains(sandbox.Scopes(), s) })
}

func scopeNames() string {
	var names []string
	for _, s := range sandbox.Scopes() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func badSSOEmail(s string) bool {
	before, domain, found := strings.Cut(s, "@")
	return !found || before == "" || domain == "" || strings.Contains(domain, "@") || before != "*" && strings.Contains(before, "*") || strings.Contains(domain, "*")
}

// SSORedirectURL returns where people come back who have signed in, or "" if it is not
// known at which address browsers reach the server. Port is that of the TCP listener.
func (c *Config) SSORedirectURL(port int) string {
	if c.SSO.RedirectURL != "" {
		return c.SSO.RedirectURL
	}
	return c.UploadURL(ssoReturnPath, port)
}
