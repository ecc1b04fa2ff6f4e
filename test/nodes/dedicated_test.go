package nodes

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// dedicated asks for a node of its own.
func dedicated(r *sandbox.CreateRequest) { yes := true; r.Dedicated = &yes }

// TestDedicated runs dedicated sandboxes on two nodes for them, beside others on a third one.
func TestDedicated(t *testing.T) {
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		bucket, address := s3test.Start(t), free(t)
		s := begin(t, uid, address, bucket.Env(), "--warm", "0")
		shared := s.join(t, "shared", address)
		s.join(t, "d1", address, "--dedicated")
		s.join(t, "d2", address, "--dedicated")

		first := s.Create(t, covetest.Small(dedicated))
		home := s.nodeOf(t, first.ID)
		if got := s.node(t, home.name); home == shared || !first.Dedicated || !got.Dedicated || got.DedicatedTo != first.ID {
			t.Fatalf("the dedicated sandbox %+v is on %+v", first, got)
		}
		for range 3 {
			if sb := s.Create(t, covetest.Small()); s.nodeOf(t, sb.ID) != shared || sb.Dedicated {
				t.Errorf("a sandbox that is not dedicated: %+v", sb)
			}
		}
		second := s.Create(t, covetest.Small(dedicated))
		if on := s.nodeOf(t, second.ID); on == shared || on == home {
			t.Fatalf("the second dedicated sandbox is on %s, the first on %s", on.name, home.name)
		}
		s.refused(t, sandbox.CodeQuotaExceeded, "all dedicated nodes are in use", covetest.Small(dedicated))

		forks, err := s.Client.Fork(t.Context(), first.ID, sandbox.ForkRequest{Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forks.Items {
			if s.nodeOf(t, f.ID) != home || !f.Dedicated {
				t.Errorf("a fork: %+v", f)
			}
			s.kill(t, f.ID)
		}

		// What is made from the state of a dedicated sandbox runs where others run.
		s.startCounter(t, first.ID)
		snapshot, err := s.Client.CreateSnapshot(t.Context(), first.ID, sandbox.CreateSnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		copied := s.Create(t, sandbox.CreateRequest{Snapshot: snapshot.ID})
		if on := s.nodeOf(t, copied.ID); on != shared {
			t.Errorf("the sandbox from a snapshot is on %s", on.name)
		}
		s.counts(t, copied.ID, 0)
		_, err = s.Client.Merge(t.Context(), first.ID, sandbox.MergeRequest{Winner: copied.ID, Kind: sandbox.MergeWhole})
		covetest.WantCode(t, err, sandbox.CodeConflict)

		// Nodes that were used are emptied, also of what is paused, and take others. What was paused
		// continues on whichever is free.
		last := s.counts(t, first.ID, 0)
		if _, err := s.Client.Pause(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		s.kill(t, second.ID)
		s.awaitFree(t, 2)
		if left := home.checkpoints(t); len(left) > 0 {
			t.Errorf("node %s still has %v", home.name, left)
		}
		third := s.Create(t, covetest.Small(dedicated))
		s.counts(t, first.ID, last)
		on, beside := s.nodeOf(t, first.ID), s.nodeOf(t, third.ID)
		if on == shared || beside == shared || on == beside || s.node(t, on.name).DedicatedTo != first.ID {
			t.Errorf("the sandbox has continued on %+v, and the third is on %s", s.node(t, on.name), beside.name)
		}

		// Two that continue from one snapshot at the same time do not get into each other's way.
		s.kill(t, first.ID)
		s.kill(t, third.ID)
		s.awaitFree(t, 2)
		var made [2]*sandbox.Sandbox
		var wg sync.WaitGroup
		for i := range made {
			wg.Go(func() {
				var err error
				req := sandbox.CreateRequest{Snapshot: snapshot.ID}
				dedicated(&req)
				if made[i], err = s.Client.Create(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		for _, sb := range made {
			s.counts(t, sb.ID, 0)
		}
		if made[0].Node == made[1].Node || made[0].Node == shared.name || made[1].Node == shared.name {
			t.Errorf("they are on %s and %s", made[0].Node, made[1].Node)
		}
	})
}

func (s *server) kill(t *testing.T, id string) {
	t.Helper()
	if _, err := s.Client.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// refused checks that a sandbox cannot be made, and why.
func (s *server) refused(t *testing.T, code sandbox.Code, why string, req sandbox.CreateRequest) {
	t.Helper()
	_, err := s.Client.Create(t.Context(), req)
	if sandbox.CodeOf(err) != code || !strings.Contains(sandbox.MessageOf(err), why) {
		t.Errorf("got %v, want %s: %s", err, code, why)
	}
}

// awaitFree waits until so many dedicated nodes are given to nobody.
func (s *server) awaitFree(t *testing.T, want int) {
	t.Helper()
	var list *sandbox.List[sandbox.Node]
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		var err error
		if list, err = s.Client.ListNodes(t.Context()); err != nil {
			t.Fatal(err)
		}
		free := 0
		for _, n := range list.Items {
			if n.Dedicated && n.DedicatedTo == "" && n.State == sandbox.NodeReady {
				free++
			}
		}
		return free == want
	}) {
		t.Fatalf("%d dedicated nodes should be free: %+v\n%s", want, list.Items, s.Output())
	}
}

// TestMoreDedicatedKilled kills the server, and a node with it, while the nodes of paused
// sandboxes are emptied: nothing is lost, and no node gets two. In "make test", TestDedicated and
// the tests of package fleet stand for it.
func TestMoreDedicatedKilled(t *testing.T) {
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		bucket, address := s3test.Start(t), free(t)
		s := begin(t, uid, address, bucket.Env(), "--warm", "0")
		d1, d2 := s.join(t, "d1", address, "--dedicated"), s.join(t, "d2", address, "--dedicated")
		at := map[string]int{}
		for range 2 {
			sb := s.Create(t, covetest.Small(dedicated))
			s.startCounter(t, sb.ID)
			at[sb.ID] = 0
		}
		s.canary(t, len(at))
		for round := range 6 {
			for id := range at {
				at[id] = s.counts(t, id, at[id])
				if _, err := s.Client.Pause(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			// The nodes are emptied about six seconds later.
			time.Sleep(4*time.Second + time.Duration(round)*800*time.Millisecond)
			s.Kill()
			if round%2 == 1 {
				d1.kill()
				s.start(t, d1)
			}
			if err := s.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.waitState(t, d1, sandbox.NodeReady)
			s.waitState(t, d2, sandbox.NodeReady)
			on := map[string]string{}
			for id := range at {
				at[id] = s.counts(t, id, at[id])
				node := s.node(t, s.nodeOf(t, id).name)
				if before := on[node.Name]; before != "" || node.DedicatedTo != id {
					t.Fatalf("round %d: node %+v runs %s, and %s", round, node, id, before)
				}
				on[node.Name] = id
			}
		}
	})
}
