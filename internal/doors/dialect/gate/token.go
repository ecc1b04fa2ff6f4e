package gate

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

const (
	tokenPrefix = "cst_" // of a sandbox's token
	keyIDPrefix = "key-"
	maxToken    = 256
)

// tokenScopes are the most that a token grants: work in a sandbox.
var tokenScopes = []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeComputersWrite}

// Token returns a caller's token for one of their sandboxes.
func (g *Gate) Token(p Purpose, c sandbox.Caller, id string) string {
	return tokenPrefix + strings.TrimPrefix(c.KeyID, keyIDPrefix) + "_" + hex.EncodeToString(g.mac(p, c, id))
}

func (g *Gate) mac(p Purpose, c sandbox.Caller, id string) []byte {
	h := hmac.New(sha256.New, g.cfg.Secret)
	for _, part := range []string{"cove " + g.cfg.Product + " token 1", string(p), c.Team, c.KeyID, id} {
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
		return sandbox.Caller{}, g.cfg.Refusal
	}
	given, err := hex.DecodeString(digits)
	if err != nil {
		return sandbox.Caller{}, g.cfg.Refusal
	}
	c, err := g.Holder(ctx, keyID)
	if err != nil {
		return sandbox.Caller{}, err
	}
	if !hmac.Equal(given, g.mac(p, c, id)) {
		return sandbox.Caller{}, g.cfg.Refusal
	}
	return c, nil
}

// Holder returns the caller of a key, by its id without the prefix, with the rights
// that a token grants. The error for a key that is no longer valid is the gate's refusal.
func (g *Gate) Holder(ctx context.Context, keyID string) (sandbox.Caller, error) {
	if local := sandbox.LocalCaller(); keyID == local.KeyID {
		return narrow(local), nil
	}
	c, err := g.cfg.Keys.CallerOf(ctx, keyIDPrefix+keyID)
	if sandbox.CodeOf(err) == sandbox.CodeUnauthenticated {
		return c, g.cfg.Refusal
	}
	return narrow(c), err
}

// narrow reduces a caller to the rights that a token grants.
func narrow(c sandbox.Caller) sandbox.Caller {
	scopes := slices.DeleteFunc(slices.Clone(tokenScopes), func(s sandbox.Scope) bool { return !c.Has(s) })
	return sandbox.Caller{KeyID: c.KeyID, Team: c.Team, Scopes: scopes}
}

// Signer returns who has signed a request to a sandbox with a token of theirs: signedWith
// reports whether a token made the signature. It is false if nobody's did.
func (g *Gate) Signer(ctx context.Context, p Purpose, id string, signedWith func(token string) bool) (_ sandbox.Caller, ok bool, _ error) {
	box, err := g.Look(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Caller{}, false, nil
	}
	if err != nil {
		return sandbox.Caller{}, false, err
	}
	holders, err := g.Holders(ctx, box.Team)
	if err != nil {
		return sandbox.Caller{}, false, err
	}
	for _, c := range holders {
		if signedWith(g.Token(p, c, box.ID)) {
			return c, true, nil
		}
	}
	return sandbox.Caller{}, false, nil
}

// Holders returns the callers who may have a token for a team's sandboxes, each with
// the rights that a token grants.
func (g *Gate) Holders(ctx context.Context, team string) ([]sandbox.Caller, error) {
	callers, err := g.cfg.Keys.CallersOf(ctx, team)
	if local := sandbox.LocalCaller(); team == local.Team {
		callers = append(callers, local)
	}
	for i := range callers {
		callers[i] = narrow(callers[i])
	}
	return callers, err
}
