package sqlstore

import (
	"context"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const snapshotColumns = `id, name, team, sandbox_id, kind, automatic, label, parent_id, template,
	vcpus, memory_mib, disk_mib, max_pids, size_bytes, created_at,
	checkpoint, root, origin, base_env, env, "user", workdir, step, network, bindings, mounts, namespace`

func scanSnapshot(scan func(...any) error) (store.SnapshotRecord, error) {
	var r store.SnapshotRecord
	err := scan(&r.ID, &r.Name, &r.Team, &r.SandboxID, &r.Kind, &r.Automatic, &r.Label, &r.ParentID, &r.Template,
		&r.Resources.VCPUs, &r.Resources.MemoryMiB, &r.Resources.DiskMiB, &r.Resources.MaxPIDs, &r.SizeBytes, instant{&r.CreatedAt},
		&r.Checkpoint, opaque{&r.Root}, &r.Origin, jsonText(&r.BaseEnv), jsonText(&r.Env), &r.User, &r.WorkDir, &r.Step,
		jsonText(&r.Network), jsonText(&r.Bindings), jsonText(&r.Mounts), &r.Namespace)
	if err != nil {
		return store.SnapshotRecord{}, err
	}
	return r, nil
}

// CreateSnapshot implements [store.Snapshots].
func (s *Store) CreateSnapshot(ctx context.Context, r store.SnapshotRecord, q store.Quota) error {
	docs := make([]string, 5)
	for i, v := range []any{r.BaseEnv, r.Env, r.Network, r.Bindings, r.Mounts} {
		var err error
		if docs[i], err = encode(v); err != nil {
			return fmt.Errorf("encode snapshot %s: %w", r.ID, err)
		}
	}
	values := []any{
		r.ID, r.Name, r.Team, r.SandboxID, string(r.Kind), r.Automatic, r.Label, r.ParentID, r.Template,
		r.Resources.VCPUs, r.Resources.MemoryMiB, r.Resources.DiskMiB, r.Resources.MaxPIDs, r.SizeBytes, r.CreatedAt.UnixNano(),
		r.Checkpoint, string(r.Root), r.Origin, docs[0], docs[1], r.User, r.WorkDir, r.Step, docs[2], docs[3], docs[4], r.Namespace,
	}
	return s.lasting(ctx, func(tx conn) error {
		if err := admitSnapshot(ctx, tx, &r, q); err != nil {
			return err
		}
		_, err := tx.exec(ctx, "INSERT INTO snapshots ("+snapshotColumns+") VALUES ("+marks(len(values))+")", values...)
		switch {
		case s.dialect.Repeated(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the snapshot exists already; retry")
		case s.dialect.Taken(err):
			return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another snapshot of the team; choose another name, or delete that snapshot first", r.Name)
		case err != nil:
			return fmt.Errorf("write snapshot %s: %w", r.ID, err)
		}
		return nil
	})
}

// admitSnapshot says whether the team may keep one more snapshot. Automatic
// ones are bounded by the history of their sandbox.
func admitSnapshot(ctx context.Context, tx conn, r *store.SnapshotRecord, q store.Quota) error {
	if r.Automatic {
		return nil
	}
	if err := tx.lockTeam(ctx, r.Team); err != nil {
		return err
	}
	if err := admitDisk(ctx, tx, q, r.Team, (r.SizeBytes+1<<20-1)>>20); err != nil {
		return err
	}
	var n int
	if err := tx.row(ctx, "SELECT count(*) FROM snapshots WHERE team = ? AND NOT automatic", r.Team)(&n); err != nil {
		return fmt.Errorf("count snapshots: %w", err)
	}
	return q.AdmitSnapshot(n)
}

// Snapshot implements [store.Snapshots].
func (s *Store) Snapshot(ctx context.Context, id string) (store.SnapshotRecord, error) {
	return s.snapshot(ctx, "id = ?", id)
}

// SnapshotByName implements [store.Snapshots].
func (s *Store) SnapshotByName(ctx context.Context, team, namespace, name string) (store.SnapshotRecord, error) {
	if name == "" {
		return store.SnapshotRecord{}, absent("snapshot")
	}
	n := naming{team, namespace, name}
	found, err := collect(ctx, s.reader(), scanSnapshot, "SELECT "+snapshotColumns+" FROM snapshots "+n.where(""), n.args()...)
	if err != nil {
		return store.SnapshotRecord{}, fmt.Errorf("read snapshot: %w", err)
	}
	if len(found) == 0 {
		return store.SnapshotRecord{}, absent("snapshot")
	}
	if len(found) > 1 && found[0].Namespace != sandbox.DefaultNamespace {
		return store.SnapshotRecord{}, n.ambiguous("snapshot", found[0].Namespace, found[1].Namespace)
	}
	return found[0], nil
}

func (s *Store) snapshot(ctx context.Context, where string, args ...any) (store.SnapshotRecord, error) {
	return one(ctx, s.reader(), "snapshot", scanSnapshot, "SELECT "+snapshotColumns+" FROM snapshots WHERE "+where, args...)
}

// ListSnapshots implements [store.Snapshots].
func (s *Store) ListSnapshots(ctx context.Context, f store.SnapshotFilter, p sandbox.Page) ([]store.SnapshotRecord, string, error) {
	l := listQuery{columns: snapshotColumns, table: "snapshots", page: p, order: newestFirst("created_at")}
	l.only("team = ?", f.Team)
	l.only("namespace = ?", f.Namespace)
	l.only("sandbox_id = ?", f.SandboxID)
	if f.Automatic != nil {
		l.where, l.args = append(l.where, "automatic = ?"), append(l.args, *f.Automatic)
	}
	return listing(ctx, s.reader(), scanSnapshot, l, func(r *store.SnapshotRecord) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

// DeleteSnapshot implements [store.Snapshots].
func (s *Store) DeleteSnapshot(ctx context.Context, id string) error {
	if _, err := s.remove(ctx, "DELETE FROM snapshots WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	return s.db.Sync()
}

// Checkpoints implements [store.Snapshots].
func (s *Store) Checkpoints(ctx context.Context) ([]string, error) {
	// UNION leaves out what is there twice.
	const query = `SELECT checkpoint AS c FROM snapshots WHERE checkpoint <> ''
		UNION SELECT checkpoint FROM sandboxes WHERE checkpoint <> '' AND ` + living + `
		UNION SELECT fork_point FROM sandboxes WHERE fork_point <> '' AND ` + living + `
		UNION SELECT kept_last FROM sandboxes WHERE kept_last <> '' AND ` + living + `
		UNION SELECT kept_next FROM sandboxes WHERE kept_next <> '' AND ` + living + `
		ORDER BY c`
	all, err := collect(ctx, s.reader(), scanText, query)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	return all, nil
}
