package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const deliveryColumns = "id, team, sandbox_id, job_id, url, state, attempts, status, error, created_at, next_at, ended_at, sealed, body, approval_id, until"

func scanDelivery(scan func(...any) error) (store.Delivery, error) {
	var d store.Delivery
	err := scan(&d.ID, &d.Team, &d.SandboxID, &d.JobID, &d.URL, &d.State, &d.Attempts, &d.Status, &d.Error,
		instant{&d.CreatedAt}, maybe{&d.NextAt}, maybe{&d.EndedAt}, &d.Sealed, &d.Body, &d.ApprovalID, maybe{&d.Until})
	return d, err
}

// CreateDelivery implements [store.Deliveries].
func (s *Store) CreateDelivery(ctx context.Context, d store.Delivery, ofSandbox, ofTeam int) error {
	return s.tx(ctx, func(tx conn) error {
		if err := tx.lockTeam(ctx, d.Team); err != nil {
			return err
		}
		for _, bound := range []struct {
			who, column, value string
			max                int
		}{{"sandbox", "sandbox_id", d.SandboxID, ofSandbox}, {"team", "team", d.Team, ofTeam}} {
			if bound.max == 0 {
				continue
			}
			var n int
			if err := tx.row(ctx, "SELECT count(*) FROM deliveries WHERE "+bound.column+" = ? AND ended_at IS NULL", bound.value)(&n); err != nil {
				return fmt.Errorf("count deliveries: %w", err)
			}
			if n >= bound.max {
				return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the %s has %d webhooks that wait or are being delivered, and may have %d; wait for some to end", bound.who, n, bound.max)
			}
		}
		values := []any{
			d.ID, d.Team, d.SandboxID, d.JobID, d.URL, d.State, d.Attempts, d.Status, d.Error,
			d.CreatedAt.UnixNano(), nanos(d.NextAt), nanos(d.EndedAt), d.Sealed, d.Body, d.ApprovalID, nanos(d.Until),
		}
		if _, err := tx.exec(ctx, "INSERT INTO deliveries ("+deliveryColumns+") VALUES ("+marks(len(values))+")", values...); err != nil {
			if s.dialect.Taken(err) {
				return sandbox.Errorf(sandbox.CodeConflict, "the delivery exists already; retry")
			}
			return fmt.Errorf("write delivery %s: %w", d.ID, err)
		}
		return nil
	})
}

// UpdateDelivery implements [store.Deliveries].
func (s *Store) UpdateDelivery(ctx context.Context, d store.Delivery) error {
	n, err := s.exec(ctx, "UPDATE deliveries SET state = ?, attempts = ?, status = ?, error = ?, next_at = ?, ended_at = ?, sealed = CASE WHEN ? THEN NULL ELSE sealed END, body = ? WHERE id = ?",
		d.State, d.Attempts, d.Status, d.Error, nanos(d.NextAt), nanos(d.EndedAt), d.Sealed == nil, d.Body, d.ID)
	if err != nil {
		return fmt.Errorf("write delivery %s: %w", d.ID, err)
	}
	if n == 0 {
		return absent("delivery")
	}
	return nil
}

// ResealDelivery implements [store.Deliveries].
func (s *Store) ResealDelivery(ctx context.Context, id string, sealed []byte) error {
	if _, err := s.exec(ctx, "UPDATE deliveries SET sealed = ? WHERE id = ? AND sealed IS NOT NULL", sealed, id); err != nil {
		return fmt.Errorf("write delivery %s: %w", id, err)
	}
	return nil
}

// Delivery implements [store.Deliveries].
func (s *Store) Delivery(ctx context.Context, id string) (store.Delivery, error) {
	return one(ctx, s.reader(), "delivery", scanDelivery, "SELECT "+deliveryColumns+" FROM deliveries WHERE id = ?", id)
}

// ListDeliveries implements [store.Deliveries].
func (s *Store) ListDeliveries(ctx context.Context, f store.DeliveryFilter, p sandbox.Page) ([]store.Delivery, string, error) {
	l := listQuery{columns: deliveryColumns, table: "deliveries", page: p, order: newestFirst("created_at")}
	l.only("team = ?", f.Team)
	l.only("sandbox_id = ?", f.SandboxID)
	if f.Open {
		l.where = append(l.where, "ended_at IS NULL")
	}
	return listing(ctx, s.reader(), scanDelivery, l, func(d *store.Delivery) store.Place { return store.PlaceAt(d.CreatedAt, d.ID) })
}

// DeleteDelivery implements [store.Deliveries].
func (s *Store) DeleteDelivery(ctx context.Context, id string) error {
	if _, err := s.remove(ctx, "DELETE FROM deliveries WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete delivery %s: %w", id, err)
	}
	return nil
}

// TrimDeliveries implements [store.Deliveries].
func (s *Store) TrimDeliveries(ctx context.Context, before time.Time) (int, error) {
	n, err := s.remove(ctx, "DELETE FROM deliveries WHERE ended_at < ?", before.UnixNano())
	if err != nil {
		return 0, fmt.Errorf("trim deliveries: %w", err)
	}
	return n, nil
}
