package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// promise is a change of the record that outlives a loss of power.
type promise struct {
	name  string
	do    func(context.Context, *Store) error
	holds func(context.Context, *Store) bool
}

func promises() []promise {
	now := time.Unix(1_700_000_000, 0)
	notFound := func(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeNotFound }
	paused := func(r *store.Record) error { r.State, r.Checkpoint = sandbox.StatePaused, "ckp-1"; return nil }
	return []promise{
		{"key created", func(ctx context.Context, s *Store) error {
			return s.CreateKey(ctx, sandbox.Key{ID: "key-1", Name: "k", Team: "red", CreatedAt: now}, []byte("hash"))
		}, func(ctx context.Context, s *Store) bool {
			k, _, err := s.KeyByHash(ctx, []byte("hash"))
			return err == nil && k.ID == "key-1"
		}},
		{"key revoked", func(ctx context.Context, s *Store) error {
			_, err := s.RevokeKey(ctx, "red", "key-1", now)
			return err
		}, func(ctx context.Context, s *Store) bool {
			k, _, err := s.KeyByHash(ctx, []byte("hash"))
			return err == nil && k.RevokedAt != nil
		}},
		{"sandbox paused", func(ctx context.Context, s *Store) error {
			r := store.Record{Sandbox: sandbox.Sandbox{ID: "sbx-1", Team: "red", State: sandbox.StateRunning, CreatedAt: now}}
			if err := s.CreateSandbox(ctx, r, store.Quota{}); err != nil {
				return err
			}
			_, err := s.UpdateSandbox(ctx, "sbx-1", store.Change{Apply: paused})
			return err
		}, func(ctx context.Context, s *Store) bool {
			r, err := s.Sandbox(ctx, "sbx-1")
			return err == nil && r.State == sandbox.StatePaused && r.Checkpoint == "ckp-1"
		}},
		{"snapshot created", func(ctx context.Context, s *Store) error {
			return s.CreateSnapshot(ctx, store.SnapshotRecord{Snapshot: sandbox.Snapshot{ID: "snap-1", Team: "red", CreatedAt: now}, Checkpoint: "ckp-1"}, store.Quota{})
		}, func(ctx context.Context, s *Store) bool {
			_, err := s.Snapshot(ctx, "snap-1")
			return err == nil
		}},
		{"paused sandbox resumed with others", func(ctx context.Context, s *Store) error {
			_, err := s.UpdateSandboxes(ctx, []string{"sbx-1"}, func(records map[string]*store.Record) error {
				records["sbx-1"].State, records["sbx-1"].Checkpoint = sandbox.StateRunning, ""
				return nil
			})
			return err
		}, func(ctx context.Context, s *Store) bool {
			r, err := s.Sandbox(ctx, "sbx-1")
			return err == nil && r.State == sandbox.StateRunning
		}},
		{"snapshot deleted", func(ctx context.Context, s *Store) error { return s.DeleteSnapshot(ctx, "snap-1") },
			func(ctx context.Context, s *Store) bool {
				_, err := s.Snapshot(ctx, "snap-1")
				return notFound(err)
			}},
		{"volume created", func(ctx context.Context, s *Store) error {
			return s.CreateVolume(ctx, store.VolumeRecord{Volume: sandbox.Volume{ID: "vol-1", Name: "v", SizeMiB: 1, CreatedAt: now}, Team: "red"}, store.Quota{})
		}, func(ctx context.Context, s *Store) bool {
			_, err := s.Volume(ctx, "vol-1")
			return err == nil
		}},
		{"volume deleted", func(ctx context.Context, s *Store) error { return s.DeleteVolume(ctx, "vol-1") },
			func(ctx context.Context, s *Store) bool {
				_, err := s.Volume(ctx, "vol-1")
				return notFound(err)
			}},
		{"secret created", func(ctx context.Context, s *Store) error {
			return s.CreateSecret(ctx, store.SecretRecord{Secret: sandbox.Secret{ID: "sec-1", Name: "s", Team: "red", CreatedAt: now}, Sealed: []byte("1")}, 0)
		}, func(ctx context.Context, s *Store) bool {
			r, err := s.Secret(ctx, "sec-1")
			return err == nil && string(r.Sealed) == "1"
		}},
		{"secret rotated", func(ctx context.Context, s *Store) error {
			_, err := s.UpdateSecret(ctx, "sec-1", func(r *store.SecretRecord) error { r.Sealed = []byte("2"); return nil })
			return err
		}, func(ctx context.Context, s *Store) bool {
			r, err := s.Secret(ctx, "sec-1")
			return err == nil && string(r.Sealed) == "2"
		}},
		{"secret deleted", func(ctx context.Context, s *Store) error { return s.DeleteSecret(ctx, "sec-1") },
			func(ctx context.Context, s *Store) bool {
				_, err := s.Secret(ctx, "sec-1")
				return notFound(err)
			}},
		{"preview made", func(ctx context.Context, s *Store) error {
			_, err := s.ChangePreview(ctx, "sbx-1", 80, now, 0, func(r *store.PreviewRecord) error {
				r.ID, r.Team, r.CreatedAt = "pv-1", "red", now
				return nil
			})
			return err
		}, func(ctx context.Context, s *Store) bool {
			_, err := s.Preview(ctx, "sbx-1", 80)
			return err == nil
		}},
		{"preview ended", func(ctx context.Context, s *Store) error { return s.DeletePreview(ctx, "sbx-1", 80) },
			func(ctx context.Context, s *Store) bool {
				_, err := s.Preview(ctx, "sbx-1", 80)
				return notFound(err)
			}},
		{"template put", func(ctx context.Context, s *Store) error {
			return s.PutTemplate(ctx, store.Template{Name: "t", UpdatedAt: now})
		}, func(ctx context.Context, s *Store) bool {
			_, err := s.Template(ctx, "t")
			return err == nil
		}},
		{"template deleted", func(ctx context.Context, s *Store) error { return s.DeleteTemplate(ctx, "t") },
			func(ctx context.Context, s *Store) bool {
				_, err := s.Template(ctx, "t")
				return notFound(err)
			}},
	}
}

// Power is lost right after each change was acknowledged: the database is whole
// and has the change.
func TestPowerLoss(t *testing.T) {
	d := needs.NewDisk(t, 32)
	s := openFile(t, filepath.Join(d.Dir, "cove.db"))
	for _, p := range promises() {
		if err := p.do(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		if !p.holds(t.Context(), s) {
			t.Fatalf("%s: the change has no effect", p.name)
		}
		left := filepath.Join(d.AfterPowerLoss(t), "cove.db")
		if _, err := os.Stat(left); err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		after := openFile(t, left)
		if !p.holds(t.Context(), after) {
			t.Errorf("%s: a loss of power undoes it", p.name)
		}
	}
}

// The id is written beside the database as soon as the database is open.
func TestInstallationSurvivesPowerLoss(t *testing.T) {
	disk := needs.NewDisk(t, 64)
	s, err := Open(t.Context(), filepath.Join(disk.Dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	after := disk.AfterPowerLoss(t)
	want, _, err := s.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left, err := Open(t.Context(), filepath.Join(after, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	if got, _, err := left.Installation(t.Context()); err != nil || got != want {
		t.Errorf("the id is %q, %v after a loss of power; want %q", got, err, want)
	}
}
