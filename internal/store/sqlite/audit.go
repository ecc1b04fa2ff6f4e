package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

const auditColumns = "id, at, team, key_id, action, sandbox_id, detail, code"

func scanEvent(scan func(...any) error) (sandbox.AuditEvent, error) {
	var e sandbox.AuditEvent
	err := scan(&e.ID, instant{&e.Time}, &e.Team, &e.KeyID, &e.Action, &e.SandboxID, &e.Detail, &e.Code)
	return e, err
}

// AppendAudit implements [store.Audit].
func (s *Store) AppendAudit(ctx context.Context, events []sandbox.AuditEvent) error {
	if len(events) == 0 {
		return nil
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		insert, err := tx.PrepareContext(ctx, "INSERT INTO audit (at, team, key_id, action, sandbox_id, detail, code) VALUES (?, ?, ?, ?, ?, ?, ?)")
		if err != nil {
			return fmt.Errorf("append audit: %w", err)
		}
		defer insert.Close()
		for _, e := range events {
			if _, err := insert.ExecContext(ctx, e.Time.UnixNano(), e.Team, e.KeyID, e.Action, e.SandboxID, e.Detail, string(e.Code)); err != nil {
				return fmt.Errorf("append audit: %w", err)
			}
		}
		return nil
	})
}

// ListAudit implements [store.Audit]. Events are in the order of their ids:
// the clock may step back.
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter, p sandbox.Page) ([]sandbox.AuditEvent, string, error) {
	limit, err := store.PageLimit(p)
	if err != nil {
		return nil, "", err
	}
	where, args := []string{"1"}, []any(nil)
	add := func(cond string, a any) { where, args = append(where, cond), append(args, a) }
	if f.Team != "" {
		add("team = ?", f.Team)
	}
	if f.SandboxID != "" {
		add("sandbox_id <> '' AND sandbox_id = ?", f.SandboxID)
	}
	if p.Cursor != "" {
		c, err := store.ParseCursor(p.Cursor)
		if err != nil {
			return nil, "", err
		}
		id, err := strconv.ParseInt(c.ID, 10, 64)
		if err != nil {
			return nil, "", sandbox.Errorf(sandbox.CodeInvalid, "the cursor belongs to another listing; start over without a cursor")
		}
		add("id < ?", id)
	}
	query := fmt.Sprintf("SELECT %s FROM audit WHERE %s ORDER BY id DESC LIMIT %d", auditColumns, strings.Join(where, " AND "), limit+1)
	events, err := collect(ctx, s.read, scanEvent, query, args...)
	if err != nil {
		return nil, "", fmt.Errorf("list audit: %w", err)
	}
	if len(events) <= limit {
		return events, "", nil
	}
	events = events[:limit]
	last := events[limit-1]
	return events, store.Cursor{At: last.Time, ID: strconv.FormatInt(last.ID, 10)}.String(), nil
}

// TrimAudit implements [store.Audit].
func (s *Store) TrimAudit(ctx context.Context, before time.Time, keep int) (int, error) {
	var n int64
	trim := func(tx *sql.Tx) error {
		n = 0
		for _, d := range []struct {
			query string
			arg   any
		}{
			{"DELETE FROM audit WHERE at < ?", before.UnixNano()},
			{"DELETE FROM audit WHERE id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?)", keep},
		} {
			res, err := tx.ExecContext(ctx, d.query, d.arg)
			if err != nil {
				return fmt.Errorf("trim audit: %w", err)
			}
			gone, err := res.RowsAffected()
			if err != nil {
				return fmt.Errorf("trim audit: %w", err)
			}
			n += gone
		}
		return nil
	}
	err := s.freeing(func() error { return s.tx(ctx, trim) })
	return int(n), err
}
