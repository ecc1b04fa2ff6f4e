package checkpoints

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// database returns the content of a daemon's database, which must not run.
func database(t *testing.T, d *covetest.Daemon) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(d.StateDir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// cove runs a command and returns what it prints.
func cove(t *testing.T, d *covetest.Daemon, args ...string) string {
	t.Helper()
	cmd := d.Command(t.Context(), args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cove %s: %v\n%s%s", strings.Join(args, " "), err, out, said.String())
	}
	return string(out)
}

// A database that is older than everything costs nothing: snapshot, paused and
// running sandbox and volume are set aside, and cove recover brings them back.
func TestRecover(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(d.Stop())
		older := database(t, d)
		must(d.Run(ctx))

		volume, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
		must(err)
		d.Create(t, sandbox.CreateRequest{Name: "work", Mounts: []sandbox.Mount{{Target: "/data", Volume: "data"}}})
		asRoot(t, d, "work", "echo precious > /data/file; echo mine > /tmp/file")
		snap, err := d.Client.CreateSnapshot(ctx, "work", sandbox.CreateSnapshotRequest{Name: "kept"})
		must(err)
		paused := d.Create(t, sandbox.CreateRequest{Name: "rests"})
		d.Sh(t, "rests", "echo resting > /tmp/file")
		pause(t, d, "rests")
		ran := d.Create(t, sandbox.CreateRequest{Name: "busy"})
		d.Sh(t, "busy", "echo busy > /tmp/file")
		// A deleted snapshot is not set aside.
		gone, err := d.Client.CreateSnapshot(ctx, "busy", sandbox.CreateSnapshotRequest{})
		must(err)
		_, err = d.Client.DeleteSnapshot(ctx, gone.ID)
		must(err)
		// Its files go after the answer.
		if !covetest.Eventually(30*time.Second, func() bool {
			kept, err := filepath.Glob(filepath.Join(d.StateDir, "engine", "checkpoints", "ckp-*"))
			must(err)
			return len(kept) == 2 // the snapshot and the paused one
		}) {
			t.Fatal("the files of a deleted snapshot stay")
		}

		must(d.Stop())
		for _, name := range []string{"cove.db-wal", "cove.db-shm"} {
			_ = os.Remove(filepath.Join(d.StateDir, name))
		}
		must(os.WriteFile(filepath.Join(d.StateDir, "cove.db"), older, 0o600))
		must(d.Run(ctx))
		by := map[string]sandbox.Orphan{}
		if !covetest.Eventually(30*time.Second, func() bool {
			list, err := d.Client.ListOrphans(ctx, sandbox.Page{})
			must(err)
			for _, o := range list.Items {
				by[cmp.Or(o.Name, o.SandboxID)] = o
			}
			return len(by) == 5
		}) {
			t.Fatalf("set aside are %+v", by)
		}
		ids := []string{by["kept"].ID, by["data"].ID, by[paused.ID].ID, by[ran.ID].ID}
		table := cove(t, d, "recover")
		for _, id := range ids {
			if id == "" || !strings.Contains(table, id) {
				t.Errorf("%q is not listed:\n%s", id, table)
			}
		}
		got := strings.Fields(cove(t, d, append([]string{"recover"}, ids...)...))
		if len(got) != 4 || got[0] != volume.ID || got[1] != snap.ID {
			t.Fatalf("brought back %v", got)
		}
		d.Create(t, sandbox.CreateRequest{Name: "work", Snapshot: "kept"})
		d.Shows(t, "work", "cat /data/file /tmp/file", "precious\nmine")
		d.Create(t, sandbox.CreateRequest{Name: "rests", Snapshot: got[2]})
		d.Shows(t, "rests", "cat /tmp/file", "resting")
		again := d.Create(t, sandbox.CreateRequest{Name: "busy", Snapshot: got[3]})
		d.Shows(t, "busy", "cat /tmp/file", "busy")
		if again.Network.Preset != sandbox.NetworkNone {
			t.Errorf("what ran reaches %+v", again.Network)
		}
		if left, err := d.Client.ListOrphans(ctx, sandbox.Page{}); err != nil || len(left.Items) != 1 { // what "work" was
			t.Errorf("left are %+v, %v", left, err)
		}
	})
}
