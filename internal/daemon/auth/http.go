package auth

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// maxToken bounds a bearer token in bytes.
const maxToken = 512

// ErrorWriter answers a request that was refused.
type ErrorWriter func(w http.ResponseWriter, r *http.Request, err error)

// Config configures [Middleware].
type Config struct {
	// Authenticator checks the bearer token.
	Authenticator Authenticator
	// Trusted reports whether a request comes from the user who runs the daemon, whatever
	// credentials it carries; nil trusts none. See [ViaUnixSocket].
	Trusted func(*http.Request) bool
	// Anonymous passes requests without a token to the authenticator too, for [Local].
	Anonymous bool
	// Sessions accepts the console's cookie in requests for which Cookie is true and that
	// carry no key; nil accepts none.
	Sessions *Sessions
	// Cookie reports whether the console's pages may make a request.
	Cookie func(*http.Request) bool
	// Error answers refused requests; nil writes a small JSON document. The
	// WWW-Authenticate header is set before it is called.
	Error ErrorWriter
}

// Middleware puts the caller of each request into its context, for [sandbox.CallerOf], and
// answers 401 if it cannot identify the caller.
func Middleware(cfg Config) func(http.Handler) http.Handler {
	if cfg.Error == nil {
		cfg.Error = writeError
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, session, err := cfg.caller(r)
			if err == nil {
				c.Namespace, err = Namespace(r.Header)
			}
			if err != nil {
				if sandbox.CodeOf(err) == sandbox.CodeUnauthenticated {
					w.Header().Set("WWW-Authenticate", challenge(r))
				}
				cfg.Error(w, r, err)
				return
			}
			ctx := sandbox.WithCaller(r.Context(), c)
			check := cfg.keyCheck(c)
			if session != nil {
				inert(w.Header())
				check = cfg.Sessions.check(session)
			}
			if check != nil {
				var stop func()
				ctx, stop = watch(ctx, check)
				defer stop()
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

func challenge(r *http.Request) string {
	if len(r.Header.Values("Authorization")) == 0 {
		return `Bearer realm="cove"`
	}
	return `Bearer realm="cove", error="invalid_token"`
}

// keyCheck returns a function that checks whether a caller's key is still valid, or nil for a
// caller without a key.
func (cfg *Config) keyCheck(c sandbox.Caller) func(context.Context) error {
	keys, ok := cfg.Authenticator.(*Keys)
	if !ok || c.KeyID == sandbox.LocalCaller().KeyID {
		return nil
	}
	return func(ctx context.Context) error {
		_, err := keys.validKey(ctx, c.KeyID)
		return err
	}
}

// inert keeps sandbox content in a response from running as a page of the console's origin,
// and out of caches that the browser's next user could read.
func inert(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox allow-downloads; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// caller returns the caller, and the session if the request was authenticated by one.
func (cfg *Config) caller(r *http.Request) (sandbox.Caller, *Session, error) {
	if cfg.Trusted != nil && cfg.Trusted(r) {
		return sandbox.LocalCaller(), nil, nil
	}
	token, err := BearerToken(r.Header)
	if err != nil && cfg.byCookie(r) {
		return cfg.callerBySession(r)
	}
	if err != nil && !cfg.Anonymous {
		return sandbox.Caller{}, nil, err
	}
	c, err := cfg.Authenticator.Authenticate(r.Context(), token)
	return c, nil, err
}

// byCookie reports whether a request carries a session cookie and no other credential.
func (cfg *Config) byCookie(r *http.Request) bool {
	return cfg.Sessions != nil && cfg.Cookie(r) && len(r.Header.Values("Authorization")) == 0 && len(r.Header.Values(KeyHeader)) == 0 && len(sessionTokens(r)) > 0
}

func (cfg *Config) callerBySession(r *http.Request) (sandbox.Caller, *Session, error) {
	if err := FromOwnPage(r); err != nil {
		return sandbox.Caller{}, nil, err
	}
	session, err := cfg.Sessions.Of(r)
	if err != nil {
		return sandbox.Caller{}, nil, err
	}
	return session.Caller, session, nil
}

// ViaUnixSocket reports whether a request came in through a unix socket. If the socket's
// directory belongs to the user who runs the daemon, only that user can open it.
func ViaUnixSocket(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && a.Network() == "unix"
}

// KeyHeader is the header in which clients of some products send their key instead of
// Authorization.
const KeyHeader = "X-Api-Key"

// BearerToken returns the token of the Authorization header, or of [KeyHeader] if there is
// none. The error for a missing, repeated or malformed header is unauthenticated.
func BearerToken(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		keys := h.Values(KeyHeader)
		if len(keys) == 1 && validToken(keys[0]) {
			return keys[0], nil
		}
		if len(keys) > 0 {
			return "", sandbox.Errorf(sandbox.CodeUnauthenticated, "the X-API-Key header is not one key; correct it")
		}
		return "", noKey()
	}
	if len(values) > 1 {
		return "", sandbox.Errorf(sandbox.CodeUnauthenticated, "the request has more than one Authorization header; send one")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || !validToken(token) {
		return "", sandbox.Errorf(sandbox.CodeUnauthenticated, "the Authorization header is not of the form \"Bearer KEY\"; correct it")
	}
	return token, nil
}

// NamespaceHeader names the namespace that a request is made in: see
// [sandbox.Caller].
const NamespaceHeader = "Cove-Namespace"

// wholeTeam is the value of [NamespaceHeader] for no namespace, for doors whose default is
// another.
const wholeTeam = "*"

// Namespace returns the namespace that a request is made in; "" is none. The service
// validates the name.
func Namespace(h http.Header) (string, error) {
	values := h.Values(NamespaceHeader)
	switch {
	case len(values) > 1:
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the request has more than one %s header; send one", NamespaceHeader)
	case len(values) == 0, values[0] == wholeTeam:
		return "", nil
	case values[0] == "":
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the header %s is empty; give a namespace, or %s for all of the team", NamespaceHeader, wholeTeam)
	}
	return values[0], nil
}

// validToken reports whether s is a token68 of RFC 9110.
func validToken(s string) bool {
	body := strings.TrimRight(s, "=")
	if body == "" || len(s) > maxToken {
		return false
	}
	for i := range len(body) {
		c := body[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~+/", c) >= 0) {
			return false
		}
	}
	return true
}

func writeError(w http.ResponseWriter, _ *http.Request, err error) {
	status := http.StatusInternalServerError
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid:
		status = http.StatusBadRequest
	case sandbox.CodeUnauthenticated:
		status = http.StatusUnauthorized
	case sandbox.CodeForbidden:
		status = http.StatusForbidden
	case sandbox.CodeQuotaExceeded:
		status = http.StatusTooManyRequests
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// Ignore the error: the client may be gone.
	_ = json.NewEncoder(w).Encode(map[string]any{"code": sandbox.CodeOf(err), "message": sandbox.MessageOf(err)})
}
