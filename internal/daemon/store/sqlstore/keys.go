package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const keyColumns = "id, name, team, hint, scopes, created_at, expires_at, revoked_at, last_used_at"

func scanKey(scan func(...any) error) (sandbox.Key, error) {
	var k sandbox.Key
	err := scan(keyFields(&k)...)
	return k, err
}

func keyFields(k *sandbox.Key) []any {
	return []any{&k.ID, &k.Name, &k.Team, &k.Hint, jsonText(&k.Scopes), instant{&k.CreatedAt}, maybe{&k.ExpiresAt}, maybe{&k.RevokedAt}, maybe{&k.LastUsedAt}}
}

// CreateKey implements [store.Keys].
func (s *Store) CreateKey(ctx context.Context, k sandbox.Key, hash []byte) error {
	scopes, err := encode(k.Scopes)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", k.ID, err)
	}
	_, err = s.exec(ctx, "INSERT INTO keys (hash, "+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		hash, k.ID, k.Name, k.Team, k.Hint, scopes, k.CreatedAt.UnixNano(), nanos(k.ExpiresAt), nanos(k.RevokedAt), nanos(k.LastUsedAt))
	if s.dialect.Taken(err) {
		return sandbox.Errorf(sandbox.CodeConflict, "the key exists already; retry")
	}
	if err != nil {
		return fmt.Errorf("write key %s: %w", k.ID, err)
	}
	return s.db.Sync()
}

// KeyByHash implements [store.Keys].
func (s *Store) KeyByHash(ctx context.Context, hash []byte) (sandbox.Key, []byte, error) {
	var k sandbox.Key
	var stored []byte
	err := s.reader().row(ctx, "SELECT hash, "+keyColumns+" FROM keys WHERE hash = ?", hash)(append([]any{&stored}, keyFields(&k)...)...)
	if errors.Is(err, sql.ErrNoRows) {
		return sandbox.Key{}, nil, absent("key")
	}
	if err != nil {
		return sandbox.Key{}, nil, fmt.Errorf("read key: %w", err)
	}
	return k, stored, nil
}

// KeyByID implements [store.Keys].
func (s *Store) KeyByID(ctx context.Context, id string) (sandbox.Key, error) {
	return one(ctx, s.reader(), "key", scanKey, "SELECT "+keyColumns+" FROM keys WHERE id = ?", id)
}

// ListKeys implements [store.Keys].
func (s *Store) ListKeys(ctx context.Context, team string, p sandbox.Page) ([]sandbox.Key, string, error) {
	l := listQuery{columns: keyColumns, table: "keys", page: p, order: newestFirst("created_at")}
	l.only("team = ?", team)
	return listing(ctx, s.reader(), scanKey, l, func(k *sandbox.Key) store.Place { return store.PlaceAt(k.CreatedAt, k.ID) })
}

// RevokeKey implements [store.Keys].
func (s *Store) RevokeKey(ctx context.Context, team, id string, at time.Time) (sandbox.Key, error) {
	var k sandbox.Key
	revoke := func(tx conn) (err error) {
		k, err = one(ctx, tx, "key", scanKey, "SELECT "+keyColumns+" FROM keys WHERE id = ? AND (? = '' OR team = ?)"+s.dialect.ForUpdate, id, team, team)
		if err != nil {
			return err
		}
		if k.RevokedAt != nil {
			return nil
		}
		at = at.UTC()
		k.RevokedAt = &at
		if _, err := tx.exec(ctx, "UPDATE keys SET revoked_at = ? WHERE id = ?", at.UnixNano(), id); err != nil {
			return fmt.Errorf("revoke key %s: %w", id, err)
		}
		if _, err := tx.exec(ctx, "DELETE FROM sessions WHERE key_id = ?", id); err != nil {
			return fmt.Errorf("end the sessions of key %s: %w", id, err)
		}
		return nil
	}
	if err := s.db.Freeing(func() error { return s.lasting(ctx, revoke) }); err != nil {
		return sandbox.Key{}, err
	}
	return k, nil
}

// TouchKey implements [store.Keys].
func (s *Store) TouchKey(ctx context.Context, id string, at time.Time) error {
	return s.touch(ctx, "keys", id, at)
}
