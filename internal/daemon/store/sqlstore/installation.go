package sqlstore

import (
	"context"
	"fmt"
)

// Installation returns the id of the state directory that the database was made
// for, which never changes. Adopts reports whether the database had sandboxes,
// snapshots or volumes before there were ids: its directories may have none yet.
func (s *Store) Installation(ctx context.Context) (id string, adopts bool, err error) {
	if err := s.reader().row(ctx, "SELECT id, adopts FROM installation")(&id, &adopts); err != nil {
		return "", false, fmt.Errorf("read the id of the installation: %w", err)
	}
	return id, adopts, nil
}
