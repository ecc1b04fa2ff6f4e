package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const previewColumns = "id, sandbox_id, team, port, access, wake, key_hash, generation, created_at, expires_at"

// openPreviews are those that have not expired by a time.
const openPreviews = "(expires_at IS NULL OR expires_at > ?)"

func scanPreview(scan func(...any) error) (store.PreviewRecord, error) {
	var r store.PreviewRecord
	err := scan(&r.ID, &r.SandboxID, &r.Team, &r.Port, &r.Access, &r.Wake, &r.KeyHash, &r.Generation, instant{&r.CreatedAt}, maybe{&r.ExpiresAt})
	if err != nil {
		return store.PreviewRecord{}, err
	}
	return r, nil
}

// ChangePreview implements [store.Previews].
func (s *Store) ChangePreview(ctx context.Context, sandboxID string, port int, now time.Time, max int, apply func(*store.PreviewRecord) error) (store.PreviewRecord, error) {
	var r store.PreviewRecord
	err := s.lasting(ctx, func(tx conn) error {
		if err := tx.lock(ctx, "previews "+sandboxID); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, "DELETE FROM previews WHERE sandbox_id = ? AND expires_at <= ? AND generation = 0", sandboxID, now.UnixNano()); err != nil {
			return fmt.Errorf("remove expired previews: %w", err)
		}
		after, err := preview(ctx, tx, sandboxID, port)
		ended := err == nil && after.ExpiresAt != nil && !now.Before(*after.ExpiresAt)
		if ended || sandbox.CodeOf(err) == sandbox.CodeNotFound {
			after = store.PreviewRecord{Generation: after.Generation}
			err = admitPreview(ctx, tx, sandboxID, now, max)
		}
		if err != nil {
			return err
		}
		after.SandboxID, after.Port = sandboxID, port
		if err := apply(&after); err != nil {
			return err
		}
		after.SandboxID, after.Port, after.URL = sandboxID, port, ""
		if _, err := tx.exec(ctx, "DELETE FROM previews WHERE sandbox_id = ? AND port = ?", sandboxID, port); err != nil {
			return fmt.Errorf("remove the preview of before: %w", err)
		}
		_, err = tx.exec(ctx, "INSERT INTO previews ("+previewColumns+") VALUES ("+marks(10)+")",
			after.ID, after.SandboxID, after.Team, after.Port, string(after.Access), after.Wake, after.KeyHash, after.Generation,
			after.CreatedAt.UnixNano(), nanos(after.ExpiresAt))
		if err != nil {
			return fmt.Errorf("write a preview of sandbox %s: %w", sandboxID, err)
		}
		r = after
		return nil
	})
	return r, err
}

// admitPreview says whether a sandbox may have one more preview.
func admitPreview(ctx context.Context, tx conn, sandboxID string, now time.Time, max int) error {
	var n int
	err := tx.row(ctx, "SELECT count(*) FROM previews WHERE sandbox_id = ? AND "+openPreviews, sandboxID, now.UnixNano())(&n)
	if err != nil {
		return fmt.Errorf("count previews: %w", err)
	}
	if max > 0 && n >= max {
		return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the sandbox has %d previews, the most there may be; delete previews that are no longer needed", n)
	}
	return nil
}

// Preview implements [store.Previews].
func (s *Store) Preview(ctx context.Context, sandboxID string, port int) (store.PreviewRecord, error) {
	return preview(ctx, s.reader(), sandboxID, port)
}

func preview(ctx context.Context, q conn, sandboxID string, port int) (store.PreviewRecord, error) {
	return one(ctx, q, "preview", scanPreview, "SELECT "+previewColumns+" FROM previews WHERE sandbox_id = ? AND port = ?", sandboxID, port)
}

// previewOrder is by sandbox and port, of which a sandbox has one each.
var previewOrder = listOrder{[]string{"sandbox_id", "port"}, false, func(p store.Place) []any { return []any{p.Text, p.Number} }}

// ListPreviews implements [store.Previews].
func (s *Store) ListPreviews(ctx context.Context, team, namespace, sandboxID string, now time.Time, p sandbox.Page) ([]store.PreviewRecord, string, error) {
	l := listQuery{
		columns: previewColumns, table: "previews", page: p, order: previewOrder,
		where: []string{"team = ?", openPreviews}, args: []any{team, now.UnixNano()},
	}
	if sandboxID != "" {
		l.where, l.args = append(l.where, "sandbox_id = ?"), append(l.args, sandboxID)
	} else {
		l.where = append(l.where, "sandbox_id IN (SELECT id FROM sandboxes WHERE (? = '' OR namespace = ?) AND "+living+")")
		l.args = append(l.args, namespace, namespace)
	}
	return listing(ctx, s.reader(), scanPreview, l, func(r *store.PreviewRecord) store.Place {
		return store.Place{Number: int64(r.Port), Text: r.SandboxID}
	})
}

// DeletePreview implements [store.Previews].
func (s *Store) DeletePreview(ctx context.Context, sandboxID string, port int) error {
	for _, query := range []string{
		"DELETE FROM previews WHERE sandbox_id = ? AND port = ? AND generation = 0",
		"UPDATE previews SET expires_at = 0, key_hash = NULL WHERE sandbox_id = ? AND port = ?", // one that had a key
	} {
		if _, err := s.remove(ctx, query, sandboxID, port); err != nil {
			return fmt.Errorf("delete a preview of sandbox %s: %w", sandboxID, err)
		}
	}
	return s.db.Sync()
}
