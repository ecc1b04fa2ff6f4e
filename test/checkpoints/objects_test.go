package checkpoints

import (
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// secretsKey is the key of secrets of an installation that can lose its machine.
const secretsKey = "COVE_SECRETS_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// askedCounter is a program whose memory is not on any disk.
const askedCounter = `n=0; while :; do n=$((n+1)); if [ -e /tmp/ask ]; then rm /tmp/ask; echo $n > /tmp/told; fi; sleep 0.01; done`

// count asks the counter.
func count(t *testing.T, d *covetest.Daemon, id string) string {
	t.Helper()
	return d.Sh(t, id, "rm -f /tmp/told; touch /tmp/ask; for i in $(seq 500); do [ -s /tmp/told ] && break; sleep 0.02; done; cat /tmp/told")
}

// awaitStored waits until something is in the object store.
func awaitStored(t *testing.T, d *covetest.Daemon, what string, stored func() (sandbox.Stored, error)) {
	t.Helper()
	ok := covetest.Eventually(2*time.Minute, func() bool {
		s, err := stored()
		return err == nil && s == sandbox.StoredBoth
	})
	if !ok {
		t.Fatalf("%s is not stored\n%s", what, d.Output())
	}
}

// loseMachine ends a daemon and all of its sandboxes, and removes what they had on disk.
func loseMachine(t *testing.T, d *covetest.Daemon) {
	t.Helper()
	d.Kill()
	for _, pid := range d.Cells() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	gone := func() bool { return len(d.Cells()) == 0 && os.RemoveAll(d.StateDir) == nil }
	if !covetest.Eventually(time.Minute, gone) {
		t.Fatal("the lost machine is still there")
	}
}

// A machine is lost. Another one with the same database and bucket, and an empty state
// directory elsewhere, has its snapshots and its paused sandboxes. In "make test",
// TestNewMachine of package tiered, and TestCheckpoints of package cells (Portable), stand for
// it.
func TestMoreLostMachine(t *testing.T) {
	needs.GVisor(t)
	server := postgrestest.Start(t)
	address, _ := server.NewSchema(t)
	bucket := s3test.Start(t)
	env := append(bucket.Env(), "COVE_STORE="+address.Reveal(), secretsKey)

	first, err := covetest.Launch(t.Context(), covetest.Options{StateDir: t.TempDir() + "/first", Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.Kill)
	work := first.Create(t, sandbox.CreateRequest{Name: "work", Env: map[string]string{"A": "b"}})
	if _, err := first.Client.Exec(t.Context(), work.ID, sandbox.ExecRequest{Shell: askedCounter, Background: true, TimeoutMS: -1}, nil); err != nil {
		t.Fatal(err)
	}
	first.Sh(t, work.ID, "head -c 5000000 /dev/urandom > /workspace/data; sha256sum /workspace/data > /workspace/sum")
	count(t, first, work.ID)
	if _, err := first.Client.CreateSnapshot(t.Context(), work.ID, sandbox.CreateSnapshotRequest{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	lost := first.Create(t, sandbox.CreateRequest{Name: "running"})
	if _, err := first.Client.Pause(t.Context(), work.ID); err != nil {
		t.Fatal(err)
	}
	snapshotStored := func(d *covetest.Daemon) func() (sandbox.Stored, error) {
		return func() (sandbox.Stored, error) {
			s, err := d.Client.GetSnapshot(t.Context(), "kept")
			if err != nil {
				return "", err
			}
			return s.Stored, nil
		}
	}
	awaitStored(t, first, "the snapshot", snapshotStored(first))
	awaitStored(t, first, "the paused sandbox", func() (sandbox.Stored, error) {
		s, err := first.Client.Get(t.Context(), "work")
		if err != nil {
			return "", err
		}
		return s.Stored, nil
	})
	loseMachine(t, first)

	second := covetest.Start(t, covetest.Options{StateDir: t.TempDir() + "/second", Env: env})
	if s, err := snapshotStored(second)(); err != nil || s != sandbox.StoredRemote {
		t.Errorf("the snapshot is %q, %v", s, err)
	}
	if s, err := second.Client.Get(t.Context(), lost.ID); err != nil || s.State != sandbox.StateFailed {
		t.Errorf("the sandbox that ran is %+v, %v", s, err)
	}
	if n := count(t, second, "work"); strings.TrimSpace(n) == "" {
		t.Error("the paused sandbox has lost its memory")
	}
	second.Shows(t, "work", "cd /workspace && sha256sum -c sum", "/workspace/data: OK")
	again := second.Create(t, sandbox.CreateRequest{Name: "again", Snapshot: "kept"})
	if n := count(t, second, again.ID); strings.TrimSpace(n) == "" {
		t.Error("the snapshot has lost its memory")
	}
	second.Shows(t, again.ID, "cd /workspace && sha256sum -c sum", "/workspace/data: OK")
	for _, d := range []*covetest.Daemon{first, second} {
		if strings.Contains(d.Output(), s3test.SecretKey) {
			t.Error("the log has the secret key of the bucket")
		}
	}
	if _, err := second.Client.DeleteSnapshot(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
}

// The daemon is killed while it uploads: the next one goes on, and nothing is lost.
// In "make test-all", TestKills of internal/engine/tiered and TestMoreLostMachine stand for it.
func TestSoakKilledUpload(t *testing.T) {
	needs.GVisor(t)
	bucket := s3test.Start(t)
	arrived := make(chan struct{}, 100)
	bucket.Break(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/chunks/") {
			_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the connection noticed
			arrived <- struct{}{}
			<-r.Context().Done() // it never answers
			return true
		}
		return false
	})
	d := covetest.Start(t, covetest.Options{Env: append(bucket.Env(), secretsKey), Fresh: true})
	s := d.Create(t, sandbox.CreateRequest{Name: "work"})
	d.Sh(t, s.ID, "echo kept > /workspace/file")
	if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	<-arrived
	if got, err := d.Client.Get(t.Context(), s.ID); err != nil || got.Stored != sandbox.StoredPending {
		t.Errorf("during the upload: %+v, %v", got, err)
	}
	d.Kill()
	bucket.Break(nil)
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStored(t, d, "the sandbox", func() (sandbox.Stored, error) {
		got, err := d.Client.Get(t.Context(), s.ID)
		if err != nil {
			return "", err
		}
		return got.Stored, nil
	})
	d.Shows(t, s.ID, "cat /workspace/file", "kept")
}
