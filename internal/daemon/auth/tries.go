package auth

import (
	"context"
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxTries bounds the unknown keys in a row that one address may bring; it
	// has one more each tryAgain.
	maxTries = 60
	tryAgain = time.Second
)

// Tries slows those who try keys that no store knows. Keys that were good lately
// are let in all the same, since behind a proxy all callers have its address.
// It is safe for concurrent use.
type Tries struct {
	tries *limits.Tries
	known limits.Known
}

// NewTries returns a count of nothing.
func NewTries() *Tries {
	return &Tries{tries: limits.NewTries(limits.TriesConfig{Most: maxTries, Again: tryAgain})}
}

type addressKey struct{}

// WithAddress gives the requests of next the address that they come from, by
// which [Keys] counts unknown keys.
func WithAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ViaUnixSocket(r) {
			r = r.WithContext(context.WithValue(r.Context(), addressKey{}, limits.Address(r.RemoteAddr)))
		}
		next.ServeHTTP(w, r)
	})
}

// tryOf is who tries a key; "" has no address and is not counted.
func tryOf(ctx context.Context) limits.Try {
	who, _ := ctx.Value(addressKey{}).(string)
	return limits.Try{Place: "keys", Who: who}
}

// allow returns a quota_exceeded error if a key must not be looked up now.
func (t *Tries) allow(ctx context.Context, hash []byte) error {
	by := tryOf(ctx)
	if t == nil || by.Who == "" || t.known.Has([sha256.Size]byte(hash)) {
		return nil
	}
	wait := t.tries.Wait(by)
	if wait == 0 {
		return nil
	}
	err := sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many API keys that this server does not know came from this address; try again in a moment")
	err.RetryAfter = max(wait, time.Second)
	return err
}

// unknown takes note of a key that nobody knows.
func (t *Tries) unknown(ctx context.Context) {
	if by := tryOf(ctx); t != nil && by.Who != "" {
		t.tries.Failed(by)
	}
}

// note takes note of whether a key that the store has is good.
func (t *Tries) note(hash []byte, good bool) {
	switch {
	case t == nil:
	case good:
		t.known.Add([sha256.Size]byte(hash))
	default:
		t.known.Forget([sha256.Size]byte(hash))
	}
}
