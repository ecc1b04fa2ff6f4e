package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Purpose is what a token gives access to.
type Purpose string

// The purposes.
const (
	// Envd gives access to the planes of a sandbox.
	Envd Purpose = "envd"
	// Traffic gives access to the ports of a sandbox.
	Traffic Purpose = "traffic"
)

const (
	tokenPrefix = "cst_" // of a sandbox's token
	keyIDPrefix = "key-"
	maxToken    = 256
)

// ErrToken is the error for a missing or wrong token, in the product's words.
var ErrToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "unauthorized access, please provide a valid access token or method signing if supported")

// planeScopes are the most that a token grants: work in a sandbox.
var planeScopes = []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeComputersWrite}

// Token returns a caller's token for one of their sandboxes.
func (g *Gate) Token(p Purpose, c sandbox.Caller, id string) string {
	return tokenPrefix + strings.TrimPrefix(c.KeyID, keyIDPrefix) + "_" + hex.EncodeToString(g.mac(p, c, id))
}

func (g *Gate) mac(p Purpose, c sandbox.Caller, id string) []byte {
	h := hmac.New(sha256.New, g.cfg.Secret)
	for _, part := range []string{"cove e2b token 1", string(p), c.Team, c.KeyID, id} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

// Open returns the caller of a sandbox's token, with the rights on sandboxes of the key
// to which the token was issued, and no others.
func (g *Gate) Open(ctx context.Context, p Purpose, id, token string) (sandbox.Caller, error) {
	body, ok := strings.CutPrefix(token, tokenPrefix)
	keyID, digits, found := strings.Cut(body, "_")
	if !ok || !found || len(token) > maxToken {
		return sandbox.Caller{}, ErrToken
	}
	given, err := hex.DecodeString(digits)
	if err != nil {
		return sandbox.Caller{}, ErrToken
	}
	c, err := g.Holder(ctx, keyID)
	if err != nil {
		return sandbox.Caller{}, err
	}
	if !hmac.Equal(given, g.mac(p, c, id)) {
		return sandbox.Caller{}, ErrToken
	}
	return c, nil
}

// Holder returns the caller of a key, by its id without the prefix, with the rights
// that a token grants. The error for a key that is no longer valid is [ErrToken].
func (g *Gate) Holder(ctx context.Context, keyID string) (sandbox.Caller, error) {
	if local := sandbox.LocalCaller(); keyID == local.KeyID {
		return narrow(local), nil
	}
	c, err := g.cfg.Keys.CallerOf(ctx, keyIDPrefix+keyID)
	if sandbox.CodeOf(err) == sandbox.CodeUnauthenticated {
		return c, ErrToken
	}
	return narrow(c), err
}

// narrow reduces a caller to the rights that a token grants.
func narrow(c sandbox.Caller) sandbox.Caller {
	scopes := slices.DeleteFunc(slices.Clone(planeScopes), func(s sandbox.Scope) bool { return !c.Has(s) })
	return sandbox.Caller{KeyID: c.KeyID, Team: c.Team, Scopes: scopes}
}
