package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-sh/cove/sandbox"
)

// ObjectKey implements [store.ObjectKey].
func (s *Store) ObjectKey(ctx context.Context) ([]byte, error) {
	var sealed []byte
	err := s.reader().row(ctx, "SELECT sealed FROM object_key")(&sealed)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read the key of the object store: %w", err)
	}
	return sealed, nil
}

// SetObjectKey implements [store.ObjectKey].
func (s *Store) SetObjectKey(ctx context.Context, old, sealed []byte) error {
	return s.lasting(ctx, func(tx conn) error {
		query, args := "INSERT INTO object_key (id, sealed) VALUES (1, ?) ON CONFLICT (id) DO NOTHING", []any{sealed}
		if old != nil {
			query, args = "UPDATE object_key SET sealed = ? WHERE sealed = ?", []any{sealed, old}
		}
		n, err := tx.exec(ctx, query, args...)
		switch {
		case err != nil:
			return fmt.Errorf("store the key of the object store: %w", err)
		case n != 1:
			return sandbox.Errorf(sandbox.CodeConflict, "the key of the object store was changed meanwhile; try again")
		}
		return nil
	})
}
