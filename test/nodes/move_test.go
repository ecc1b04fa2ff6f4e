package nodes

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// counter is a program that writes its number, which is in no other place than its memory,
// to a file that it has opened once. It waits without a program of its own for that: four
// sandboxes that start 100 programs a second each keep a slow machine from all else.
const counter = `exec perl -e 'open F, ">/workspace/numbers"; for ($n = 1; ; $n++) { syswrite F, "$n\n"; select undef, undef, undef, 0.01 }'`

// startCounter runs the counter in a sandbox.
func (s *server) startCounter(t *testing.T, id string) {
	t.Helper()
	if _, err := s.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: counter, Background: true, TimeoutMS: -1}, nil); err != nil {
		t.Fatal(err)
	}
	s.counts(t, id, 0)
}

// counts checks that the counter goes on from a number and that none is missing or there
// twice, and returns the last one.
func (s *server) counts(t *testing.T, id string, from int) int {
	t.Helper()
	out := s.Sh(t, id, `for i in $(seq 500); do [ "$(wc -l < /workspace/numbers)" -gt `+strconv.Itoa(from)+` ] && break; sleep 0.02; done
awk 'NR != $1 { print "line " NR " is " $0; exit } END { print NR }' /workspace/numbers | tail -1`)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || n <= from {
		t.Fatalf("the counter of %s says %q after %d", id, out, from)
	}
	return n
}

// awaitStored waits until the state of a paused sandbox is in the object store.
func (s *server) awaitStored(t *testing.T, id string) {
	t.Helper()
	var got *sandbox.Sandbox
	if !covetest.Eventually(time.Minute, func() (ok bool) {
		var err error
		got, err = s.Client.Get(t.Context(), id)
		return err == nil && got.Stored == sandbox.StoredBoth
	}) {
		t.Fatalf("the state of the sandbox is not stored: %+v\n%s", got, s.Output())
	}
}

// canary counts the instances that run on both nodes, again and again. Its end fails the
// test if there were ever more than there should be. It rests for as long as a count took,
// so that it leaves a slow machine to the nodes.
func (s *server) canary(t *testing.T, limit int) {
	t.Helper()
	stop, most := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			begun := time.Now()
			var pids []int
			for _, m := range s.nodes {
				pids = slices.AppendSeq(pids, maps.Values(m.Cells()))
			}
			// Those that are still there were all there when the last node was read.
			pids = slices.DeleteFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) != nil })
			most = max(most, len(pids))
			select {
			case <-stop:
				return
			case <-time.After(max(20*time.Millisecond, time.Since(begun))):
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		if most > limit {
			t.Errorf("%d instances ran at the same time, of %d sandboxes", most, limit)
		}
	})
}

// withObjects runs a test with a server that has an object store, and two nodes. No sandbox
// is started ahead of need.
func withObjects(t *testing.T, test func(t *testing.T, s *server, a, b *node, bucket *s3test.Server)) {
	t.Helper()
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		bucket, address := s3test.Start(t), free(t)
		s := begin(t, uid, address, bucket.Env(), "--warm", "0")
		test(t, s, s.join(t, "a", address), s.join(t, "b", address), bucket)
	})
}

// other returns the other of two nodes.
func other(n, a, b *node) *node {
	if n == a {
		return b
	}
	return a
}

// checkpoints returns what a node has on its disk.
func (n *node) checkpoints(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.StateDir, "engine", "checkpoints", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestMoreContinueElsewhere pauses a sandbox on a node that dies: it continues on the other node,
// and so does a snapshot. When the node is back, it has removed its copy. In "make test", the
// tests of packages tiered and fleet stand for it.
func TestMoreContinueElsewhere(t *testing.T) {
	withObjects(t, func(t *testing.T, s *server, a, b *node, _ *s3test.Server) {
		sb := s.Create(t, covetest.Small())
		s.canary(t, 2) // and the one that is made from the snapshot
		home := s.nodeOf(t, sb.ID)
		away := other(home, a, b)
		s.startCounter(t, sb.ID)
		kept, err := s.Client.CreateSnapshot(t.Context(), sb.ID, sandbox.CreateSnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !covetest.Eventually(time.Minute, func() bool {
			got, err := s.Client.GetSnapshot(t.Context(), kept.ID)
			return err == nil && got.Stored == sandbox.StoredBoth
		}) {
			t.Fatalf("the snapshot is not stored\n%s", s.Output())
		}
		n := s.counts(t, sb.ID, 0)
		if _, err := s.Client.Pause(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		s.awaitStored(t, sb.ID)
		home.kill()
		s.waitState(t, home, sandbox.NodeUnreachable)
		if got, err := s.Client.Get(t.Context(), sb.ID); err != nil || got.Stored != sandbox.StoredRemote {
			t.Errorf("on a node that is away it is %+v, %v", got, err)
		}
		n = s.counts(t, sb.ID, n)
		if got := s.nodeOf(t, sb.ID); got != away {
			t.Errorf("it continues on node %s", got.name)
		}
		made := s.Create(t, sandbox.CreateRequest{Snapshot: kept.ID})
		if got := s.nodeOf(t, made.ID); got != away {
			t.Errorf("the snapshot continues on node %s", got.name)
		}
		s.counts(t, made.ID, 0)
		if len(home.checkpoints(t)) != 2 {
			t.Errorf("the dead node has %v", home.checkpoints(t)) // then the rest tests nothing
		}
		s.start(t, home)
		s.waitState(t, home, sandbox.NodeReady)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(home.checkpoints(t)) == 0 }) {
			t.Errorf("the node that is back has %v", home.checkpoints(t))
		}
		s.counts(t, sb.ID, n)
	})
}

// callers call sandboxes again and again until the function that is returned is called,
// which returns how many calls were answered. An error fails the test.
func (s *server) callers(t *testing.T, ids []string) (stop func() int) {
	t.Helper()
	var wg sync.WaitGroup
	var answered atomic.Int64
	ended := make(chan struct{})
	for _, id := range ids {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				res, err := s.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "echo answer"})
				if err != nil || res.Stdout != "answer\n" {
					t.Errorf("a call of %s: %q, %v", id, res.Stdout, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	return func() int {
		close(ended)
		wg.Wait()
		return int(answered.Load())
	}
}

// awaitMoved waits until nothing more leaves a node.
func (s *server) awaitMoved(t *testing.T, n *node) sandbox.NodeMove {
	t.Helper()
	var got sandbox.Node
	if !covetest.Eventually(2*time.Minute, func() bool {
		got = s.node(t, n.name)
		return got.Move != nil && got.Move.Left == 0
	}) {
		t.Fatalf("node %s is not empty: %+v %+v\n%s", n.name, got, got.Move, s.Output())
	}
	return *got.Move
}

// TestMoreDrainMoves empties a node under calls: first while the object store is down, when
// everything stays, and then with it. Afterwards the other node is stopped, and moves its
// sandboxes back. In "make test", TestMoveSome of package service and TestMove of package fleet
// stand for it.
func TestMoreDrainMoves(t *testing.T) {
	withObjects(t, func(t *testing.T, s *server, a, b *node, bucket *s3test.Server) {
		var ids []string
		at := map[string]int{}
		for range 4 {
			sb := s.Create(t, covetest.Small())
			s.startCounter(t, sb.ID)
			ids = append(ids, sb.ID)
			at[sb.ID] = s.counts(t, sb.ID, 0)
		}
		s.canary(t, len(ids))
		stop := s.callers(t, ids)
		bucket.Break(s3test.Unavailable)
		if _, err := s.Client.DrainNode(t.Context(), a.name, sandbox.DrainRequest{Move: true}); err != nil {
			t.Fatal(err)
		}
		var got sandbox.Node
		if !covetest.Eventually(time.Minute, func() bool {
			got = s.node(t, a.name)
			return got.Move != nil && strings.Contains(got.Move.Waiting, "the object store does not work")
		}) {
			t.Errorf("without the object store the drain says %+v", got.Move)
		}
		if got.Sandboxes == 0 || got.Move == nil || got.Move.Left != got.Sandboxes {
			t.Errorf("without the object store, node %+v has %+v", got, got.Move)
		}
		bucket.Break(nil)
		if m := s.awaitMoved(t, a); m.Moved != got.Sandboxes || len(m.Stay) > 0 {
			t.Errorf("moved were %+v", m)
		}
		for _, id := range ids {
			at[id] = s.counts(t, id, at[id])
			if s.nodeOf(t, id) != b {
				t.Errorf("sandbox %s is not on the other node", id)
			}
		}
		if n := stop(); n < len(ids) {
			t.Errorf("%d calls were answered", n)
		}
		if len(a.Cells()) > 0 {
			t.Errorf("the empty node runs %v", a.Cells())
		}

		if _, err := s.Client.UndrainNode(t.Context(), a.name); err != nil {
			t.Fatal(err)
		}
		b.kill()
		s.start(t, b, "--drain-on-exit", "2m")
		s.waitState(t, b, sandbox.NodeReady)
		stop = s.callers(t, ids[:1])
		if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-b.exited
		for _, id := range ids {
			at[id] = s.counts(t, id, at[id])
			if s.nodeOf(t, id) != a {
				t.Errorf("sandbox %s is not on the node that is left", id)
			}
		}
		stop()
		s.start(t, b)
		s.waitState(t, b, sandbox.NodeReady) // it takes sandboxes again
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(b.checkpoints(t)) == 0 }) {
			t.Errorf("the node that is back has %v", b.checkpoints(t))
		}

		// A node that waits for the object store ends at once if it is told again.
		a.kill()
		s.start(t, a, "--drain-on-exit", "10m")
		s.waitState(t, a, sandbox.NodeReady)
		running := len(a.Cells())
		bucket.Break(s3test.Unavailable)
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.waitState(t, a, sandbox.NodeDraining)
		if err := a.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case <-a.exited:
		case <-time.After(time.Minute):
			t.Fatalf("the node does not end; it says:\n%s", a.output)
		}
		if got := len(a.Cells()); running == 0 || got != running {
			t.Errorf("%d sandboxes run there, of %d", got, running)
		}
		bucket.Break(nil)
		s.start(t, a)
		s.waitState(t, a, sandbox.NodeReady)
	})
}
