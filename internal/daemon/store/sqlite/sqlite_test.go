package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlstore"
	"github.com/cove-sh/cove/internal/daemon/store/storetest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openFile(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		// A name that a data source string must escape.
		path := filepath.Join(t.TempDir(), "co?ve #1%20.db")
		return func(t *testing.T) store.Store { return openFile(t, path) }
	})
}

func TestFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := openFile(t, path)
	if err := s.DeleteTemplate(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		fi, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %o, want 600", fi.Name(), got)
		}
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	s := openFile(t, path)
	if _, err := s.db.write.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)"); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), path)
	if err == nil || !strings.Contains(err.Error(), "schema 99999, newer than") {
		t.Fatalf("Open of a newer schema: %v", err)
	}
}

// TestUpgrade opens a database of the first schema, with a record in it.
func TestUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	db, err := open(path, "_journal_mode=WAL", 1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sqlstore.Migrations(goose.DialectSQLite3, db, migrationFiles)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO sandboxes VALUES ('sbx-old', 'name', 'red', 'default', '{"a":"1"}', 'host', 'running', '',
		2, 512, 1024, 99, '{"K":"v"}', 'null', 'user', '/workspace', 60, 30, 'kill', 1, 2, 3, NULL, NULL, '["cpu"]', 'boot-1', 1, 0)`
	if _, err := db.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	s := openFile(t, path)
	started := time.Unix(0, 2).UTC()
	want := store.Record{
		Sandbox: sandbox.Sandbox{
			ID: "sbx-old", Name: "name", Team: "red", Namespace: "default", Metadata: map[string]string{"a": "1"}, Template: "host",
			State: sandbox.StateRunning, Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 512, DiskMiB: 1024, MaxPIDs: 99},
			Env: map[string]string{"K": "v"}, User: "user", WorkDir: "/workspace",
			LifetimeSeconds: 60, IdleTimeoutSeconds: 30, OnTimeout: sandbox.ActionKill,
			CreatedAt: time.Unix(0, 1).UTC(), StartedAt: &started, LastActiveAt: time.Unix(0, 3).UTC(), Unenforced: []string{"cpu"},
		},
		BootID: "boot-1", Held: true, Instance: "sbx-old",
	}
	got, err := s.SandboxByInstance(t.Context(), "sbx-old")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("old record differs (-want +got):\n%s", diff)
	}
	want.State, want.Checkpoint = sandbox.StatePaused, "cp-1"
	got, err = s.UpdateSandbox(t.Context(), "sbx-old", store.Change{Apply: func(r *store.Record) error {
		r.State, r.Checkpoint = sandbox.StatePaused, "cp-1"
		return nil
	}})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("changed old record: %v, differs (-want +got):\n%s", err, diff)
	}
	if err := s.CreateSnapshot(t.Context(), store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-a"}, Checkpoint: "cp-2"}, store.Quota{Snapshots: 1}); err != nil {
		t.Fatal(err)
	}
	checkpoints, err := s.Checkpoints(t.Context())
	if diff := cmp.Diff([]string{"cp-1", "cp-2"}, checkpoints); diff != "" || err != nil {
		t.Errorf("checkpoints: %v, differ (-want +got):\n%s", err, diff)
	}
}

func TestGarbageIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), path); err == nil {
		t.Fatal(errors.Join(errors.New("opened garbage"), s.Close()))
	}
}

func TestCancelledContext(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "cove.db"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Sandbox(ctx, "a"); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("Sandbox with a cancelled context: %v", err)
	}
	if err := s.CreateSandbox(ctx, store.Record{}, store.Quota{}); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("CreateSandbox with a cancelled context: %v", err)
	}
}

// Creating a record is the part of "create" that waits for the store.
func BenchmarkCreateSandbox(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "cove.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	storetest.BenchmarkCreate(b, s)
}

func BenchmarkSandboxByID(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "cove.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := s.CreateSandbox(b.Context(), store.Record{Sandbox: sandbox.Sandbox{ID: "a"}}, store.Quota{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Sandbox(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}

// TestUpgradeNamespaces opens a database in which snapshots are in no namespace
// yet.
func TestUpgradeNamespaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	db, err := open(path, "_journal_mode=WAL", 1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sqlstore.Migrations(goose.DialectSQLite3, db, migrationFiles)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO sandboxes (id, name, team, namespace, metadata, template, state, reason, vcpus, memory_mib, disk_mib, max_pids,
			env, base_env, user, workdir, lifetime_seconds, idle_seconds, on_timeout, created_at, last_active_at, unenforced, boot_id, held, applying)
			VALUES ('sbx-a', 'web', 'red', 'ns', 'null', 'host', 'running', '', 1, 1, 1, 1, 'null', 'null', '', '', 0, 0, 'kill', 1, 1, 'null', '', 0, 0);
		INSERT INTO snapshots (id, name, team, sandbox_id, kind, automatic, label, parent_id, template, vcpus, memory_mib, disk_mib, max_pids, size_bytes,
			created_at, checkpoint, root, origin, base_env, env, user, workdir, step) SELECT
			id, id, 'red', sandbox, 'memory', 0, '', '', 'host', 1, 1, 1, 1, 1, 1, id, '', '', 'null', 'null', '', '', 0
			FROM (SELECT 'snap-a' AS id, 'sbx-a' AS sandbox UNION SELECT 'snap-gone', 'sbx-gone')`
	if _, err := db.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := openFile(t, path)
	for id, want := range map[string]string{"snap-a": "ns", "snap-gone": sandbox.DefaultNamespace} {
		got, err := s.Snapshot(t.Context(), id)
		if err != nil || got.Namespace != want {
			t.Errorf("%s is in %q, %v; want %q", id, got.Namespace, err, want)
		}
	}
	if got, err := s.SandboxByName(t.Context(), "red", "ns", "web"); err != nil || got.ID != "sbx-a" {
		t.Errorf("found %q, %v", got.ID, err)
	}
}

func TestUpgradeMoments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	db, err := open(path, "_journal_mode=WAL", 1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sqlstore.Migrations(goose.DialectSQLite3, db, migrationFiles)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 16); err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO sandboxes (id, name, team, namespace, metadata, template, state, reason, vcpus, memory_mib, disk_mib, max_pids,
			env, base_env, user, workdir, lifetime_seconds, idle_seconds, on_timeout, created_at, last_active_at, unenforced, boot_id, held, applying, paused_at)
			SELECT id, '', 'red', 'default', 'null', 'host', state, '', 1, 1, 1, 1, 'null', 'null', '', '', 0, 0, 'kill', 1, 1, 'null', '', 0, 0, at
			FROM (SELECT 'sbx-paused' AS id, 'paused' AS state, 1767225600000000000 AS at UNION SELECT 'sbx-runs', 'running', NULL)`
	if _, err := db.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := openFile(t, path)
	for id, want := range map[string][]sandbox.Moment{
		"sbx-paused": {{Kind: sandbox.MomentPaused, At: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}},
		"sbx-runs":   nil,
	} {
		got, err := s.Sandbox(t.Context(), id)
		if diff := cmp.Diff(want, got.Moments); diff != "" || err != nil {
			t.Errorf("%s: %v, its moments differ (-want +got):\n%s", id, err, diff)
		}
	}
}
