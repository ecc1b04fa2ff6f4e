package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// A backup that is made while sandboxes run brings everything back of a state
// directory that is lost.
func TestBackup(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := d.Client.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: "data"})
		must(err)
		_, err = d.Client.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "token", Value: sandbox.NewSecretValue("a-value-of-some-length"), Hosts: []string{"api.example.com"}})
		must(err)
		key, err := d.Client.CreateKey(ctx, sandbox.CreateKeyRequest{Name: "laptop"})
		must(err)
		ran := d.Create(t, sandbox.CreateRequest{Name: "work", Mounts: []sandbox.Mount{{Target: "/data", Volume: "data"}}})
		asRoot(t, d, "work", "echo precious > /data/file; echo mine > /tmp/file; ln -s /etc/passwd /data/link")
		snap, err := d.Client.CreateSnapshot(ctx, "work", sandbox.CreateSnapshotRequest{Name: "kept"})
		must(err)
		d.Create(t, sandbox.CreateRequest{Name: "rests"})
		counter, err := d.Client.Exec(ctx, "rests", sandbox.ExecRequest{Shell: "n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.01; done", Background: true}, nil)
		must(err)
		pause(t, d, "rests")
		// Something is always changing.
		_, err = d.Client.Exec(ctx, "work", sandbox.ExecRequest{Shell: "while :; do date >> /data/log; rm -f /data/moved; mv /data/log /data/moved; done", User: "root", Background: true}, nil)
		must(err)

		file := filepath.Join(d.StateDir, "backup.tar.zst") // where this user may write
		cove(t, d, "backup", file)
		data, err := os.ReadFile(file)
		must(err)
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("the backup: %v, %v", info.Mode(), err)
		}
		if out, err := d.Command(ctx, "restore", file).CombinedOutput(); err == nil || !strings.Contains(string(out), "another daemon") {
			t.Errorf("restored beside a daemon: %v, %s", err, out)
		}

		must(d.Stop())
		for id, pid := range d.Cells() {
			t.Logf("end %s", id)
			covetest.EndCell(t, pid)
		}
		for _, pid := range d.Standbys() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		entries, err := os.ReadDir(d.StateDir)
		must(err)
		for _, e := range entries {
			if e.Name() == filepath.Base(d.Binary) && filepath.Dir(d.Binary) == d.StateDir {
				continue
			}
			must(os.RemoveAll(filepath.Join(d.StateDir, e.Name())))
		}
		outside := filepath.Join(t.TempDir(), "backup.tar.zst")
		must(os.WriteFile(outside, data, 0o644))
		for dir := filepath.Dir(outside); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			must(os.Chmod(dir, 0o755))
		}
		cove(t, d, "restore", outside)
		must(d.Run(ctx))

		got, err := d.Client.Get(ctx, ran.ID)
		must(err)
		if got.State != sandbox.StateFailed || !strings.Contains(got.Reason, "it was running when the backup") {
			t.Errorf("what ran is %s, %q", got.State, got.Reason)
		}
		again := d.Create(t, sandbox.CreateRequest{Name: "again", Snapshot: snap.ID})
		d.Shows(t, again.ID, "cat /data/file /tmp/file", "precious\nmine")
		before := d.Sh(t, "rests", "cat /tmp/count")
		if !covetest.Eventually(30*time.Second, func() bool { return d.Sh(t, "rests", "cat /tmp/count") != before }) {
			t.Error("the paused sandbox does not go on")
		}
		if job, err := d.Client.GetJob(ctx, "rests", counter.ID); err != nil || job.State != sandbox.JobRunning {
			t.Errorf("its job is %+v, %v", job, err)
		}
		sealed, err := d.Client.RotateSecretsKey(ctx)
		must(err)
		if sealed.Values != 1 || len(sealed.Lost) != 0 {
			t.Errorf("of secrets, %d values open, and not those of %v", sealed.Values, sealed.Lost)
		}
		keys, err := d.Client.ListKeys(ctx, sandbox.Page{})
		must(err)
		if len(keys.Items) != 1 || keys.Items[0].ID != key.ID {
			t.Errorf("keys are %+v", keys.Items)
		}
		if left, err := d.Client.ListOrphans(ctx, sandbox.Page{}); err != nil || len(left.Items) != 0 {
			t.Errorf("set aside are %+v, %v", left, err)
		}
	})
}
