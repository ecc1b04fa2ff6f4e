package nodes

import (
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// partial returns how many checkpoints of a node are used before all of them is fetched.
func (n *node) partial(t *testing.T) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.StateDir, "engine", "checkpoints", "*", "fetch.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// TestMoreEarlyElsewhere pauses a sandbox on a node that dies: it answers on the other node
// before its memory is there, and goes on after that node and the server were killed. In "make
// test", TestEarlyResume of test/checkpoints and the tests of packages remote and fleet stand
// for it.
func TestMoreEarlyElsewhere(t *testing.T) {
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		bucket, address := s3test.Start(t), free(t)
		s := begin(t, uid, address, bucket.Env(), "--warm", "0")
		a, b := s.join(t, "a", address), s.join(t, "b", address)
		sb := s.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Resources.MemoryMiB = 512 }))
		s.canary(t, 1)
		home := s.nodeOf(t, sb.ID)
		away := other(home, a, b)
		s.startCounter(t, sb.ID)
		s.Sh(t, sb.ID, "head -c 150000000 /dev/urandom > /dev/shm/data; sha256sum /dev/shm/data > /tmp/sum")
		if _, err := s.Client.Pause(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		s.awaitStored(t, sb.ID)
		home.kill()
		s.waitState(t, home, sandbox.NodeUnreachable)
		bucket.Break(s3test.SlowChunks)
		n := s.counts(t, sb.ID, 0)
		bucket.Break(s3test.Unavailable)
		if away.partial(t) != 1 {
			t.Fatalf("the sandbox has answered only when all was there\n%s", s.Output())
		}
		away.kill()
		s.Kill()
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.start(t, away)
		s.waitState(t, away, sandbox.NodeReady)
		if away.partial(t) != 1 {
			t.Fatalf("what the sandbox needs was removed\n%s", away.output)
		}
		bucket.Break(nil)
		s.Shows(t, sb.ID, "sha256sum -c /tmp/sum", "/dev/shm/data: OK")
		s.counts(t, sb.ID, n)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return away.partial(t) == 0 && len(away.checkpoints(t)) == 0 }) {
			t.Errorf("the node still has %v\n%s", away.checkpoints(t), away.output)
		}
	})
}
