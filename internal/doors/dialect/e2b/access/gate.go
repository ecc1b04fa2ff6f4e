// Package access authenticates callers of E2B's planes: by API key, by a sandbox's
// token (package gate), or by a signed link.
package access

import (
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
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

// The purposes of tokens.
const (
	// Envd gives access to the planes of a sandbox.
	Envd gate.Purpose = "envd"
	// Traffic gives access to the ports of a sandbox.
	Traffic gate.Purpose = "traffic"
	// Volume gives access to the content of a volume.
	Volume gate.Purpose = "volume"
)

// ErrToken is the error for a missing or wrong token, in the product's words.
var ErrToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "unauthorized access, please provide a valid access token or method signing if supported")

// Gate authenticates callers. It is safe for concurrent use.
type Gate struct{ *gate.Gate }

// NewGate returns a gate; product and refusal are filled in.
func NewGate(cfg gate.Config) *Gate {
	cfg.Product, cfg.Refusal = "e2b", ErrToken
	return &Gate{gate.New(cfg)}
}
