package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// BeginRequest implements [limits.Requests].
func (s *Store) BeginRequest(ctx context.Context, r limits.Request, before time.Time) (*limits.Request, error) {
	var earlier *limits.Request
	err := s.tx(ctx, func(tx conn) error {
		earlier = nil
		if err := tx.lock(ctx, "request "+r.Key+" of "+r.Team); err != nil {
			return err
		}
		found := limits.Request{Team: r.Team, Key: r.Key}
		var a limits.Answer
		err := tx.row(ctx, "SELECT hash, run, created_at, status, content_type, location, body FROM requests WHERE team = ? AND key = ? AND created_at >= ?", r.Team, r.Key, before.UnixNano())(&found.Hash, &found.Run, instant{&found.CreatedAt}, &a.Status, &a.ContentType, &a.Location, &a.Body)
		switch {
		case err == nil:
			if earlier = &found; a.Status != 0 {
				earlier.Answer = &a
			}
			return nil
		case !errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("look for a request: %w", err)
		}
		if _, err := tx.exec(ctx, "DELETE FROM requests WHERE team = ? AND key = ?", r.Team, r.Key); err != nil {
			return fmt.Errorf("remove an old request: %w", err)
		}
		if _, err := tx.exec(ctx, "INSERT INTO requests (team, key, hash, run, created_at) VALUES (?, ?, ?, ?, ?)", r.Team, r.Key, r.Hash, r.Run, r.CreatedAt.UnixNano()); err != nil {
			return fmt.Errorf("write a request: %w", err)
		}
		return nil
	})
	if s.dialect.Full(err) {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full; delete snapshots or sandboxes and try again")
	}
	return earlier, err
}

// AnswerRequest implements [limits.Requests].
func (s *Store) AnswerRequest(ctx context.Context, team, key string, a limits.Answer) error {
	err := s.db.Freeing(func() error {
		_, err := s.exec(ctx, "UPDATE requests SET run = '', status = ?, content_type = ?, location = ?, body = ? WHERE team = ? AND key = ?",
			a.Status, a.ContentType, a.Location, a.Body, team, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the answer to a request: %w", err)
	}
	return nil
}

// ForgetRequest implements [limits.Requests].
func (s *Store) ForgetRequest(ctx context.Context, team, key string) error {
	if _, err := s.remove(ctx, "DELETE FROM requests WHERE team = ? AND key = ?", team, key); err != nil {
		return fmt.Errorf("forget a request: %w", err)
	}
	return nil
}

// TrimRequests implements [limits.Requests].
func (s *Store) TrimRequests(ctx context.Context, before time.Time, keep int) (int, error) {
	n, err := s.remove(ctx, "DELETE FROM requests WHERE created_at < ? OR (team, key) IN "+
		"(SELECT team, key FROM (SELECT team, key, row_number() OVER (PARTITION BY team ORDER BY created_at DESC, key) AS nth FROM requests) AS ranked WHERE nth > ?)", before.UnixNano(), keep)
	if err != nil {
		return 0, fmt.Errorf("remove old requests: %w", err)
	}
	return n, nil
}
