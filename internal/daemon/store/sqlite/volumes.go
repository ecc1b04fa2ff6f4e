package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const volumeColumns = "id, name, team, size_mib, used_bytes, created_at"

// hasVolume is a condition on a row with mounts.
const hasVolume = "EXISTS (SELECT 1 FROM json_each(mounts) AS m WHERE json_extract(m.value, '$.volume') = ?)"

func scanVolume(scan func(...any) error) (store.VolumeRecord, error) {
	var r store.VolumeRecord
	if err := scan(&r.ID, &r.Name, &r.Team, &r.SizeMiB, &r.UsedBytes, instant{&r.CreatedAt}); err != nil {
		return store.VolumeRecord{}, err
	}
	return r, nil
}

// CreateVolume implements [store.Volumes].
func (s *Store) CreateVolume(ctx context.Context, r store.VolumeRecord, q store.Quota) error {
	values := []any{r.ID, r.Name, r.Team, r.SizeMiB, r.UsedBytes, r.CreatedAt.UnixNano()}
	return s.lasting(ctx, func(tx *sql.Tx) error {
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM volumes WHERE team = ?", r.Team).Scan(&n); err != nil {
			return fmt.Errorf("count volumes: %w", err)
		}
		if err := q.AdmitVolume(n); err != nil {
			return err
		}
		if err := admitDisk(ctx, tx, q, r.Team, r.SizeMiB); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO volumes ("+volumeColumns+") VALUES ("+marks(len(values))+")", values...)
		switch {
		case repeated(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the volume exists already; retry")
		case taken(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another volume of the team; choose another name, or delete that volume first", r.Name)
		case err != nil:
			return fmt.Errorf("write volume %s: %w", r.ID, err)
		}
		return nil
	})
}

// Volume implements [store.Volumes].
func (s *Store) Volume(ctx context.Context, id string) (store.VolumeRecord, error) {
	return volume(ctx, s.read, "id = ?", id)
}

// VolumeByName implements [store.Volumes].
func (s *Store) VolumeByName(ctx context.Context, team, name string) (store.VolumeRecord, error) {
	return volume(ctx, s.read, "team = ? AND name = ?", team, name)
}

func volume(ctx context.Context, q querier, where string, args ...any) (store.VolumeRecord, error) {
	return one(ctx, q, "volume", scanVolume, "SELECT "+volumeColumns+" FROM volumes WHERE "+where, args...)
}

// ListVolumes implements [store.Volumes].
func (s *Store) ListVolumes(ctx context.Context, team string, p sandbox.Page) ([]store.VolumeRecord, string, error) {
	l := listQuery{columns: volumeColumns, table: "volumes", page: p, order: newestFirst("created_at")}
	l.only("team = ?", team)
	return listing(ctx, s.read, scanVolume, l, func(r *store.VolumeRecord) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

// MeasureVolume implements [store.Volumes].
func (s *Store) MeasureVolume(ctx context.Context, id string, usedBytes int64) error {
	if _, err := s.write.ExecContext(ctx, "UPDATE volumes SET used_bytes = ? WHERE id = ?", usedBytes, id); err != nil {
		return fmt.Errorf("write volume %s: %w", id, err)
	}
	return nil
}

// DeleteVolume implements [store.Volumes].
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	return s.freeing(func() error { return s.lasting(ctx, deleteVolume(ctx, id)) })
}

func deleteVolume(ctx context.Context, id string) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		for _, c := range []struct{ query, what, undo string }{
			{"SELECT id FROM sandboxes WHERE (" + living + " OR held = 1) AND " + hasVolume + " ORDER BY id LIMIT 1", "sandbox", "kill"},
			{"SELECT id FROM snapshots WHERE " + hasVolume + " ORDER BY id LIMIT 1", "snapshot", "delete"},
		} {
			var by string
			err := tx.QueryRowContext(ctx, c.query, id).Scan(&by)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return fmt.Errorf("look for users of volume %s: %w", id, err)
			}
			return sandbox.Errorf(sandbox.CodeConflict, "the volume is in use by %s %s; %s that first", c.what, by, c.undo)
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM volumes WHERE id = ?", id); err != nil {
			return fmt.Errorf("delete volume %s: %w", id, err)
		}
		return nil
	}
}

// checkVolumes refuses a record with a volume that its team does not have.
func checkVolumes(ctx context.Context, tx *sql.Tx, r *store.Record) error {
	for _, m := range r.Mounts {
		if m.Volume == "" {
			continue
		}
		if _, err := volume(ctx, tx, "id = ? AND team = ?", m.Volume, r.Team); err != nil {
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return sandbox.Errorf(sandbox.CodeNotFound, "there is no volume %q; list the volumes to see which exist", m.Volume)
			}
			return err
		}
	}
	return nil
}
