package access

import (
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/sandbox"
)

// keyPrefix is the prefix of keys that E2B's older clients require: ^e2b_[0-9a-f]+$.
const keyPrefix = "e2b_"

// FormatKey returns a key of Cove's in the form that every client of E2B
// accepts: "e2b_" and the bytes of the key in hexadecimal. It is the same key.
func FormatKey(key string) string { return keyPrefix + hex.EncodeToString([]byte(key)) }

// parseKey accepts a key in either form.
func parseKey(text string) string {
	digits, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return text
	}
	key, err := hex.DecodeString(digits)
	if err != nil || len(key) == 0 {
		return text
	}
	return string(key)
}

// Caller authenticates a request to the control plane, by X-API-KEY or a bearer token.
// The caller is in the namespace that the request names.
func (g *Gate) Caller(r *http.Request) (sandbox.Caller, error) {
	key, err := auth.BearerToken(r.Header)
	if err != nil {
		return sandbox.Caller{}, err
	}
	return g.Gate.Caller(r, parseKey(key))
}
