package checkpoints

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// partial returns the checkpoints that are used before all of them is fetched.
func partial(t *testing.T, d *covetest.Daemon) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.StateDir, "engine", "checkpoints", "*", "fetch.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// evicted starts a daemon with a bucket, and returns it with the id of a paused sandbox that
// is only in the bucket, has 150 MB of memory and runs askedCounter.
func evicted(t *testing.T, bucket *s3test.Server) (d *covetest.Daemon, id string) {
	t.Helper()
	d = covetest.Start(t, covetest.Options{Env: append(bucket.Env(), secretsKey, "COVE_OBJECTS_CACHE_MIB=1"), Fresh: true})
	id = d.Create(t, sandbox.CreateRequest{}).ID
	d.Sh(t, id, "head -c 150000000 /dev/urandom > /dev/shm/data; sha256sum /dev/shm/data > /tmp/sum")
	if _, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: askedCounter, Background: true, TimeoutMS: -1}, nil); err != nil {
		t.Fatal(err)
	}
	count(t, d, id)
	pauseUntilRemote(t, d, id)
	return d, id
}

// pauseUntilRemote pauses a sandbox and waits until its state is only in the bucket.
func pauseUntilRemote(t *testing.T, d *covetest.Daemon, id string) {
	t.Helper()
	if _, err := d.Client.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	remote := func() bool {
		s, err := d.Client.Get(t.Context(), id)
		return err == nil && s.Stored == sandbox.StoredRemote
	}
	if !covetest.Eventually(2*time.Minute, remote) {
		t.Fatalf("the paused sandbox is not only in the object store\n%s", d.Output())
	}
}

// A paused sandbox answers before its memory has arrived from the object store. What it needs
// then is awaited: while the bucket does not answer, and while the daemon is not there.
func TestEarlyResume(t *testing.T) {
	needs.GVisor(t)
	bucket := s3test.Start(t)
	d, id := evicted(t, bucket)
	bucket.Break(s3test.SlowChunks)
	if n := count(t, d, id); strings.TrimSpace(n) == "" {
		t.Error("the program in the sandbox does not run")
	}
	bucket.Break(s3test.Unavailable)
	if len(partial(t, d)) != 1 {
		t.Fatalf("the sandbox has answered only when all was there\n%s", d.Output())
	}
	// A pause needs all of the memory. It gives up with its caller, and the sandbox goes on.
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Client.Pause(short, id); err == nil {
		t.Error("a sandbox was paused without its memory")
	}
	checked := make(chan string, 1)
	go func() {
		res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "sha256sum -c /tmp/sum > /tmp/first 2>&1; cat /tmp/first", TimeoutMS: 120_000})
		if err != nil {
			checked <- err.Error() // the daemon was killed
			return
		}
		checked <- res.Stdout
	}()
	select {
	case got := <-checked:
		t.Errorf("memory that is not there was read: %s", got)
	case <-time.After(time.Second):
	}
	d.Kill()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(partial(t, d)) != 1 {
		t.Fatalf("what the sandbox needs was removed\n%s", d.Output())
	}
	if s, err := d.Client.Get(t.Context(), id); err != nil || s.State != sandbox.StateRunning {
		t.Fatalf("the sandbox is %+v, %v", s, err)
	}
	bucket.Break(nil)
	d.Shows(t, id, "sha256sum -c /tmp/sum", "/dev/shm/data: OK")
	if n := count(t, d, id); strings.TrimSpace(n) == "" {
		t.Error("the program in the sandbox has ended")
	}
	fetched := func() bool { return len(partial(t, d)) == 0 && storedStates(t, bucket) == 0 }
	if !covetest.Eventually(time.Minute, fetched) {
		t.Errorf("the state from which the sandbox has continued is still there\n%s", d.Output())
	}
	pauseUntilRemote(t, d, id)
	d.Shows(t, id, "sha256sum -c /tmp/sum", "/dev/shm/data: OK")
}

// A sandbox is killed before its memory has arrived, while the object store does not answer:
// nothing waits for it. In "make test", TestEarlyRemovalUnneeded of package tiered stands for
// it.
func TestMoreEarlyResumeKilled(t *testing.T) {
	needs.GVisor(t)
	bucket := s3test.Start(t)
	d, id := evicted(t, bucket)
	bucket.Break(s3test.SlowChunks)
	count(t, d, id)
	bucket.Break(s3test.Unavailable)
	if len(partial(t, d)) != 1 {
		t.Fatalf("the sandbox has answered only when all was there\n%s", d.Output())
	}
	if _, err := d.Client.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if !covetest.Eventually(time.Minute, func() bool { return len(partial(t, d)) == 0 }) {
		t.Errorf("its state is still there\n%s", d.Output())
	}
	bucket.Break(nil)
	if !covetest.Eventually(time.Minute, func() bool { return storedStates(t, bucket) == 0 }) {
		t.Errorf("the object store still has its state\n%s", d.Output())
	}
}

// storedStates returns how many states a bucket has.
func storedStates(t *testing.T, bucket *s3test.Server) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(bucket.Dir, "test", "checkpoints"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return len(entries)
}

// Memory that has not arrived is lost in the object store: the sandbox ends, with that reason.
// In "make test", TestEarlyDamage of package tiered and TestFetchingEnds of package runsc stand
// for it.
func TestMoreEarlyResumeLost(t *testing.T) {
	needs.GVisor(t)
	bucket := s3test.Start(t)
	d, id := evicted(t, bucket)
	bucket.Break(s3test.SlowChunks)
	count(t, d, id)
	if err := os.RemoveAll(filepath.Join(bucket.Dir, "test", "chunks")); err != nil {
		t.Fatal(err)
	}
	failed := func() bool {
		s, err := d.Client.Get(t.Context(), id)
		return err == nil && s.State == sandbox.StateFailed
	}
	if !covetest.Eventually(time.Minute, failed) {
		t.Fatalf("the sandbox goes on\n%s", d.Output())
	}
	if s, err := d.Client.Get(t.Context(), id); err != nil || !strings.Contains(s.Reason, "object store") {
		t.Errorf("the sandbox is %+v, %v", s, err)
	}
	if !covetest.Eventually(time.Minute, func() bool { return len(partial(t, d)) == 0 }) {
		t.Error("what is left of its state is still there")
	}
}
