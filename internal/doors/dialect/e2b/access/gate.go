// Package access tells who calls E2B's planes: by API key, by a sandbox's
// token, by a signed link.
//
// A sandbox's token is derived from a key of the server's, the sandbox, its team
// and the API key of the caller it was given to. It is the same at every call,
// through pause and resume, opens that sandbox only, and ends with the API key.
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

// The tags of a sandbox in which the door notes what Cove has no field for.
const (
	// TagPrefix begins all of them; clients cannot set such metadata and do not
	// see it.
	TagPrefix = "cove.e2b."
	// TagAutoResume marks a sandbox that any request to it resumes.
	TagAutoResume = TagPrefix + "auto-resume"
	// TagPorts marks a sandbox whose ports anybody may reach; it holds the id of
	// the key that created the sandbox.
	TagPorts = TagPrefix + "ports"
)

// Keys are the API keys of the server.
type Keys interface {
	// Authenticate tells whose a key is.
	Authenticate(ctx context.Context, secret string) (sandbox.Caller, error)
	// CallerOf tells who calls with the key that has this id: unauthenticated
	// for one that is not there or no longer good.
	CallerOf(ctx context.Context, id string) (sandbox.Caller, error)
	// CallersOf returns who may call for a team: its good keys.
	CallersOf(ctx context.Context, team string) ([]sandbox.Caller, error)
}

// Sandboxes are the records of the server, whoever asks.
type Sandboxes interface {
	// Look returns a sandbox in any state.
	Look(ctx context.Context, id string) (*sandbox.Sandbox, error)
	// Living returns all sandboxes that run or are paused.
	Living(ctx context.Context) ([]sandbox.Sandbox, error)
}

// Config says what a [Gate] stands on.
type Config struct {
	Keys      Keys
	Sandboxes Sandboxes
	// Secret is the server's key of tokens, 32 bytes.
	Secret []byte
}

// Gate tells who calls. It is safe for concurrent use.
type Gate struct{ cfg Config }

// NewGate returns a gate.
func NewGate(cfg Config) *Gate { return &Gate{cfg} }

// Look returns a sandbox, whoever asks: for what needs no token.
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
