package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
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
	return s.tx(ctx, func(tx conn) error {
		const insert = "INSERT INTO audit (at, team, key_id, action, sandbox_id, detail, code) VALUES (?, ?, ?, ?, ?, ?, ?)"
		for _, e := range events {
			if _, err := tx.exec(ctx, insert, e.Time.UnixNano(), e.Team, e.KeyID, e.Action, e.SandboxID, e.Detail, string(e.Code)); err != nil {
				return fmt.Errorf("append audit: %w", err)
			}
		}
		return nil
	})
}

// auditOrder is that of the ids of events: the clock may step back.
var auditOrder = listOrder{[]string{"id"}, true, func(p store.Place) []any { return []any{p.Number} }}

// ListAudit implements [store.Audit].
func (s *Store) ListAudit(ctx context.Context, f store.AuditFilter, p sandbox.Page) ([]sandbox.AuditEvent, string, error) {
	l := listQuery{columns: auditColumns, table: "audit", page: p, order: auditOrder}
	l.only("team = ?", f.Team)
	l.only("sandbox_id <> '' AND sandbox_id = ?", f.SandboxID)
	return listing(ctx, s.reader(), scanEvent, l, func(e *sandbox.AuditEvent) store.Place { return store.Place{Number: e.ID} })
}

// TrimAudit implements [store.Audit].
func (s *Store) TrimAudit(ctx context.Context, before time.Time, keep int) (int, error) {
	var n int
	trim := func(tx conn) error {
		n = 0
		for _, d := range []struct {
			query string
			arg   any
		}{
			{"DELETE FROM audit WHERE at < ?", before.UnixNano()},
			{"DELETE FROM audit WHERE id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?)", keep},
		} {
			gone, err := tx.exec(ctx, d.query, d.arg)
			if err != nil {
				return fmt.Errorf("trim audit: %w", err)
			}
			n += gone
		}
		return nil
	}
	err := s.db.Freeing(func() error { return s.tx(ctx, trim) })
	return n, err
}
