package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

const sandboxColumns = `id, name, team, namespace, metadata, template, state, reason,
	vcpus, memory_mib, disk_mib, max_pids, env, base_env, "user", workdir,
	lifetime_seconds, idle_seconds, on_timeout, created_at, started_at, last_active_at,
	expires_at, ended_at, unenforced, boot_id, held, applying,
	forked_from, snapshot, history, paused_at, instance, checkpoint, fork_point, origin, root,
	network, bindings, ports, paused_lifetime_seconds, paused_expires_at, mounts, answers, moments, made_from,
	checkpoint_seconds, kept_last, kept_next, kept_bytes, kept, family`

const living = `state NOT IN ('killed', 'failed')`

func scanRecord(scan func(...any) error) (store.Record, error) {
	var r store.Record
	var last, next string
	var bytes int64 // these are for queries: kept has them too
	err := scan(&r.ID, &r.Name, &r.Team, &r.Namespace, jsonText(&r.Metadata), &r.Template, &r.State, &r.Reason,
		&r.Resources.VCPUs, &r.Resources.MemoryMiB, &r.Resources.DiskMiB, &r.Resources.MaxPIDs,
		jsonText(&r.Env), jsonText(&r.BaseEnv), &r.User, &r.WorkDir,
		&r.LifetimeSeconds, &r.IdleTimeoutSeconds, &r.OnTimeout, instant{&r.CreatedAt}, maybe{&r.StartedAt}, instant{&r.LastActiveAt},
		maybe{&r.ExpiresAt}, maybe{&r.EndedAt}, jsonText(&r.Unenforced), &r.BootID, &r.Held, &r.Applying,
		&r.ForkedFrom, &r.Snapshot, &r.History, maybe{&r.PausedAt}, &r.Instance, &r.Checkpoint, &r.ForkPoint, &r.Origin, opaque{&r.Root},
		jsonText(&r.Network), jsonText(&r.Bindings), jsonText(&r.Ports), &r.PausedLifetimeSeconds, maybe{&r.PausedExpiresAt}, jsonText(&r.Mounts), jsonText(&r.Answers), jsonText(&r.Moments), jsonText(&r.MadeFrom),
		&r.CheckpointIntervalSeconds, &last, &next, &bytes, jsonText(&r.Kept), &r.Family)
	if err != nil {
		return store.Record{}, err
	}
	r.Dedicated = r.Family != ""
	return r, nil
}

// recordValues returns the columns of r in the order of sandboxColumns.
func recordValues(r *store.Record) ([]any, error) {
	docs := make([]string, 12)
	for i, v := range []any{r.Metadata, r.Env, r.BaseEnv, r.Unenforced, r.Network, r.Bindings, r.Ports, r.Mounts, r.Answers, r.Moments, r.MadeFrom, r.Kept} {
		var err error
		if docs[i], err = encode(v); err != nil {
			return nil, fmt.Errorf("encode sandbox %s: %w", r.ID, err)
		}
	}
	return []any{
		r.ID, r.Name, r.Team, r.Namespace, docs[0], r.Template, string(r.State), r.Reason,
		r.Resources.VCPUs, r.Resources.MemoryMiB, r.Resources.DiskMiB, r.Resources.MaxPIDs, docs[1], docs[2], r.User, r.WorkDir,
		r.LifetimeSeconds, r.IdleTimeoutSeconds, string(r.OnTimeout), r.CreatedAt.UnixNano(), nanos(r.StartedAt), r.LastActiveAt.UnixNano(),
		nanos(r.ExpiresAt), nanos(r.EndedAt), docs[3], r.BootID, r.Held, r.Applying,
		r.ForkedFrom, r.Snapshot, r.History, nanos(r.PausedAt), r.Instance, r.Checkpoint, r.ForkPoint, r.Origin, string(r.Root),
		docs[4], docs[5], docs[6], r.PausedLifetimeSeconds, nanos(r.PausedExpiresAt), docs[7], docs[8], docs[9], docs[10],
		r.CheckpointIntervalSeconds, r.Kept.Last.Checkpoint, r.Kept.Next.Checkpoint, r.Kept.Bytes(), docs[11], r.Family,
	}, nil
}

// CreateSandbox implements [store.Sandboxes].
func (s *Store) CreateSandbox(ctx context.Context, r store.Record, q store.Quota) error {
	return s.CreateSandboxes(ctx, []store.Record{r}, q)
}

// CreateSandboxes implements [store.Sandboxes].
func (s *Store) CreateSandboxes(ctx context.Context, records []store.Record, q store.Quota) error {
	return s.tx(ctx, func(tx conn) error {
		more := map[string]store.Usage{}
		for i := range records {
			r := &records[i]
			more[r.Team] = sum(more[r.Team], weight(r), 1)
		}
		// In order, so that no two wait for each other.
		for _, team := range slices.Sorted(maps.Keys(more)) {
			if err := admit(ctx, tx, q, team, more[team]); err != nil {
				return err
			}
		}
		for _, r := range records {
			if err := insertRecord(ctx, tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// admit says whether a team may use that much more. Nothing else is admitted to the
// team until the transaction has ended.
func admit(ctx context.Context, tx conn, q store.Quota, team string, more store.Usage) error {
	if err := tx.lockTeam(ctx, team); err != nil {
		return err
	}
	if q == (store.Quota{}) {
		return nil
	}
	u, err := usage(ctx, tx, team)
	if err != nil {
		return err
	}
	return q.Admit(u, more)
}

func insertRecord(ctx context.Context, tx conn, r store.Record) error {
	r.Instance = cmp.Or(r.Instance, r.ID)
	if err := checkVolumes(ctx, tx, &r); err != nil {
		return err
	}
	values, err := recordValues(&r)
	if err != nil {
		return err
	}
	if _, err := tx.exec(ctx, "INSERT INTO sandboxes ("+sandboxColumns+") VALUES ("+marks(len(values))+")", values...); err != nil {
		return tx.nameError(err, &r)
	}
	return nil
}

func (c conn) nameError(err error, r *store.Record) error {
	if c.dialect.Repeated(err) {
		return sandbox.Errorf(sandbox.CodeConflict, "the sandbox exists already; retry")
	}
	if c.dialect.Taken(err) {
		return sandbox.Errorf(sandbox.CodeConflict, "the name %q is taken by another living sandbox of the team; choose another name, or kill that sandbox first", r.Name)
	}
	return fmt.Errorf("write sandbox %s: %w", r.ID, err)
}

// weight is what a sandbox counts for: see [store.Usage]. The query of usage
// says the same.
func weight(r *store.Record) store.Usage {
	switch {
	case r.State.Final():
		return store.Usage{}
	case r.State == sandbox.StatePaused:
		return store.Usage{Sandboxes: 1, DiskMiB: r.Resources.DiskMiB + r.Kept.Bytes()>>20}
	}
	return store.Usage{Sandboxes: 1, VCPUs: r.Resources.VCPUs, MemoryMiB: r.Resources.MemoryMiB, DiskMiB: r.Resources.DiskMiB + r.Kept.Bytes()>>20}
}

// sum returns a + factor × b.
func sum(a, b store.Usage, factor int) store.Usage {
	return store.Usage{
		Sandboxes: a.Sandboxes + factor*b.Sandboxes,
		VCPUs:     a.VCPUs + factor*b.VCPUs,
		MemoryMiB: a.MemoryMiB + int64(factor)*b.MemoryMiB,
		DiskMiB:   a.DiskMiB + int64(factor)*b.DiskMiB,
	}
}

// SandboxUsage implements [store.Sandboxes].
func (s *Store) SandboxUsage(ctx context.Context, team string) (store.Usage, error) {
	return usage(ctx, s.reader(), team)
}

func usage(ctx context.Context, q conn, team string) (store.Usage, error) {
	ofTeam, args := "", []any(nil)
	if team != "" {
		ofTeam, args = " AND team = ?", []any{team, team, team}
	}
	// A sum may be of a type with more digits.
	scan := q.row(ctx, `SELECT count(*), CAST(coalesce(sum(vcpus) FILTER (WHERE state <> 'paused'), 0) AS BIGINT),
		CAST(coalesce(sum(memory_mib) FILTER (WHERE state <> 'paused'), 0) AS BIGINT),
		CAST(coalesce(sum(disk_mib), 0) AS BIGINT) + CAST(coalesce(sum(kept_bytes), 0) AS BIGINT) / 1048576 + (SELECT CAST(coalesce(sum(size_mib), 0) AS BIGINT) FROM volumes WHERE true`+ofTeam+`)
			+ (SELECT CAST(coalesce(sum(size_bytes), 0) AS BIGINT) FROM snapshots WHERE true`+ofTeam+`) / 1048576
		FROM sandboxes WHERE `+living+ofTeam, args...)
	var u store.Usage
	if err := scan(&u.Sandboxes, &u.VCPUs, &u.MemoryMiB, &u.DiskMiB); err != nil {
		return store.Usage{}, fmt.Errorf("sum up what the team uses: %w", err)
	}
	return u, nil
}

// admitDisk says whether a team may have more disk.
func admitDisk(ctx context.Context, tx conn, q store.Quota, team string, mib int64) error {
	if q.DiskMiB == 0 {
		return nil
	}
	u, err := usage(ctx, tx, team)
	if err != nil {
		return err
	}
	return q.AdmitDisk(u.DiskMiB, mib)
}

// Sandbox implements [store.Sandboxes].
func (s *Store) Sandbox(ctx context.Context, id string) (store.Record, error) {
	return record(ctx, s.reader(), "WHERE id = ?", id)
}

// SandboxByName implements [store.Sandboxes].
func (s *Store) SandboxByName(ctx context.Context, team, namespace, name string) (store.Record, error) {
	if name == "" {
		return store.Record{}, absent("sandbox")
	}
	n := naming{team, namespace, name}
	found, err := collect(ctx, s.reader(), scanRecord, "SELECT "+sandboxColumns+" FROM sandboxes "+n.where(living+" DESC, "), n.args()...)
	if err != nil {
		return store.Record{}, fmt.Errorf("read sandbox: %w", err)
	}
	if len(found) == 0 {
		return store.Record{}, absent("sandbox")
	}
	// Two that live are of two namespaces.
	if len(found) > 1 && !found[1].State.Final() && found[0].Namespace != sandbox.DefaultNamespace {
		return store.Record{}, n.ambiguous("sandbox", found[0].Namespace, found[1].Namespace)
	}
	return found[0], nil
}

// SandboxByInstance implements [store.Sandboxes].
func (s *Store) SandboxByInstance(ctx context.Context, instance string) (store.Record, error) {
	if instance == "" {
		return store.Record{}, absent("sandbox")
	}
	return record(ctx, s.reader(), "WHERE instance = ? ORDER BY "+living+" DESC, created_at DESC, id DESC LIMIT 1", instance)
}

func record(ctx context.Context, q conn, where string, args ...any) (store.Record, error) {
	return one(ctx, q, "sandbox", scanRecord, "SELECT "+sandboxColumns+" FROM sandboxes "+where, args...)
}

// UpdateSandbox implements [store.Sandboxes].
func (s *Store) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	var r store.Record
	ends, lasts := false, false
	change := func(tx conn) error {
		before, err := record(ctx, tx, "WHERE id = ?"+s.dialect.ForUpdate, id)
		if err != nil {
			return err
		}
		r = before
		if len(c.From) > 0 && !slices.Contains(c.From, before.State) {
			return sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s", before.State)
		}
		after := before
		if err := c.Apply(&after); err != nil {
			return err
		}
		ends = after.State == sandbox.StateStopping || after.State.Final()
		lasts = survivesPowerLoss(&before, &after)
		if err := admitChange(ctx, tx, &before, &after, c.Quota); err != nil {
			return err
		}
		if err := writeRecord(ctx, tx, id, &after); err != nil {
			return err
		}
		r = after
		return nil
	}
	err := s.tx(ctx, change)
	if ends && s.dialect.Full(err) {
		err = s.db.Freeing(func() error { return s.tx(ctx, change) })
	}
	if err == nil && lasts {
		err = s.db.Sync()
	}
	return r, err
}

// survivesPowerLoss reports whether a change of a sandbox is of what a loss of
// power leaves of it: the state that is kept of a paused one, or of a running one by its
// checkpoint interval. Other running ones end.
func survivesPowerLoss(before, after *store.Record) bool {
	return before.Checkpoint != after.Checkpoint || before.Kept.Newest() != after.Kept.Newest() || before.State == sandbox.StatePaused || after.State == sandbox.StatePaused
}

func admitChange(ctx context.Context, tx conn, before, after *store.Record, q store.Quota) error {
	if q == (store.Quota{}) {
		return nil
	}
	return admit(ctx, tx, q, before.Team, sum(weight(after), weight(before), -1))
}

// UpdateSandboxes implements [store.Sandboxes].
func (s *Store) UpdateSandboxes(ctx context.Context, ids []string, apply func(map[string]*store.Record) error) (map[string]store.Record, error) {
	var before, after map[string]store.Record
	lasts := false
	err := s.tx(ctx, func(tx conn) error {
		lasts = false
		records, changed := map[string]store.Record{}, map[string]*store.Record{}
		for _, id := range slices.Sorted(slices.Values(ids)) {
			r, err := record(ctx, tx, "WHERE id = ?"+s.dialect.ForUpdate, id)
			if err != nil {
				return err
			}
			records[id], changed[id] = r, &r
		}
		before = records
		// What apply does to the map itself has no effect.
		if err := apply(maps.Clone(changed)); err != nil {
			return err
		}
		if err := writeRecords(ctx, tx, changed); err != nil {
			return err
		}
		after = make(map[string]store.Record, len(changed))
		for id, r := range changed {
			after[id] = *r
			was := before[id]
			lasts = lasts || survivesPowerLoss(&was, r)
		}
		return nil
	})
	if err != nil {
		return before, err
	}
	if lasts {
		err = s.db.Sync()
	}
	return after, err
}

// writeRecords frees the names first, so that one record may take over the
// name of another.
func writeRecords(ctx context.Context, tx conn, records map[string]*store.Record) error {
	for id := range records {
		if _, err := tx.exec(ctx, "UPDATE sandboxes SET name = '' WHERE id = ?", id); err != nil {
			return fmt.Errorf("write sandbox %s: %w", id, err)
		}
	}
	for id, r := range records {
		if err := writeRecord(ctx, tx, id, r); err != nil {
			return err
		}
	}
	return nil
}

func writeRecord(ctx context.Context, tx conn, id string, r *store.Record) error {
	values, err := recordValues(r)
	if err != nil {
		return err
	}
	columns := strings.Split(sandboxColumns, ",")
	for i, c := range columns {
		columns[i] = strings.TrimSpace(c) + " = ?"
	}
	if _, err := tx.exec(ctx, "UPDATE sandboxes SET "+strings.Join(columns, ", ")+" WHERE id = ?", append(values, id)...); err != nil {
		return tx.nameError(err, r)
	}
	return nil
}

// TouchSandboxes implements [store.Sandboxes].
func (s *Store) TouchSandboxes(ctx context.Context, active map[string]time.Time) error {
	if len(active) == 0 {
		return nil
	}
	return s.tx(ctx, func(tx conn) error {
		for _, id := range slices.Sorted(maps.Keys(active)) {
			n := active[id].UnixNano()
			if _, err := tx.exec(ctx, "UPDATE sandboxes SET last_active_at = ? WHERE id = ? AND last_active_at < ? AND "+living, n, id, n); err != nil {
				return fmt.Errorf("touch sandbox %s: %w", id, err)
			}
		}
		return nil
	})
}

// ListSandboxes implements [store.Sandboxes].
func (s *Store) ListSandboxes(ctx context.Context, f store.SandboxFilter, p sandbox.Page) ([]store.Record, string, error) {
	where, args := s.dialect.filterSandboxes(f)
	return listing(ctx, s.reader(), scanRecord, listQuery{
		columns: sandboxColumns, table: "sandboxes", where: where, args: args, page: p,
		order: newestFirst("created_at"),
	}, func(r *store.Record) store.Place { return store.PlaceAt(r.CreatedAt, r.ID) })
}

func (d *Dialect) filterSandboxes(f store.SandboxFilter) (where []string, args []any) {
	add := func(cond string, a ...any) { where, args = append(where, cond), append(args, a...) }
	for _, c := range []struct{ column, value string }{
		{"team", f.Team}, {"namespace", f.Namespace}, {"name", f.Name}, {"template", f.Template},
	} {
		if c.value != "" {
			add(c.column+" = ?", c.value)
		}
	}
	if len(f.States) > 0 {
		states := make([]any, len(f.States))
		for i, st := range f.States {
			states[i] = string(st)
		}
		add("state IN ("+marks(len(states))+")", states...)
	}
	for k, v := range f.Metadata {
		add(d.HasMetadata, k, v)
	}
	if f.Held {
		add("held")
	}
	if f.Mounted {
		add("mounts <> 'null'")
	}
	if f.VolumeID != "" {
		add(d.HasVolume, f.VolumeID)
	}
	if f.SecretID != "" {
		add(d.HasSecret, f.SecretID)
	}
	return where, args
}

// DueSandboxes implements [store.Sandboxes].
func (s *Store) DueSandboxes(ctx context.Context, now time.Time) ([]string, error) {
	const due = `SELECT id FROM sandboxes WHERE
		((state = 'running' OR state = 'paused' AND on_timeout <> 'pause') AND expires_at IS NOT NULL AND expires_at <= ?) OR
		(state = 'running' AND idle_seconds > 0 AND last_active_at + idle_seconds * 1000000000 <= ?) OR
		(state = 'paused' AND paused_expires_at IS NOT NULL AND paused_expires_at <= ?)`
	n := now.UnixNano()
	ids, err := collect(ctx, s.reader(), scanText, due, n, n, n)
	if err != nil {
		return nil, fmt.Errorf("find due sandboxes: %w", err)
	}
	return ids, nil
}

// DeleteSandbox implements [store.Sandboxes].
func (s *Store) DeleteSandbox(ctx context.Context, id string) error {
	if _, err := s.remove(ctx, "DELETE FROM sandboxes WHERE id = ?", id); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", id, err)
	}
	return nil
}

// DeleteEndedSandboxes implements [store.Sandboxes].
func (s *Store) DeleteEndedSandboxes(ctx context.Context, before time.Time) (int, error) {
	n, err := s.remove(ctx, "DELETE FROM sandboxes WHERE state IN ('killed', 'failed') AND NOT held AND ended_at < ?", before.UnixNano())
	if err != nil {
		return 0, fmt.Errorf("delete ended sandboxes: %w", err)
	}
	return n, nil
}
