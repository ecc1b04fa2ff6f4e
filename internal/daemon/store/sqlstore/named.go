package sqlstore

import (
	"context"
	"fmt"
)

// WasNamed implements [store.Named].
func (s *Store) WasNamed(ctx context.Context, id string) (bool, error) {
	var was bool
	if err := s.reader().row(ctx, "SELECT EXISTS (SELECT 1 FROM named WHERE id = ?)", id)(&was); err != nil {
		return false, fmt.Errorf("look for %s among what was recorded: %w", id, err)
	}
	return was, nil
}

// ForgetNamed implements [store.Named].
func (s *Store) ForgetNamed(ctx context.Context, id string) error {
	if _, err := s.remove(ctx, "DELETE FROM named WHERE id = ?", id); err != nil {
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}
