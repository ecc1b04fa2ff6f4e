// Package gate authenticates callers of doors for other products' SDKs: by API key, or
// by a token for one sandbox.
//
// A sandbox's token is derived from a key of the server, the sandbox, its team and
// the API key of the caller to whom it was issued. It never changes, not even through
// pause and resume, is valid for that sandbox only, and expires with the API key.
package gate

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/sandbox"
)

// Keys are the API keys of the server.
type Keys interface {
	// Authenticate returns the caller of a key.
	Authenticate(ctx context.Context, secret string) (sandbox.Caller, error)
	// CallerOf returns the caller of the key with an id. The error is unauthenticated
	// for a key that does not exist or is no longer valid.
	CallerOf(ctx context.Context, id string) (sandbox.Caller, error)
	// CallersOf returns the callers of a team's valid keys.
	CallersOf(ctx context.Context, team string) ([]sandbox.Caller, error)
}

// Sandboxes are the records of all teams.
type Sandboxes interface {
	// Look returns a sandbox in any state.
	Look(ctx context.Context, id string) (*sandbox.Sandbox, error)
	// Living returns all sandboxes that run or are paused.
	Living(ctx context.Context) ([]sandbox.Sandbox, error)
}

// Config configures a [Gate]. All fields are required.
type Config struct {
	// Product is the name of the product whose clients come through the gate. A token
	// of one product is worth nothing to another.
	Product   string
	Keys      Keys
	Sandboxes Sandboxes
	// Secret is the server's key from which tokens are derived, 32 bytes.
	Secret []byte
	// Refusal is the error for a missing or wrong token, in the product's words. Its
	// code is unauthenticated.
	Refusal error
}

// Gate authenticates callers. It is safe for concurrent use.
type Gate struct{ cfg Config }

// New returns a gate.
func New(cfg Config) *Gate { return &Gate{cfg} }

// Caller returns the caller of an API key, in the namespace that the request names.
func (g *Gate) Caller(r *http.Request, key string) (sandbox.Caller, error) {
	c, err := g.cfg.Keys.Authenticate(r.Context(), key)
	if err != nil {
		return sandbox.Caller{}, err
	}
	c.Namespace, err = auth.Namespace(r.Header)
	return c, err
}

// Bearer returns the caller of the API key that a request carries, in the namespace that
// the request names.
func (g *Gate) Bearer(r *http.Request) (sandbox.Caller, error) {
	key, err := auth.BearerToken(r.Header)
	if err != nil {
		return sandbox.Caller{}, err
	}
	return g.Caller(r, key)
}

// Look returns a sandbox without authorization, for requests that need no token.
func (g *Gate) Look(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	return g.cfg.Sandboxes.Look(ctx, id)
}

// Living returns all sandboxes that run or are paused, without authorization.
func (g *Gate) Living(ctx context.Context) ([]sandbox.Sandbox, error) {
	return g.cfg.Sandboxes.Living(ctx)
}

type sandboxKey struct{}

// WithSandbox returns a context that carries the sandbox of a request, as it was at
// the beginning of the request.
func WithSandbox(ctx context.Context, box *sandbox.Sandbox) context.Context {
	return context.WithValue(ctx, sandboxKey{}, box)
}

// SandboxOf returns the sandbox of a request. A door must not access others, though
// the caller in the context has rights on them too.
func SandboxOf(ctx context.Context) (*sandbox.Sandbox, bool) {
	box, ok := ctx.Value(sandboxKey{}).(*sandbox.Sandbox)
	return box, ok
}
