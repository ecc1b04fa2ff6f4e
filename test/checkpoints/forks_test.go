package checkpoints

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// memoryMiB is how much random memory a subject has, and childCount how many children
// it gets: each is a sandbox with nine programs that never rest. "make soak" has more
// of both.
func memoryMiB() int {
	if needs.Soak() {
		return 200
	}
	return 64
}

func childCount() int {
	if needs.Soak() {
		return 5
	}
	return 1
}

// stateful are the programs that [subject.mutate] changes.
var stateful = []string{"memory", "files", "database", "node", "web", "tmux"}

// Everything that can run in a sandbox continues from a snapshot, in place and in another
// sandbox, and in forks and their forks. None of them sees what another does. In "make test",
// TestSurvives stands for it.
func TestMoreSurvivesCopies(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		w := build(t, d, "subject", memoryMiB())
		base := w.ask(t)
		w.checkJobs(t, "at first")
		made := w.make(t, "0.3")
		snap, err := d.Client.CreateSnapshot(t.Context(), w.id, sandbox.CreateSnapshotRequest{Name: "kept"})
		if err != nil {
			t.Fatal(err)
		}
		words := slices.Clone(w.words)
		base = w.check(t, "after a snapshot", base)
		w.checkJobs(t, "after a snapshot")
		w.mutate(t, 3)
		differ(t, base, w.ask(t))
		restored, err := d.Client.RestoreSnapshot(t.Context(), w.id, sandbox.RestoreRequest{Snapshot: "kept"})
		if err != nil || restored.ID != w.id || restored.Name != w.hostname || restored.Snapshot != snap.ID {
			t.Fatalf("restore: %+v, %v", restored, err)
		}
		w.words = words
		base = w.check(t, "restored", report{Answers: base.Answers})
		w.checkJobs(t, "restored")
		w.checkMade(t, "restored", made)
		if _, err := d.Client.Kill(t.Context(), w.id); err != nil {
			t.Fatal(err)
		}
		d.NoTraces(t, w.id)
		// Two that begin with one snapshot draw other random numbers.
		s := d.Create(t, sandbox.CreateRequest{Snapshot: snap.ID, Name: "twin"})
		w.at(s.ID, "twin").check(t, "a twin from a snapshot", report{Answers: base.Answers})
		if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		s = d.Create(t, sandbox.CreateRequest{Snapshot: snap.ID, Name: "second"})
		w = w.at(s.ID, "second")
		w.words = words
		base = w.check(t, "from a snapshot", report{Answers: base.Answers})
		w.checkJobs(t, "from a snapshot")
		w.checkMade(t, "from a snapshot", made)
		testForks(t, w, base)
	})
}

func testForks(t *testing.T, w *subject, base report) {
	made := w.make(t, "0.3")
	children := w.fork(t, childCount(), "child")
	// The answers of the forks, by index; the parent's is the last.
	all := append(slices.Clone(children), w)
	each(t, all, func(t *testing.T, i int, c *subject) {
		c.check(t, "after a fork", base)
		c.checkJobs(t, "after a fork")
		c.checkMade(t, "after a fork", made)
		c.mutate(t, i+1)
	})
	if t.Failed() {
		t.FailNow()
	}
	// Each has its own change and nobody else's.
	changed := make([]report, len(all))
	each(t, all, func(t *testing.T, i int, c *subject) { changed[i] = c.ask(t) })
	for i := range all {
		differ(t, base, changed[i])
		for j := range i {
			differ(t, changed[j], changed[i])
		}
	}
	last := len(children) - 1
	grandchildren := children[last].fork(t, (childCount()+1)/2, "grandchild")
	each(t, grandchildren, func(t *testing.T, _ int, c *subject) {
		c.check(t, "after a fork of a fork", changed[last])
		c.checkJobs(t, "after a fork of a fork")
	})
	// Taking the own change back leaves the state of before.
	each(t, all, func(t *testing.T, i int, c *subject) {
		c.mutate(t, i+1)
		c.check(t, "after taking back", report{Answers: base.Answers})
		want := `[2001, "ok"]`
		if i%2 == 0 {
			want = `[1, "ok"]`
			c.say(t, "database end ROLLBACK")
		} else {
			c.say(t, "database end COMMIT")
		}
		if got := c.say(t, "database outside"); got != want {
			t.Errorf("%s: rows and integrity of the database: %s, want %s", c.hostname, got, want)
		}
	})
}

// fork makes children of a subject and checks that they know their own names and
// indexes.
func (w *subject) fork(t *testing.T, n int, name string) []*subject {
	t.Helper()
	list, err := w.d.Client.Fork(t.Context(), w.id, sandbox.ForkRequest{Count: n, Name: name, Env: map[string]string{"GIVEN": name}})
	if err != nil || len(list.Items) != n {
		t.Fatalf("fork: %+v, %v", list, err)
	}
	var children []*subject
	for i, s := range list.Items {
		want := name
		if n > 1 {
			want = fmt.Sprintf("%s-%d", name, i)
		}
		if s.Name != want || s.ForkedFrom != w.id || s.State != sandbox.StateRunning || s.Metadata["forked_from"] != w.id {
			t.Errorf("child %d: %+v", i, s)
		}
		c := w.at(s.ID, s.Name)
		c.checkPlace(t, i, n, w.id)
		if got := w.d.Sh(t, s.ID, "echo $BORN $GIVEN"); got != "in subject "+name+"\n" {
			t.Errorf("%s: environment %q", c.hostname, got)
		}
		children = append(children, c)
	}
	return children
}

// checkPlace checks what a fork learns about its index among its siblings.
func (w *subject) checkPlace(t *testing.T, index, count int, parent string) {
	t.Helper()
	want := []string{strconv.Itoa(index), strconv.Itoa(count), parent}
	got := strings.Fields(w.d.Sh(t, w.id, "echo $COVE_FORK_INDEX $COVE_FORK_COUNT $COVE_FORK_PARENT"))
	if !slices.Equal(got, want) {
		t.Errorf("%s: its place by the environment is %q, want %q", w.hostname, got, want)
	}
	type place struct {
		Index   int    `json:"index"`
		Count   int    `json:"count"`
		Sandbox string `json:"sandbox_id"`
		Parent  string `json:"parent_id"`
	}
	var file place
	if err := json.Unmarshal([]byte(w.d.Sh(t, w.id, "cat /run/cove/fork.json")), &file); err != nil {
		t.Errorf("%s: fork.json: %v", w.hostname, err)
	}
	if diff := cmp.Diff(place{index, count, w.id, parent}, file); diff != "" {
		t.Errorf("%s: fork.json (-want +got):\n%s", w.hostname, diff)
	}
}

// each runs a test for all worlds at the same time.
func each(t *testing.T, all []*subject, test func(t *testing.T, i int, c *subject)) {
	t.Helper()
	var running errgroup.Group
	running.SetLimit(runtime.GOMAXPROCS(0))
	for i, c := range all {
		running.Go(func() error {
			t.Run(c.hostname, func(t *testing.T) { test(t, i, c) })
			return nil
		})
	}
	_ = running.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// differ checks that all programs with a state have another one.
func differ(t *testing.T, a, b report) {
	t.Helper()
	for _, name := range stateful {
		if cmp.Equal(a.Answers[name], b.Answers[name]) {
			t.Errorf("%s and %s have the same state of %s", a.Hostname, b.Hostname, name)
		}
	}
}
