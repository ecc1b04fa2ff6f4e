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
	// maxUnknownKeys is how many unknown keys in a row one address may send; after that it
	// may send one more every refillEvery.
	maxUnknownKeys = 60
	refillEvery    = time.Second
)

// LoginLimiter limits the rate of unknown keys, or other unknown credentials. Credentials
// that were accepted recently always pass, since all callers behind a proxy share its
// address. It is safe for concurrent use.
type LoginLimiter struct {
	what     string // the credentials, in the plural
	failures *limits.LoginLimiter
	accepted limits.Accepted
}

// NewLoginLimiter returns a limiter for API keys that has counted no failures.
func NewLoginLimiter() *LoginLimiter { return newLoginLimiter("API keys") }

func newLoginLimiter(what string) *LoginLimiter {
	return &LoginLimiter{what: what, failures: limits.NewLoginLimiter(limits.LoginLimiterConfig{Burst: maxUnknownKeys, Refill: refillEvery})}
}

type addressKey struct{}

// WithAddress stores the client's address in the contexts of next's requests. [Keys]
// counts unknown keys by that address.
func WithAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ViaUnixSocket(r) {
			r = r.WithContext(context.WithValue(r.Context(), addressKey{}, limits.Address(r.RemoteAddr)))
		}
		next.ServeHTTP(w, r)
	})
}

// sourceOf returns the source of a credential, which is not counted if its address is
// unknown.
func sourceOf(ctx context.Context) limits.Source {
	who, _ := ctx.Value(addressKey{}).(string)
	return limits.Source{Target: "keys", Address: who}
}

// allow returns a quota_exceeded error if a credential must not be looked up now.
func (t *LoginLimiter) allow(ctx context.Context, hash []byte) error {
	by := sourceOf(ctx)
	if t == nil || by.Address == "" || t.accepted.Has([sha256.Size]byte(hash)) {
		return nil
	}
	wait := t.failures.Wait(by)
	if wait == 0 {
		return nil
	}
	err := sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many %s that this server does not know came from this address; try again in a moment", t.what)
	err.RetryAfter = max(wait, time.Second)
	return err
}

// unknown counts a credential that the server does not know.
func (t *LoginLimiter) unknown(ctx context.Context) {
	if by := sourceOf(ctx); t != nil && by.Address != "" {
		t.failures.Failed(by)
	}
}

// note remembers a valid credential, and forgets an invalid one.
func (t *LoginLimiter) note(hash []byte, good bool) {
	switch {
	case t == nil:
	case good:
		t.accepted.Add([sha256.Size]byte(hash))
	default:
		t.accepted.Forget([sha256.Size]byte(hash))
	}
}
