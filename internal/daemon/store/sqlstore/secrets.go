package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const secretColumns = "id, name, team, provider, hosts, auth, metadata, version, created_at, rotated_at, last_used_at, sealed"

func scanSecret(scan func(...any) error) (store.SecretRecord, error) {
	var r store.SecretRecord
	err := scan(&r.ID, &r.Name, &r.Team, &r.Provider, jsonText(&r.Hosts), jsonText(&r.Auth), jsonText(&r.Metadata), &r.Version,
		instant{&r.CreatedAt}, maybe{&r.RotatedAt}, maybe{&r.LastUsedAt}, &r.Sealed)
	if err != nil {
		return store.SecretRecord{}, err
	}
	return r, nil
}

// CreateSecret implements [store.Secrets].
func (s *Store) CreateSecret(ctx context.Context, r store.SecretRecord, max int) error {
	hosts, err := encode(r.Hosts)
	if err != nil {
		return fmt.Errorf("encode secret %s: %w", r.ID, err)
	}
	auth, err := encode(r.Auth)
	if err != nil {
		return fmt.Errorf("encode secret %s: %w", r.ID, err)
	}
	metadata, err := encode(r.Metadata)
	if err != nil {
		return fmt.Errorf("encode secret %s: %w", r.ID, err)
	}
	values := []any{
		r.ID, r.Name, r.Team, r.Provider, hosts, auth, metadata, r.Version,
		r.CreatedAt.UnixNano(), nanos(r.RotatedAt), nanos(r.LastUsedAt), r.Sealed,
	}
	return s.lasting(ctx, func(tx conn) error {
		if err := tx.lockTeam(ctx, r.Team); err != nil {
			return err
		}
		var n int
		if err := tx.row(ctx, "SELECT count(*) FROM secrets WHERE team = ?", r.Team)(&n); err != nil {
			return fmt.Errorf("count secrets: %w", err)
		}
		if max > 0 && n >= max {
			return sandbox.Errorf(sandbox.CodeQuotaExceeded, "the team has %d secrets, the most there may be; delete secrets that are no longer needed", n)
		}
		_, err := tx.exec(ctx, "INSERT INTO secrets ("+secretColumns+") VALUES ("+marks(len(values))+")", values...)
		switch {
		case s.dialect.Repeated(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the secret exists already; retry")
		case s.dialect.Taken(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another secret of the team; choose another name, rotate that secret, or delete it first", r.Name)
		case err != nil:
			return fmt.Errorf("write secret %s: %w", r.ID, err)
		}
		return nil
	})
}

// Secret implements [store.Secrets].
func (s *Store) Secret(ctx context.Context, id string) (store.SecretRecord, error) {
	return secret(ctx, s.reader(), "id = ?", id)
}

// SecretByName implements [store.Secrets].
func (s *Store) SecretByName(ctx context.Context, team, name string) (store.SecretRecord, error) {
	return secret(ctx, s.reader(), "team = ? AND name = ?", team, name)
}

func secret(ctx context.Context, q conn, where string, args ...any) (store.SecretRecord, error) {
	return one(ctx, q, "secret", scanSecret, "SELECT "+secretColumns+" FROM secrets WHERE "+where, args...)
}

// ListSecrets implements [store.Secrets].
func (s *Store) ListSecrets(ctx context.Context, team string, p sandbox.Page) ([]store.SecretRecord, string, error) {
	l := listQuery{columns: secretColumns, table: "secrets", page: p, order: newestFirst("created_at")}
	l.only("team = ?", team)
	return listing(ctx, s.reader(), scanSecret, l, func(r *store.SecretRecord) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

// UpdateSecret implements [store.Secrets].
func (s *Store) UpdateSecret(ctx context.Context, id string, apply func(*store.SecretRecord) error) (store.SecretRecord, error) {
	var r store.SecretRecord
	err := s.lasting(ctx, func(tx conn) error {
		before, err := secret(ctx, tx, "id = ?"+s.dialect.ForUpdate, id)
		if err != nil {
			return err
		}
		after := before
		if err := apply(&after); err != nil {
			return err
		}
		metadata, err := encode(after.Metadata)
		if err != nil {
			return fmt.Errorf("encode secret %s: %w", id, err)
		}
		_, err = tx.exec(ctx, "UPDATE secrets SET sealed = ?, metadata = ?, version = ?, rotated_at = ? WHERE id = ?",
			after.Sealed, metadata, after.Version, nanos(after.RotatedAt), id)
		if err != nil {
			return fmt.Errorf("write secret %s: %w", id, err)
		}
		r = after
		return nil
	})
	if err != nil {
		return store.SecretRecord{}, err
	}
	return r, nil
}

// TouchSecret implements [store.Secrets].
func (s *Store) TouchSecret(ctx context.Context, id string, at time.Time) error {
	return s.touch(ctx, "secrets", id, at)
}

// DeleteSecret implements [store.Secrets].
func (s *Store) DeleteSecret(ctx context.Context, id string) error {
	if _, err := s.remove(ctx, "DELETE FROM secrets WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete secret %s: %w", id, err)
	}
	return s.db.Sync()
}
