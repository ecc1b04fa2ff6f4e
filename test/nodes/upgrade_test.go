package nodes

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/s3test"
	"github.com/cove-sh/cove/sandbox"
)

// nextBuild makes the program of another build: its sum differs, and nothing else.
func (s *server) nextBuild(t *testing.T) {
	t.Helper()
	program, err := os.ReadFile(s.Binary)
	if err != nil {
		t.Fatal(err)
	}
	s.Binary = filepath.Join(s.StateDir, "next")
	if err := os.WriteFile(s.Binary, append(program, 0), 0o755); err != nil { //nolint:gosec // others run it
		t.Fatal(err)
	}
}

// drained moves what runs on a node to the other one, and starts the node again with the
// program of the server.
func (s *server) drained(t *testing.T, n *node) {
	t.Helper()
	if _, err := s.Client.DrainNode(t.Context(), n.name, sandbox.DrainRequest{Move: true}); err != nil {
		t.Fatal(err)
	}
	if m := s.awaitMoved(t, n); m.Moved == 0 || len(m.Stay) > 0 {
		t.Fatalf("moved were %+v\n%s", m, s.Output())
	}
	n.kill()
	s.start(t, n)
	if _, err := s.Client.UndrainNode(t.Context(), n.name); err != nil {
		t.Fatal(err)
	}
	s.waitState(t, n, sandbox.NodeReady)
}

// TestMoreUpgradeOneByOne replaces the server with one of another build, and then one node
// after the other, under calls. Sandboxes go on, although none of them was ever in the object
// store, and run with the program that has made them. In "make test", TestProgramsOfNodes of
// package fleet and TestCheckpointSurvivesUpgrade of package cells stand for it.
func TestMoreUpgradeOneByOne(t *testing.T) {
	withObjects(t, func(t *testing.T, s *server, a, b *node, bucket *s3test.Server) {
		on := s.onEach(t)
		ids := []string{on[a].ID, on[b].ID}
		s.canary(t, len(ids))
		at := map[string]int{}
		for _, id := range ids {
			s.startCounter(t, id)
		}
		stored := bucket.Open(t)
		if !covetest.Eventually(time.Minute, func() bool { _, err := stored.Stat(t.Context(), "builds"); return err == nil }) {
			t.Fatalf("the server has not stored its program\n%s", s.Output())
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s.nextBuild(t)
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, n := range []*node{a, b} {
			s.waitState(t, n, sandbox.NodeReady)
		}
		for _, id := range ids {
			at[id] = s.counts(t, id, 0)
		}
		stop := s.callers(t, ids)
		for _, n := range []*node{a, b, a} {
			s.drained(t, n)
			for _, id := range ids {
				at[id] = s.counts(t, id, at[id])
				if got := s.nodeOf(t, id); got != other(n, a, b) {
					t.Errorf("sandbox %s is on node %s", id, got.name)
				}
			}
		}
		if n := stop(); n < len(ids) {
			t.Errorf("%d calls were answered", n)
		}
		// The program that they continue with is not that of the node.
		if found, err := filepath.Glob(filepath.Join(b.StateDir, "engine", "bin", "cove-sha256-*")); err != nil || len(found) != 1 {
			t.Errorf("the node has the programs %v, %v", found, err)
		}
		if _, err := s.Client.Kill(t.Context(), ids[1]); err != nil { // for the canary
			t.Fatal(err)
		}
		forks, err := s.Client.Fork(t.Context(), ids[0], sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		s.counts(t, forks.Items[0].ID, at[ids[0]])
	})
}
