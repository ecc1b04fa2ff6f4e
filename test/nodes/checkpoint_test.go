package nodes

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// interval is that of automatic checkpoints in these tests, the shortest there is.
const interval = sandbox.MinCheckpointInterval

// kept returns a request for a small sandbox with automatic checkpoints.
func kept() sandbox.CreateRequest {
	seconds := int64(interval / time.Second)
	return covetest.Small(func(r *sandbox.CreateRequest) { r.CheckpointIntervalSeconds = &seconds })
}

// withDirectory runs a test with a server whose object store is a directory, and two nodes.
func withDirectory(t *testing.T, test func(t *testing.T, s *server, a, b *node)) {
	t.Helper()
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		dir, err := os.MkdirTemp("", "cove-objects-")
		if err == nil && uid != 0 {
			err = os.Chown(dir, int(uid), int(uid))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		address := free(t)
		s := begin(t, uid, address, nil, "--warm", "0", "--objects", "file://"+dir)
		test(t, s, s.join(t, "a", address), s.join(t, "b", address))
	})
}

// awaitKept waits until an automatic checkpoint of a sandbox is in the object store.
func (s *server) awaitKept(t *testing.T, id string) *sandbox.AutomaticCheckpoint {
	t.Helper()
	var got *sandbox.Sandbox
	if !covetest.Eventually(interval+time.Minute, func() (ok bool) {
		var err error
		got, err = s.Client.Get(t.Context(), id)
		return err == nil && got.LastCheckpoint != nil && got.LastCheckpoint.Stored == sandbox.StoredBoth
	}) {
		t.Fatalf("nothing is kept and stored: %+v\n%s", got.LastCheckpoint, s.Output())
	}
	return got.LastCheckpoint
}

// runs reports whether an instance runs: its gVisor is there, and neither stopped nor killed.
func runs(instance string) bool {
	pid, ok := covetest.ProcessOf(instance, "runsc-sandbox")
	if !ok {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && executes(string(stat)) && !pending.MatchString(string(status))
}

// pending matches the status of a process that has been sent SIGKILL, the ninth signal: on a
// busy machine such a process is there for a while.
var pending = regexp.MustCompile(`(?m)^(Sig|Shd)Pnd:\s*[0-9a-f]+[13579bdf][0-9a-f]{2}$`)

// executes reports by the stat of a process whether the process is neither stopped nor ending.
func executes(stat string) bool {
	const ending = 0x4 // PF_EXITING of the kernel's include/linux/sched.h
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && fields[0] != "T" && flags&ending == 0
}

// running returns which instances of a node run.
func (n *node) running() (ids []string) {
	for id := range n.Cells() {
		if runs(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// neverTwo watches both nodes: the end of the test fails it if two instances ever ran.
func (s *server) neverTwo(t *testing.T) {
	t.Helper()
	stop, most := make(chan struct{}), 0
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			var ids []string
			for _, m := range s.nodes {
				ids = append(ids, m.running()...)
			}
			// Those that still run have all run when the last node was read.
			ids = slices.DeleteFunc(ids, func(id string) bool { return !runs(id) })
			most = max(most, len(ids))
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		if most != 1 {
			t.Errorf("%d instances of one sandbox ran at the same time", most)
		}
	})
}

// TestMoreWaitsAutomaticCheckpoints takes first the server and then the node from a sandbox with
// automatic checkpoints. In "make test", TestAutomaticCheckpoint and TestResumedIsFenced of
// package service stand for it.
func TestMoreWaitsAutomaticCheckpoints(t *testing.T) {
	withDirectory(t, func(t *testing.T, s *server, a, b *node) {
		sb, plain := s.Create(t, kept()), s.Create(t, covetest.Small())
		s.startCounter(t, sb.ID)
		s.startCounter(t, plain.ID)
		s.awaitKept(t, sb.ID)
		n := serverAwayStops(t, s, sb, plain, a, b)
		if _, err := s.Client.Kill(t.Context(), plain.ID); err != nil {
			t.Fatal(err)
		}
		nodeLostGoesBack(t, s, sb, n, a, b)
	})
}

// serverAwayStops kills the server for longer than the lease: a sandbox with automatic
// checkpoints stops on its node, which cannot know who continues it, and goes on without a
// loss when the server is back. One without them does not stop. It returns how far the
// counter is.
func serverAwayStops(t *testing.T, s *server, sb, plain *sandbox.Sandbox, a, b *node) int {
	t.Helper()
	n, m := s.counts(t, sb.ID, 0), s.counts(t, plain.ID, 0)
	s.Kill()
	if !covetest.Eventually(lease+covetest.DetectionLimit, func() bool { return !runs(sb.ID) }) {
		t.Error("the sandbox still runs after the lease")
	}
	if !runs(plain.ID) || len(a.Cells())+len(b.Cells()) != 2 {
		t.Error("a sandbox without automatic checkpoints does not run")
	}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.waitState(t, a, sandbox.NodeReady)
	s.waitState(t, b, sandbox.NodeReady)
	n = s.counts(t, sb.ID, n)
	s.counts(t, plain.ID, m)
	if got, err := s.Client.Get(t.Context(), sb.ID); err != nil || got.LastCheckpoint == nil || got.LastCheckpoint.Restores != 0 {
		t.Errorf("it is %+v, %v", got, err)
	}
	return n
}

// nodeLostGoesBack kills the process of a node, but not the sandbox that runs there: the
// sandbox stops there by itself, and its memory continues from its last automatic checkpoint
// on the other node. Two instances never run. When the node is back, it ends the old one.
func nodeLostGoesBack(t *testing.T, s *server, sb *sandbox.Sandbox, n int, a, b *node) {
	t.Helper()
	home := s.nodeOf(t, sb.ID)
	away := other(home, a, b)
	s.neverTwo(t)
	home.kill()
	if len(home.running()) != 1 {
		t.Fatal("the sandbox died with the node's process") // then the rest tests nothing
	}
	s.waitState(t, home, sandbox.NodeLost)
	var got *sandbox.Sandbox
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		var err error
		got, err = s.Client.Get(t.Context(), sb.ID)
		return err == nil && got.State == sandbox.StatePaused
	}) {
		t.Fatalf("the sandbox is %s (%s)\n%s", got.State, got.Reason, s.Output())
	}
	if got.LastCheckpoint == nil || got.LastCheckpoint.At == nil || got.LastCheckpoint.Restores != 1 {
		t.Errorf("it goes back to %+v", got.LastCheckpoint)
	}
	if left := home.running(); len(left) > 0 || len(home.Cells()) != 1 {
		t.Errorf("on the lost node run %v of %v", left, home.Cells())
	}
	back := s.counts(t, sb.ID, 0)
	t.Logf("it was at %d, and continued before %d", n, back)
	if to := s.nodeOf(t, sb.ID); to != away {
		t.Errorf("it continues on node %s", to.name)
	}
	s.start(t, home)
	s.waitState(t, home, sandbox.NodeReady)
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(home.Cells()) == 0 }) {
		t.Errorf("the node that is back runs %v", home.Cells())
	}
	s.counts(t, sb.ID, back)
}
