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

// A login that comes with a build is its caller's, not the server's. It is for
// the registry that the image's name has, in memory, for as long as the image is
// read. Mirrors get the server's own login, as ever.

// errLogin is what becomes of a request that would take a login elsewhere.
var errLogin = errors.New("the registry sends the login that came with the build on to another host")

func authenticator(login *sandbox.RegistryLogin) authn.Authenticator {
	return authn.FromConfig(authn.AuthConfig{Username: login.Username, Password: login.Password.Reveal()})
}

// loginGuard sees to it that a login goes to its registry, and to a token server
// of the same owner, whatever redirects and challenges say. The library keeps
// to the same rule but for token servers, which it takes from anywhere.
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

// hasLogin tells whether a request has the login in it, as far as can be seen:
// in its header, its address, or in a form, as requests for tokens have.
func (g *loginGuard) hasLogin(req *http.Request) bool {
	_, _, basic := req.BasicAuth()
	return basic || req.Method != http.MethodGet && req.Method != http.MethodHead || req.URL.User != nil
}

// sameOwner tells whether a host is the registry, or below the same domain that
// somebody has registered: ghcr.io and ghcr.io, registry.gitlab.com and
// gitlab.com. An address or a short name is the same only with the same port.
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

// loginError is an error whose text has the login crossed out, should a registry
// have repeated it.
type loginError struct {
	text string
	err  error
}

func (e *loginError) Error() string { return e.text }

func (e *loginError) Unwrap() error { return e.err }

// hideLogin is what a caller is told of an error, without the login in what the
// log has of it. The message is ours: to cross out a word of it that is the
// password too would tell everybody what the password is.
func hideLogin(told, cause error, login *sandbox.RegistryLogin) error {
	e, ok := errors.AsType[*sandbox.Error](told)
	if !ok {
		return told // that somebody has cancelled it
	}
	password := login.Password.Reveal()
	basic := base64.StdEncoding.EncodeToString([]byte(login.Username + ":" + password))
	hide := strings.NewReplacer(basic, "[redacted]", password, "[redacted]")
	return sandbox.Wrap(e.Code, &loginError{hide.Replace(cause.Error()), cause}, e.Message)
}

// describeLogin says to a caller what became of a login, or returns nil if that
// is not what went wrong.
func describeLogin(err error, status int, ref name.Reference) error {
	host := ref.Context().RegistryStr()
	switch {
	case errors.Is(err, errLogin):
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s sends logins on to a host of somebody else, which does not get yours", host))
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s does not give %.300s for the login that came with the build: the login is wrong, may not read it, or it does not exist", host, ref.Name()))
	}
	return nil
}
