package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const sessionColumns = "id, key_id, team, client, created_at, last_used_at, expires_at, person"

func scanSession(scan func(...any) error) (sandbox.ConsoleSession, error) {
	var s sandbox.ConsoleSession
	err := scan(&s.ID, &s.KeyID, &s.Team, &s.Client, instant{&s.CreatedAt}, instant{&s.LastUsedAt}, instant{&s.ExpiresAt}, jsonText(&s.Person))
	return s, err
}

// CreateSession implements [store.Sessions].
func (s *Store) CreateSession(ctx context.Context, r sandbox.ConsoleSession, hash []byte, most int) error {
	person, err := encode(r.Person)
	if err != nil {
		return fmt.Errorf("encode session %s: %w", r.ID, err)
	}
	err = s.tx(ctx, func(tx conn) error {
		if err := tx.lock(ctx, "sessions "+r.KeyID); err != nil {
			return err
		}
		_, err := tx.exec(ctx, "DELETE FROM sessions WHERE key_id = ? AND id NOT IN (SELECT id FROM sessions WHERE key_id = ? ORDER BY last_used_at DESC, id LIMIT ?)", r.KeyID, r.KeyID, most-1)
		if err != nil {
			return fmt.Errorf("remove old sessions: %w", err)
		}
		_, err = tx.exec(ctx, "INSERT INTO sessions (hash, "+sessionColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
			hash, r.ID, r.KeyID, r.Team, r.Client, r.CreatedAt.UnixNano(), r.LastUsedAt.UnixNano(), r.ExpiresAt.UnixNano(), person)
		return err
	})
	switch {
	case s.dialect.Taken(err):
		return sandbox.Errorf(sandbox.CodeConflict, "the session exists already; retry")
	case s.dialect.Full(err):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full; delete snapshots or sandboxes and try again")
	case err != nil:
		return fmt.Errorf("write session %s: %w", r.ID, err)
	}
	return nil
}

// SessionByHash implements [store.Sessions].
func (s *Store) SessionByHash(ctx context.Context, hash []byte) (sandbox.ConsoleSession, error) {
	return one(ctx, s.reader(), "session", scanSession, "SELECT "+sessionColumns+" FROM sessions WHERE hash = ?", hash)
}

// ListSessions implements [store.Sessions].
func (s *Store) ListSessions(ctx context.Context, team, keyID string, now time.Time, p sandbox.Page) ([]sandbox.ConsoleSession, string, error) {
	l := listQuery{
		columns: sessionColumns, table: "sessions", page: p, order: newestFirst("created_at"),
		where: []string{"team = ?", "expires_at > ?"}, args: []any{team, now.UnixNano()},
	}
	l.only("key_id = ?", keyID)
	return listing(ctx, s.reader(), scanSession, l, func(r *sandbox.ConsoleSession) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

// TouchSession implements [store.Sessions].
func (s *Store) TouchSession(ctx context.Context, id string, at, expires time.Time) error {
	n := at.UnixNano()
	if _, err := s.exec(ctx, "UPDATE sessions SET last_used_at = ?, expires_at = ? WHERE id = ? AND last_used_at < ?", n, expires.UnixNano(), id, n); err != nil {
		return fmt.Errorf("note the use of session %s: %w", id, err)
	}
	return nil
}

// DeleteSession implements [store.Sessions].
func (s *Store) DeleteSession(ctx context.Context, team, keyID, id string) error {
	n, err := s.remove(ctx, "DELETE FROM sessions WHERE id = ? AND team = ? AND (? = '' OR key_id = ?)", id, team, keyID, keyID)
	if err != nil {
		return fmt.Errorf("delete session %s: %w", id, err)
	}
	if n == 0 {
		return absent("session")
	}
	return s.db.Sync()
}

// TrimSessions implements [store.Sessions].
func (s *Store) TrimSessions(ctx context.Context, now time.Time) (int, error) {
	n, err := s.remove(ctx, "DELETE FROM sessions WHERE expires_at <= ?", now.UnixNano())
	if err != nil {
		return 0, fmt.Errorf("remove expired sessions: %w", err)
	}
	return n, nil
}
