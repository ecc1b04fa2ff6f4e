// Package sso signs people in through an identity provider that speaks OpenID Connect: the
// authorization code flow with PKCE, for one provider. It determines who a person is and,
// by rules, what they may do; the console makes sessions of that.
//
// The provider is trusted only to identify people. Its responses are bounded, checked, and
// shown as plain text.
package sso

import (
	"context"
	"crypto/hmac"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/sandbox"
)

// EnvSecret is the environment variable that may hold the client's secret.
const EnvSecret = "COVE_SSO_CLIENT_SECRET"

// Config says how a [Provider] is reached and what it is trusted with. All fields but
// ClientSecret and Roots are required.
type Config struct {
	// Name is what people call the provider.
	Name         string
	Issuer       string
	ClientID     string
	ClientSecret sandbox.SecretValue
	// Scopes are the OAuth scopes to request.
	Scopes []string
	// RedirectURL returns the one address to which the provider sends people back; "" if
	// there is none.
	RedirectURL func() string
	// Rules are evaluated in order; the first that a person fulfils applies.
	Rules []Rule
	// SessionLifetime is the maximum lifetime of a session.
	SessionLifetime time.Duration
	// Roots are the root certificates to which the provider's certificate may chain; nil
	// means the system's.
	Roots *x509.CertPool
	Log   *slog.Logger
}

// Provider is the identity provider of a server. It is safe for concurrent use.
type Provider struct {
	cfg    Config
	flows  *flows
	client *http.Client
	found  discovery
}

// New returns a provider. It sends no request before somebody signs in.
func New(cfg Config) *Provider {
	return &Provider{cfg: cfg, flows: newFlows(), client: newClient(cfg.Roots)}
}

// Close closes idle connections.
func (p *Provider) Close() { p.client.CloseIdleConnections() }

// Name returns what people call the provider.
func (p *Provider) Name() string { return p.cfg.Name }

// RedirectURL returns the one address to which the provider sends people back; "" if there
// is none.
func (p *Provider) RedirectURL() string { return p.cfg.RedirectURL() }

// SessionLifetime returns the maximum lifetime of a session.
func (p *Provider) SessionLifetime() time.Duration { return p.cfg.SessionLifetime }

// CallerOf returns what a person may do by the rules. If no rule applies, the error is
// unauthenticated.
func (p *Provider) CallerOf(person *sandbox.Person) (sandbox.Caller, error) {
	rule := ruleFor(p.cfg.Rules, person)
	if rule == nil || person.Issuer != p.cfg.Issuer {
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the server's rules of who may sign in have changed; sign in again")
	}
	return sandbox.Caller{KeyID: person.Actor(), Team: rule.Team, Scopes: slices.Clone(rule.Scopes)}, nil
}

// Begin starts a sign-in: it returns the address to send the browser to, and a token for
// the browser, valid until the given time, that binds the sign-in to it. If the provider
// does not respond, the error is unavailable.
func (p *Provider) Begin(ctx context.Context) (to string, token auth.Secret, until time.Time, err error) {
	at, err := p.metadata(ctx)
	if err != nil {
		return "", auth.Secret{}, time.Time{}, err
	}
	f := p.flows.begin()
	to = p.oauth(at).AuthCodeURL(f.state, oidc.Nonce(f.nonce), oauth2.S256ChallengeOption(f.verifier))
	return to, auth.NewSecret(f.token), f.expires, nil
}

func (p *Provider) oauth(at *metadata) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.cfg.ClientID, ClientSecret: p.cfg.ClientSecret.Reveal(),
		Endpoint: at.provider.Endpoint(), RedirectURL: p.cfg.RedirectURL(), Scopes: p.cfg.Scopes,
	}
}

// Finish completes a sign-in from the parameters with which the browser came back and its
// token. A person who fulfils none of the rules is forbidden.
func (p *Provider) Finish(ctx context.Context, token string, answer url.Values) (person *sandbox.Person, err error) {
	for _, name := range []string{"state", "code", "error", "iss"} {
		if len(answer[name]) > 1 {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the answer has %s twice; sign in again", name)
		}
	}
	f, err := p.flows.end(token, answer.Get("state"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if person == nil {
			p.flows.forget(token)
		}
	}()
	at, err := p.metadata(ctx)
	if err != nil {
		return nil, err
	}
	// The response of another provider must not be taken for this one's (RFC 9207).
	if iss := answer.Get("iss"); iss != p.cfg.Issuer && (iss != "" || at.SaysIssuer) {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "the answer is not of %s; sign in again, and tell who runs the server if it stays so", p.cfg.Name)
	}
	if code := answer.Get("error"); code != "" {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "%s has not signed you in: %s", p.cfg.Name, readable(code, answer.Get("error_description")))
	}
	if answer.Get("code") == "" {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the answer of %s has no code; sign in again", p.cfg.Name)
	}
	ctx = oidc.ClientContext(ctx, p.client)
	tokens, err := p.oauth(at).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(f.verifier))
	if err != nil {
		return nil, p.refusedCode(ctx, err)
	}
	subject, claims, err := p.verify(ctx, at, tokens, f.nonce)
	if err != nil {
		return nil, err
	}
	who := claims.person(p.cfg.Issuer, subject, p.cfg.Rules)
	if ruleFor(p.cfg.Rules, who) == nil {
		p.cfg.Log.InfoContext(ctx, "no rule admits this person", "subject", clip.Text(subject, maxSubject), "email", who.Email)
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "%s has signed you in as %s, whom no rule of this server lets in; it has looked at %s: ask who runs the server", p.cfg.Name, who.Name(), claims.lookedAt(p.cfg.Rules))
	}
	return who, nil
}

// readable returns an error from the provider as one line of text.
func readable(code, description string) string {
	if description != "" {
		code += " (" + description + ")"
	}
	return clip.Text(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(code, "�")), 300)
}

// refusedCode explains why the provider issued no tokens for a code.
func (p *Provider) refusedCode(ctx context.Context, err error) error {
	p.cfg.Log.WarnContext(ctx, "the identity provider issued no tokens", "provider", p.cfg.Name, "error", err)
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	switch {
	case !ok || refused.Response != nil && refused.Response.StatusCode >= http.StatusInternalServerError:
		return p.unavailable(err)
	case refused.ErrorCode == "invalid_client" || refused.ErrorCode == "unauthorized_client":
		return sandbox.Errorf(sandbox.CodeUnavailable, "%s does not take this server's client id and secret; who runs the server has to mend its configuration", p.cfg.Name)
	}
	return sandbox.Errorf(sandbox.CodeForbidden, "%s does not take the code that it has given (%s); sign in again", p.cfg.Name, readable(refused.ErrorCode, ""))
}

// unavailable returns the error for a provider that cannot be used now.
func (p *Provider) unavailable(err error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("%s does not answer as it should; try again in a moment, or sign in with an API key", p.cfg.Name))
}

// verify checks the ID token, and returns its subject and claims.
func (p *Provider) verify(ctx context.Context, at *metadata, tokens *oauth2.Token, nonce string) (string, claimSet, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return "", nil, p.badToken(ctx, "says nobody", errors.New("there is no ID token"))
	}
	id, err := at.provider.Verifier(&oidc.Config{ClientID: p.cfg.ClientID}).Verify(ctx, raw)
	if expired, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return "", nil, p.badToken(ctx, "has expired; if it stays so, the clocks of the two servers differ", expired)
	}
	if err != nil {
		return "", nil, p.badToken(ctx, "cannot be verified", err)
	}
	switch {
	case id.Nonce == "":
		return "", nil, p.badToken(ctx, "has no nonce, and may be of another sign-in", nil)
	case !hmac.Equal([]byte(id.Nonce), []byte(nonce)):
		return "", nil, p.badToken(ctx, "is of another sign-in: its nonce is another", nil)
	case !plain(id.Subject) || len(id.Subject) > maxSubject:
		return "", nil, p.badToken(ctx, fmt.Sprintf("has a subject that is not 1 to %d plain characters", maxSubject), nil)
	}
	var claims claimSet
	if err := id.Claims(&claims); err != nil {
		return "", nil, p.badToken(ctx, "cannot be read", err)
	}
	if azp := claims["azp"]; azp != nil && azp != p.cfg.ClientID || azp == nil && len(id.Audience) > 1 {
		return "", nil, p.badToken(ctx, "is for another program", nil)
	}
	if err := p.addUserInfo(ctx, at, tokens, id, claims); err != nil {
		return "", nil, err
	}
	return id.Subject, claims, nil
}

func (p *Provider) badToken(ctx context.Context, why string, err error) error {
	p.cfg.Log.WarnContext(ctx, "refused the ID token of a sign-in", "provider", p.cfg.Name, "reason", why, "error", err)
	return sandbox.Errorf(sandbox.CodeForbidden, "the ID token of %s %s; sign in again", p.cfg.Name, why)
}

// addUserInfo adds the claims that the rules need and the ID token lacks: many providers
// return e-mail addresses and groups only from the UserInfo endpoint.
func (p *Provider) addUserInfo(ctx context.Context, at *metadata, tokens *oauth2.Token, id *oidc.IDToken, claims claimSet) error {
	has := func(claim string) bool { _, ok := claims[claim]; return ok }
	all := has(emailClaim) && has(emailVerifiedClaim) && !slices.ContainsFunc(p.cfg.Rules, func(r Rule) bool { return !has(r.Claim) })
	if all || at.provider.UserInfoEndpoint() == "" {
		return nil
	}
	if id.AccessTokenHash != "" {
		if err := id.VerifyAccessToken(tokens.AccessToken); err != nil {
			return p.badToken(ctx, "does not belong to the access token", err)
		}
	}
	info, err := at.provider.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
	if err != nil {
		p.cfg.Log.WarnContext(ctx, "the identity provider returned no user info", "provider", p.cfg.Name, "error", err)
		return p.unavailable(err)
	}
	if info.Subject != id.Subject {
		return p.badToken(ctx, "names somebody else than the rest of its answer", nil)
	}
	var more claimSet
	if err := info.Claims(&more); err != nil {
		return p.badToken(ctx, "comes with what cannot be read", err)
	}
	// An address and its verification belong together. A claim that is not text is not an
	// address.
	switch more[emailClaim] {
	case claims[emailClaim]:
	case nil:
		delete(more, emailVerifiedClaim)
	default:
		delete(claims, emailClaim)
		delete(claims, emailVerifiedClaim)
	}
	for claim, v := range more {
		if !has(claim) {
			claims[claim] = v
		}
	}
	return nil
}
