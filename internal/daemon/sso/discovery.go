package sso

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// askTime is the timeout of one request to the provider, and maxAnswer the maximum
	// length of the response, in bytes.
	askTime   = 10 * time.Second
	maxAnswer = 1 << 20
	// foundTime is how long the provider's metadata is cached, and failedTime how long to
	// wait after a failed discovery.
	foundTime  = time.Hour
	failedTime = 5 * time.Second
)

// metadata is the provider's metadata.
type metadata struct {
	provider *oidc.Provider

	Authorization string `json:"authorization_endpoint"`
	Token         string `json:"token_endpoint"`
	Keys          string `json:"jwks_uri"`
	UserInfo      string `json:"userinfo_endpoint"`
	// SaysIssuer is set if each authorization response contains the issuer.
	SaysIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// discovery caches the result of the last discovery.
type discovery struct {
	mu    sync.Mutex
	at    *metadata // guarded by mu
	err   error     // guarded by mu
	until time.Time // guarded by mu
}

// metadata returns the provider's metadata, at most an hour old.
func (p *Provider) metadata(ctx context.Context) (*metadata, error) {
	d := &p.found
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until) {
		return d.at, d.err
	}
	// Other callers wait for the result too, so this one's cancellation does not stop it.
	d.at, d.err = p.discover(context.WithoutCancel(ctx))
	d.until = time.Now().Add(foundTime)
	if d.err != nil {
		d.until = time.Now().Add(failedTime)
	}
	return d.at, d.err
}

func (p *Provider) discover(ctx context.Context) (*metadata, error) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.cfg.Issuer)
	var at metadata
	if err == nil {
		err = found.Claims(&at)
	}
	if err == nil {
		err = at.check(p.cfg.Issuer)
	}
	if err != nil {
		p.cfg.Log.WarnContext(ctx, "cannot discover the identity provider", "provider", p.cfg.Name, "issuer", p.cfg.Issuer, "error", err)
		return nil, p.unavailable(err)
	}
	at.provider = found
	return &at, nil
}

// check refuses a provider that would send people or secrets over a connection that others
// can read.
func (m *metadata) check(issuer string) error {
	for what, address := range map[string]string{"authorization": m.Authorization, "token": m.Token, "keys": m.Keys, "userinfo": m.UserInfo} {
		if address == "" && what == "userinfo" {
			continue
		}
		if !secure(address) || overTLS(issuer) && !overTLS(address) {
			return fmt.Errorf("its address for %s is %q, which is not https", what, address)
		}
	}
	return nil
}

func overTLS(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https"
}

// secure reports whether secrets may be sent to an address: https, or http on this machine.
func secure(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && local
}

// newClient returns a client for the provider. Its responses are bounded, and it does not
// follow redirects.
func newClient(roots *x509.CertPool) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	t.MaxResponseHeaderBytes = maxAnswer
	return &http.Client{
		Transport: bounded{t}, Timeout: askTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded bounds the responses of a transport.
type bounded struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.Transport.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}
