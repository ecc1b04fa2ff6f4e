// Package auth identifies callers: by API key, or because they are the user who runs the
// daemon. It also keeps web pages from reaching a daemon on loopback ([CheckHost]).
package auth

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Authenticator finds the caller that a secret belongs to. Its errors are unauthenticated,
// quota_exceeded after too many unknown keys, or internal if the key store fails. It is
// safe for concurrent use.
type Authenticator interface {
	Authenticate(ctx context.Context, secret string) (sandbox.Caller, error)
}

// Local is the [Authenticator] for development mode: every caller is the user who runs the
// daemon, whatever the secret.
type Local struct{}

// Authenticate implements [Authenticator].
func (Local) Authenticate(context.Context, string) (sandbox.Caller, error) {
	return sandbox.LocalCaller(), nil
}

// KeyStore is the part of the store that [Keys] needs.
type KeyStore interface {
	// KeyByHash returns a key and its stored hash, or not_found.
	KeyByHash(ctx context.Context, hash []byte) (sandbox.Key, []byte, error)
	// KeyByID returns a key, or not_found.
	KeyByID(ctx context.Context, id string) (sandbox.Key, error)
	// ListKeys returns one page of a team's keys, newest first.
	ListKeys(ctx context.Context, team string, p sandbox.Page) ([]sandbox.Key, string, error)
	// TouchKey records that a key was used.
	TouchKey(ctx context.Context, id string, at time.Time) error
}

// touchEvery is the minimum interval between two records of one key's use.
const touchEvery = time.Minute

// Keys is the [Authenticator] for API keys. It asks the store on each call, so a revoked
// key stops working at once.
type Keys struct {
	Store KeyStore
	// Limiter limits the rate of unknown keys per address; nil means no limit.
	Limiter *LoginLimiter
	// Log receives failures to record the use of a key; nil discards them.
	Log *slog.Logger
}

// Authenticate implements [Authenticator].
func (k *Keys) Authenticate(ctx context.Context, secret string) (sandbox.Caller, error) {
	if secret == "" || len(secret) > maxToken {
		return sandbox.Caller{}, noKey()
	}
	hash := Hash(secret)
	if err := k.Limiter.allow(ctx, hash); err != nil {
		return sandbox.Caller{}, err
	}
	key, stored, err := k.Store.KeyByHash(ctx, hash)
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotFound:
		k.Limiter.note(hash, false)
		k.Limiter.unknown(ctx)
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key is not known to this server; check it, or ask for a new one")
	default:
		return sandbox.Caller{}, err
	}
	if subtle.ConstantTimeCompare(hash, stored) != 1 {
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key is not known to this server; check it, or ask for a new one")
	}
	now := time.Now()
	good := isValid(&key, now)
	k.Limiter.note(hash, good)
	switch {
	case key.RevokedAt != nil:
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key was revoked; ask for a new one")
	case !good:
		return sandbox.Caller{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key has expired; ask for a new one")
	}
	k.touch(ctx, &key, now)
	return callerOf(&key), nil
}

func isValid(key *sandbox.Key, now time.Time) bool {
	return key.RevokedAt == nil && (key.ExpiresAt == nil || now.Before(*key.ExpiresAt))
}

func callerOf(key *sandbox.Key) sandbox.Caller {
	return sandbox.Caller{KeyID: key.ID, Team: key.Team, Scopes: key.Scopes}
}

// CallerOf returns the caller that a key, named by its id, stands for. It is for rights
// that were derived from a key and end with it. The error for a missing, revoked or expired
// key is unauthenticated.
func (k *Keys) CallerOf(ctx context.Context, id string) (sandbox.Caller, error) {
	key, err := k.validKey(ctx, id)
	if err != nil {
		return sandbox.Caller{}, err
	}
	return callerOf(&key), nil
}

// validKey returns a valid key by its id, or an error as described at CallerOf.
func (k *Keys) validKey(ctx context.Context, id string) (sandbox.Key, error) {
	key, err := k.Store.KeyByID(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && !isValid(&key, time.Now()) {
		return sandbox.Key{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the API key is no longer good; ask for a new one")
	}
	return key, err
}

// CallersOf returns a team's possible callers, one for each of its valid keys.
func (k *Keys) CallersOf(ctx context.Context, team string) ([]sandbox.Caller, error) {
	var callers []sandbox.Caller
	now := time.Now()
	for page := (sandbox.Page{Limit: sandbox.MaxPageSize}); ; {
		keys, next, err := k.Store.ListKeys(ctx, team, page)
		if err != nil {
			return nil, err
		}
		for i := range keys {
			if isValid(&keys[i], now) {
				callers = append(callers, callerOf(&keys[i]))
			}
		}
		if page.Cursor = next; next == "" {
			return callers, nil
		}
	}
}

func (k *Keys) touch(ctx context.Context, key *sandbox.Key, now time.Time) {
	if key.LastUsedAt != nil && now.Sub(*key.LastUsedAt) < touchEvery {
		return
	}
	if err := k.Store.TouchKey(ctx, key.ID, now); err != nil && k.Log != nil {
		k.Log.Warn("record the use of a key", "key", key.ID, "error", err)
	}
}

func noKey() error {
	return sandbox.Errorf(sandbox.CodeUnauthenticated, "an API key is needed; send it as \"Authorization: Bearer KEY\", or give it to cove with --key or COVE_API_KEY")
}
