package oci

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/net/publicsuffix"

	"github.com/cove-sh/cove/sandbox"
)

// A login that comes with a build belongs to its caller, not to the server. It is sent only
// to the registry in the image's name, and kept in memory only while the image is read.
// Mirrors always get the server's own login.

// errLogin refuses a request that would send a login to another host.
var errLogin = errors.New("the registry forwards the login that came with the build to another host")

func authenticator(login *sandbox.RegistryLogin) authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: login.Username, Password: login.Password.Reveal()})
}

// loginGuard makes sure that a login is sent only to its registry and to token servers
// of the same owner, whatever redirects and challenges say. The library has the same
// rule, except that it accepts token servers anywhere.
type loginGuard struct {
	next     http.RoundTripper
	registry string // host, or host:port
	login    *sandbox.RegistryLogin
}

func (g *loginGuard) RoundTrip(req *http.Request) (*http.Response, error) {
	if g.hasLogin(req) && !sameOwner(g.registry, req.URL.Host) {
		return nil, errLogin
	}
	return g.next.RoundTrip(req)
}

// hasLogin reports whether a request may contain the login: in its header, in its URL, or
// in a form, as token requests do.
func (g *loginGuard) hasLogin(req *http.Request) bool {
	_, _, basic := req.BasicAuth()
	return basic || req.Method != http.MethodGet && req.Method != http.MethodHead || req.URL.User != nil
}

// sameOwner reports whether a host is the registry, or shares its registrable domain:
// ghcr.io and ghcr.io, registry.gitlab.com and gitlab.com. Addresses and short names match
// only with the same port.
func sameOwner(registry, host string) bool {
	a, b := strings.ToLower(withPort(registry)), strings.ToLower(withPort(host))
	if a == b || strings.EqualFold(registry, host) {
		return true
	}
	domain := func(hostport string) string {
		h, _, err := net.SplitHostPort(hostport)
		if err != nil {
			return ""
		}
		if _, err := netip.ParseAddr(h); err == nil {
			return ""
		}
		d, err := publicsuffix.EffectiveTLDPlusOne(strings.TrimSuffix(h, "."))
		if err != nil {
			return ""
		}
		return d
	}
	d := domain(a)
	return d != "" && d == domain(b)
}

// loginError is an error with the login redacted from its text, in case a registry repeats
// it.
type loginError struct {
	text string
	err  error
}

func (e *loginError) Error() string { return e.text }

func (e *loginError) Unwrap() error { return e.err }

// redactLogin returns the error for callers, shown, with its cause, which is logged with
// the login redacted. The message for callers is Cove's own: redacting a word of it that
// equals the password would reveal the password.
func redactLogin(shown, cause error, login *sandbox.RegistryLogin) error {
	e, ok := errors.AsType[*sandbox.Error](shown)
	if !ok {
		return shown // the request was cancelled
	}
	password := login.Password.Reveal()
	basic := base64.StdEncoding.EncodeToString([]byte(login.Username + ":" + password))
	hide := strings.NewReplacer(basic, "[redacted]", password, "[redacted]")
	return sandbox.Wrap(e.Code, &loginError{hide.Replace(cause.Error()), cause}, e.Message)
}

// describeLogin returns the error for callers if the login is the problem, or nil.
func describeLogin(err error, status int, ref name.Reference) error {
	host := ref.Context().RegistryStr()
	switch {
	case errors.Is(err, errLogin):
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s forwards logins to a host of another owner, and your login is not sent there", host))
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s refuses access to %.300s with the login of this build: the login is wrong or may not read the image, or the image does not exist", host, ref.Name()))
	}
	return nil
}
