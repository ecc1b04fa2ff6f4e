// Package access authenticates callers of E2B's planes: by API key, by a sandbox's
// token, or by a signed link.
//
// A sandbox's token is derived from a key of the server, the sandbox, its team and
// the API key of the caller to whom it was issued. It never changes, not even through
// pause and resume, is valid for that sandbox only, and expires with the API key.
package access

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// The ports of E2B's planes in a sandbox.
const (
	PortEnvd        = 49983
	PortInterpreter = 49999
)

// The tags of a sandbox in which the door stores what Cove has no field for.
const (
	// TagPrefix is the prefix of all of them; clients can neither set nor see such
	// metadata.
	TagPrefix = "cove.e2b."
	// TagAutoResume marks a sandbox that any request to it resumes.
	TagAutoResume = TagPrefix + "auto-resume"
	// TagPorts marks a sandbox with public ports; it holds the id of the key that
	// created the sandbox.
	TagPorts = TagPrefix + "ports"
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

// Config is what a [Gate] needs.
type Config struct {
	Keys      Keys
	Sandboxes Sandboxes
	// Secret is the server's key from which tokens are derived, 32 bytes.
	Secret []byte
}

// Gate authenticates callers. It is safe for concurrent use.
type Gate struct{ cfg Config }

// NewGate returns a gate.
func NewGate(cfg Config) *Gate { return &Gate{cfg} }

// Look returns a sandbox without authorization, for requests that need no token.
func (g *Gate) Look(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	return g.cfg.Sandboxes.Look(ctx, id)
}

type sandboxKey struct{}

// WithSandbox returns a context that carries the sandbox of a request, as it was at
// the beginning of the request.
func WithSandbox(ctx context.Context, box *sandbox.Sandbox) context.Context {
	return context.WithValue(ctx, sandboxKey{}, box)
}

// SandboxOf returns the sandbox of a request. A plane must not access others, though
// the caller in the context has rights on them too.
func SandboxOf(ctx context.Context) (*sandbox.Sandbox, bool) {
	box, ok := ctx.Value(sandboxKey{}).(*sandbox.Sandbox)
	return box, ok
}
