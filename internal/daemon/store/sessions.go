package store

import (
	"context"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Sessions is the record of the console's sessions. Those of a key that is revoked
// are removed with that; those of a person have the person's actor in place of a key.
type Sessions interface {
	// CreateSession adds a session whose token has this hash. Of the sessions of its
	// key, those over most that were not used for longest are removed; most is at
	// least 1.
	CreateSession(ctx context.Context, s sandbox.ConsoleSession, hash []byte, most int) error
	// SessionByHash returns a session, also one that has expired.
	SessionByHash(ctx context.Context, hash []byte) (sandbox.ConsoleSession, error)
	// ListSessions returns one page of the sessions of a team that have not expired
	// by now, newest first, and the cursor of the next; of one key, unless keyID is
	// empty.
	ListSessions(ctx context.Context, team, keyID string, now time.Time, p sandbox.Page) ([]sandbox.ConsoleSession, string, error)
	// TouchSession moves LastUsedAt forward, and ExpiresAt with it.
	TouchSession(ctx context.Context, id string, at, expires time.Time) error
	// DeleteSession removes a session of a team, and of one key unless keyID is
	// empty; one that is not there is not_found.
	DeleteSession(ctx context.Context, team, keyID, id string) error
	// TrimSessions removes the sessions that have expired by now, and says how many.
	TrimSessions(ctx context.Context, now time.Time) (int, error)
}
