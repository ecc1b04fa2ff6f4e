package server

import (
	"crypto/x509"
	"fmt"
	"os"

	"github.com/cove-sh/cove/internal/daemon/sso"
	"github.com/cove-sh/cove/sandbox"
)

// newSSO returns the identity provider by which people sign in to the console, or nil if
// there is none. It is not asked for anything yet: the server starts without it too.
func (s *Server) newSSO() (*sso.Provider, error) {
	set := &s.cfg.SSO
	if set.Issuer == "" {
		return nil, nil
	}
	secret, err := clientSecret(set.ClientSecretFile, os.Getenv(sso.EnvSecret))
	if err != nil {
		return nil, err
	}
	roots, err := rootsWith(s.cfg.Network.ExtraCA)
	if err != nil {
		return nil, err
	}
	rules := make([]sso.Rule, len(set.Rules))
	for i, r := range set.Rules {
		rules[i] = sso.Rule{Claim: r.Claim, Value: r.Value, Team: r.Team, Scopes: r.Scopes}
	}
	return sso.New(sso.Config{
		Name: set.Name, Issuer: set.Issuer, ClientID: set.ClientID, ClientSecret: secret, Scopes: set.RequestScopes,
		RedirectURL: func() string { return s.cfg.SSORedirectURL(int(s.port.Load())) },
		Rules:       rules, SessionLifetime: set.SessionLifetime, Roots: roots, Log: s.log,
	}), nil
}

// clientSecret returns what is in the file, or in the environment.
func clientSecret(file, environ string) (sandbox.SecretValue, error) {
	if file != "" && environ != "" {
		return sandbox.SecretValue{}, sandbox.Errorf(sandbox.CodeInvalid, "both %s and sso.client_secret_file are set; use one of them", sso.EnvSecret)
	}
	if environ != "" {
		return sandbox.NewSecretValue(environ), nil
	}
	return secretOf("sso.client_secret_file", file)
}

// rootsWith returns the system's authorities and those of a PEM file; nil are the
// system's alone.
func rootsWith(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's authorities: %w", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("network.extra_ca: %w", err)
	}
	if !pool.AppendCertsFromPEM(data) {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the file %s of network.extra_ca holds no certificate", file)
	}
	return pool, nil
}
