package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
)

// ClockReading implements [store.Clock].
func (s *Store) ClockReading(ctx context.Context) (store.ClockReading, error) {
	var r store.ClockReading
	err := s.read.QueryRowContext(ctx, "SELECT boot, wall, running FROM clock").Scan(&r.BootID, instant{&r.Wall}, &r.Running)
	if errors.Is(err, sql.ErrNoRows) {
		return store.ClockReading{}, nil
	}
	if err != nil {
		return store.ClockReading{}, fmt.Errorf("read the clock's last reading: %w", err)
	}
	return r, nil
}

// SetClock implements [store.Clock].
func (s *Store) SetClock(ctx context.Context, r store.ClockReading, shift time.Duration) error {
	set := func(tx *sql.Tx) error {
		if shift != 0 {
			_, err := tx.ExecContext(ctx, "UPDATE sandboxes SET expires_at = expires_at + ?, last_active_at = last_active_at + ? WHERE state IN ('creating', 'running')", int64(shift), int64(shift))
			if err != nil {
				return fmt.Errorf("move the times of sandboxes: %w", err)
			}
		}
		_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO clock (id, boot, wall, running) VALUES (1, ?, ?, ?)", r.BootID, r.Wall.UnixNano(), int64(r.Running))
		if err != nil {
			return fmt.Errorf("store the clock's reading: %w", err)
		}
		return nil
	}
	// Without it, lifetimes could not end on a full disk, or would end too soon.
	return s.freeing(func() error { return s.tx(ctx, set) })
}
