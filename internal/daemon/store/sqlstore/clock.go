package sqlstore

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
	err := s.reader().row(ctx, "SELECT boot, wall, running FROM clock")(&r.BootID, instant{&r.Wall}, &r.Running)
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
	set := func(tx conn) error {
		if shift != 0 {
			_, err := tx.exec(ctx, "UPDATE sandboxes SET expires_at = expires_at + ?, last_active_at = last_active_at + ? WHERE state IN ('creating', 'running')", int64(shift), int64(shift))
			if err != nil {
				return fmt.Errorf("move the times of sandboxes: %w", err)
			}
		}
		_, err := tx.exec(ctx, "INSERT INTO clock (id, boot, wall, running) VALUES (1, ?, ?, ?)"+
			" ON CONFLICT (id) DO UPDATE SET boot = excluded.boot, wall = excluded.wall, running = excluded.running", r.BootID, r.Wall.UnixNano(), int64(r.Running))
		if err != nil {
			return fmt.Errorf("store the clock's reading: %w", err)
		}
		return nil
	}
	// Without it, lifetimes could not end on a full disk, or would end too soon.
	return s.db.Freeing(func() error { return s.tx(ctx, set) })
}
