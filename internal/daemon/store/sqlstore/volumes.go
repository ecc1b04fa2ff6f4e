package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const volumeColumns = "id, name, team, size_mib, used_bytes, created_at"

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
	return s.lasting(ctx, func(tx conn) error {
		if err := tx.lockTeam(ctx, r.Team); err != nil {
			return err
		}
		var n int
		if err := tx.row(ctx, "SELECT count(*) FROM volumes WHERE team = ?", r.Team)(&n); err != nil {
			return fmt.Errorf("count volumes: %w", err)
		}
		if err := q.AdmitVolume(n); err != nil {
			return err
		}
		if err := admitDisk(ctx, tx, q, r.Team, r.SizeMiB); err != nil {
			return err
		}
		_, err := tx.exec(ctx, "INSERT INTO volumes ("+volumeColumns+") VALUES ("+marks(len(values))+")", values...)
		switch {
		case s.dialect.Repeated(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the volume exists already; retry")
		case s.dialect.Taken(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another volume of the team; choose another name, or delete that volume first", r.Name)
		case err != nil:
			return fmt.Errorf("write volume %s: %w", r.ID, err)
		}
		return nil
	})
}

// Volume implements [store.Volumes].
func (s *Store) Volume(ctx context.Context, id string) (store.VolumeRecord, error) {
	return volume(ctx, s.reader(), "id = ?", id)
}

// VolumeByName implements [store.Volumes].
func (s *Store) VolumeByName(ctx context.Context, team, name string) (store.VolumeRecord, error) {
	return volume(ctx, s.reader(), "team = ? AND name = ?", team, name)
}

func volume(ctx context.Context, q conn, where string, args ...any) (store.VolumeRecord, error) {
	return one(ctx, q, "volume", scanVolume, "SELECT "+volumeColumns+" FROM volumes WHERE "+where, args...)
}

// ListVolumes implements [store.Volumes].
func (s *Store) ListVolumes(ctx context.Context, team string, p sandbox.Page) ([]store.VolumeRecord, string, error) {
	l := listQuery{columns: volumeColumns, table: "volumes", page: p, order: newestFirst("created_at")}
	l.only("team = ?", team)
	return listing(ctx, s.reader(), scanVolume, l, func(r *store.VolumeRecord) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

// MeasureVolume implements [store.Volumes].
func (s *Store) MeasureVolume(ctx context.Context, id string, usedBytes int64) error {
	if _, err := s.exec(ctx, "UPDATE volumes SET used_bytes = ? WHERE id = ?", usedBytes, id); err != nil {
		return fmt.Errorf("write volume %s: %w", id, err)
	}
	return nil
}

// DeleteVolume implements [store.Volumes].
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	return s.db.Freeing(func() error {
		return s.lasting(ctx, func(tx conn) error { return deleteVolume(ctx, tx, id) })
	})
}

func deleteVolume(ctx context.Context, tx conn, id string) error {
	r, err := volume(ctx, tx, "id = ?", id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	if err == nil {
		err = tx.lockTeam(ctx, r.Team) // no sandbox with it is made meanwhile
	}
	if err != nil {
		return err
	}
	has := tx.dialect.HasVolume
	for _, c := range []struct{ query, what, undo string }{
		{"SELECT id FROM sandboxes WHERE (" + living + " OR held) AND " + has + " ORDER BY id LIMIT 1", "sandbox", "kill"},
		{"SELECT id FROM snapshots WHERE " + has + " ORDER BY id LIMIT 1", "snapshot", "delete"},
	} {
		by, err := scanText(tx.row(ctx, c.query, id))
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for users of volume %s: %w", id, err)
		}
		return sandbox.Errorf(sandbox.CodeConflict, "the volume is in use by %s %s; %s that first", c.what, by, c.undo)
	}
	if _, err := tx.exec(ctx, "DELETE FROM volumes WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return nil
}

// checkVolumes refuses a record with a volume that its team does not have.
func checkVolumes(ctx context.Context, tx conn, r *store.Record) error {
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
