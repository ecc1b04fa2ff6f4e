package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const buildColumns = "id, team, template, state, reason, step, fraction, version, created_at, ended_at"

func scanBuild(scan func(...any) error) (store.BuildRecord, error) {
	var b store.BuildRecord
	err := scan(&b.ID, &b.Team, &b.Template, &b.State, &b.Reason, &b.Step, &b.Fraction, &b.Version, instant{&b.CreatedAt}, maybe{&b.EndedAt})
	return b, err
}

// CreateBuild implements [store.Builds].
func (s *Store) CreateBuild(ctx context.Context, b store.BuildRecord) error {
	values := []any{
		b.ID, b.Team, b.Template, string(b.State), b.Reason, b.Step, b.Fraction, b.Version, b.CreatedAt.UnixNano(), nanos(b.EndedAt),
	}
	if _, err := s.exec(ctx, "INSERT INTO builds ("+buildColumns+") VALUES ("+marks(len(values))+")", values...); err != nil {
		if s.dialect.Taken(err) {
			return sandbox.Errorf(sandbox.CodeConflict, "the build exists already; retry")
		}
		return fmt.Errorf("write build %s: %w", b.ID, err)
	}
	return nil
}

// UpdateBuild implements [store.Builds].
func (s *Store) UpdateBuild(ctx context.Context, b store.BuildRecord) error {
	n, err := s.exec(ctx, "UPDATE builds SET state = ?, reason = ?, step = ?, fraction = ?, version = ?, ended_at = ? WHERE id = ?",
		string(b.State), b.Reason, b.Step, b.Fraction, b.Version, nanos(b.EndedAt), b.ID)
	if err != nil {
		return fmt.Errorf("write build %s: %w", b.ID, err)
	}
	if n == 0 {
		return absent("build")
	}
	return nil
}

// Build implements [store.Builds].
func (s *Store) Build(ctx context.Context, id string) (store.BuildRecord, error) {
	return one(ctx, s.reader(), "build", scanBuild, "SELECT "+buildColumns+" FROM builds WHERE id = ?", id)
}

// ListBuilds implements [store.Builds].
func (s *Store) ListBuilds(ctx context.Context, f store.BuildFilter, p sandbox.Page) ([]store.BuildRecord, string, error) {
	l := listQuery{columns: buildColumns, table: "builds", page: p, order: newestFirst("created_at")}
	l.only("template = ?", f.Template)
	if f.Running {
		l.where = append(l.where, "ended_at IS NULL")
	}
	return listing(ctx, s.reader(), scanBuild, l, func(b *store.BuildRecord) store.Place { return store.PlaceAt(b.CreatedAt, b.ID) })
}

// TrimBuilds implements [store.Builds].
func (s *Store) TrimBuilds(ctx context.Context, before time.Time) (ids []string, err error) {
	err = s.db.Freeing(func() error {
		return s.tx(ctx, func(tx conn) (err error) {
			ids, err = collect(ctx, tx, scanText, "DELETE FROM builds WHERE ended_at < ? RETURNING id", before.UnixNano())
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("trim builds: %w", err)
	}
	return ids, nil
}
