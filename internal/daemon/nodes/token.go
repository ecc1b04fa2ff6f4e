package nodes

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// TokenLifetime is how long a join token can be used.
const TokenLifetime = time.Hour

// tokens are the join tokens that have not been used: a file each, named by a hash, so
// that reading them helps nobody.
type tokens struct{ files durable.Files }

type storedToken struct {
	ExpiresAt time.Time `json:"expires_at"`
}

// tokenPrefix begins each token. It is followed by a secret, a dot, and the hash of the
// authority's certificate, by which the node recognises the server.
const tokenPrefix = "covejoin_"

// tokensDir has the files.
const tokensDir = "tokens"

func tokenFile(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return path.Join(tokensDir, hex.EncodeToString(sum[:]))
}

// create makes a token, and removes those that are over.
func (t *tokens) create(authority []byte, now time.Time) (*sandbox.JoinToken, error) {
	t.tidy(now)
	raw := make([]byte, 24)
	_, _ = rand.Read(raw)
	secret := base64.RawURLEncoding.EncodeToString(raw)
	until := now.Add(TokenLifetime).UTC()
	data, err := json.Marshal(storedToken{until})
	if err == nil {
		err = t.files.Write(tokenFile(secret), data)
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(authority)
	return &sandbox.JoinToken{Token: tokenPrefix + secret + "." + hex.EncodeToString(sum[:]), ExpiresAt: until}, nil
}

func (t *tokens) tidy(now time.Time) {
	all, _ := t.files.ReadAll(tokensDir)
	for name, data := range all {
		if stored, err := readToken(data, nil); err == nil && now.After(stored.ExpiresAt) {
			_ = t.files.Remove(name)
		}
	}
}

func readToken(data []byte, err error) (stored storedToken, _ error) {
	if err == nil {
		err = json.Unmarshal(data, &stored)
	}
	return stored, err
}

// find returns the file of a token that can be used now.
func (t *tokens) find(token string, now time.Time) (file string, ok bool) {
	secret, ok := strings.CutPrefix(token, tokenPrefix)
	secret, _, dotted := strings.Cut(secret, ".")
	if !ok || !dotted || len(secret) > 64 {
		return "", false
	}
	stored, err := readToken(t.files.Read(tokenFile(secret)))
	return tokenFile(secret), err == nil && now.Before(stored.ExpiresAt)
}

// valid reports whether a token can be used now.
func (t *tokens) valid(token string, now time.Time) bool {
	_, ok := t.find(token, now)
	return ok
}

// spend uses a token up, and reports whether it was valid.
func (t *tokens) spend(token string, now time.Time) bool {
	file, ok := t.find(token, now)
	// Of several that remove a file, one succeeds.
	return ok && t.files.Remove(file) == nil
}
