package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// newDedicatedWorld returns a world whose dedicated nodes are vacant at once.
func newDedicatedWorld(t *testing.T, lease time.Duration) *world {
	t.Helper()
	w := newWorld(t, lease)
	w.cfg.Rest = time.Nanosecond
	w.restart()
	return w
}

// withLocal gives the fleet a machine of its own.
func (w *world) withLocal() {
	w.t.Helper()
	state := memory.NewState(w.t.TempDir())
	w.t.Cleanup(func() { state.Close() })
	w.cfg.Local = memory.NewKeeper(state)
	w.cfg.LocalReport = func() remote.Report {
		return remote.Report{Capacity: sandbox.Resources{MemoryMiB: 16 << 10}, FreeMemory: 8 << 30, FreeDisk: 8 << 30}
	}
	w.restart()
}

// dedicated adds a dedicated node with this much free memory, in GiB.
func (w *world) dedicated(name string, free int64) *machine {
	w.t.Helper()
	return w.joinAs(name, true, func() remote.Report {
		return remote.Report{Capacity: sandbox.Resources{VCPUs: 4, MemoryMiB: free << 10}, FreeMemory: free << 30, FreeDisk: 8 << 30, Disk: 32 << 30, Dedicated: true}
	})
}

// of makes an instance one of a family, and from one that continues from a checkpoint.
func of(family string) func(*engine.Spec) { return func(s *engine.Spec) { s.Family = family } }
func from(checkpoint string) func(*engine.Spec) {
	return func(s *engine.Spec) { s.Checkpoint = checkpoint }
}

// try makes an instance, which may not succeed.
func (w *world) try(id string, change ...func(*engine.Spec)) error {
	spec := engine.Spec{ID: id, Root: engine.Root{Digest: "d"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 64, DiskMiB: 16}, Network: &engine.Network{SandboxID: id}}
	for _, f := range change {
		f(&spec)
	}
	_, err := w.Create(w.t.Context(), spec)
	return err
}

// refused checks that an instance is not made, for lack of room.
func (w *world) refused(when string, code sandbox.Code, err error) {
	w.t.Helper()
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || e.Code != code || !errors.Is(err, engine.ErrNoRoom) || e.RetryAfter <= 0 {
		w.t.Errorf("%s: got %v (%s), want no room (%s) and when to try again", when, err, sandbox.CodeOf(err), code)
	}
}

// unsupported checks that an instance can never be made, and why.
func (w *world) unsupported(when string, err error, want string) {
	w.t.Helper()
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported || errors.Is(err, engine.ErrNoRoom) || !strings.Contains(sandbox.MessageOf(err), want) {
		w.t.Errorf("%s: got %v (%s), want that it says %q", when, err, sandbox.CodeOf(err), want)
	}
}

// isOn checks where an instance is.
func (w *world) isOn(instance, want string) {
	w.t.Helper()
	if got := w.PlaceOf(engine.Source{Instance: instance}); got != want {
		w.t.Errorf("%s is on %q, want %q", instance, got, want)
	}
}

// claimed checks whom a node runs: "" is nobody yet.
func (w *world) claimed(when, name, want string) {
	w.t.Helper()
	for _, n := range w.Nodes(w.t.Context()) {
		if n.Name == name && (!n.Dedicated || n.DedicatedTo != want) {
			w.t.Errorf("%s: node %s is dedicated: %t, to %q, want %q", when, name, n.Dedicated, n.DedicatedTo, want)
		}
	}
}

// end destroys an instance.
func (w *world) end(id string) {
	w.t.Helper()
	if err := w.Destroy(w.t.Context(), id); err != nil {
		w.t.Fatal(err)
	}
}

// vacancy returns that of a node, which it must have.
func (w *world) vacancy(name string) fleet.Vacancy {
	w.t.Helper()
	all := w.Vacancies()
	i := slices.IndexFunc(all, func(v fleet.Vacancy) bool { return v.Node == name })
	if i < 0 {
		w.t.Fatalf("node %s is not vacant: %+v", name, all)
	}
	return all[i]
}

// notVacant checks that no node is vacant.
func (w *world) notVacant(when string) {
	w.t.Helper()
	if all := w.Vacancies(); len(all) > 0 {
		w.t.Errorf("%s: vacant are %+v", when, all)
	}
}

// retire retires a vacant node.
func (w *world) retire(name string) fleet.Vacancy {
	w.t.Helper()
	v := w.vacancy(name)
	if ok, err := w.Retire(v); !ok || err != nil {
		w.t.Fatalf("Retire: %t, %v", ok, err)
	}
	return v
}

// TestOrdinaryOnDedicated checks that what is not dedicated never goes to a dedicated node: not
// if that has most room, not if it is asked for, and not if it is the only one.
func TestOrdinaryOnDedicated(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.dedicated("d", 64)
	w.refused("only a dedicated node", sandbox.CodeQuotaExceeded, w.try("alone"))
	w.join("a")
	for n := range 3 {
		id := fmt.Sprint("one-", n)
		w.create(id)
		w.isOn(id, "a")
	}
	if got := w.Place(sandbox.Resources{VCPUs: 1, MemoryMiB: 64}); got != "a" {
		t.Errorf("the place of a new one is %q", got)
	}
	w.refused("asked for", sandbox.CodeQuotaExceeded, w.try("two", at("d")))
	if _, err := w.Drain("a", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	w.refused("the other one is drained", sandbox.CodeQuotaExceeded, w.try("three"))
	w.claimed("at last", "d", "")
}

// TestFamilies checks that each family gets a dedicated node of its own, and that the one it
// has is preferred to one with more room.
func TestFamilies(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.withLocal()
	w.join("a")
	w.dedicated("d1", 8)
	w.create("one", of("f1"))
	w.isOn("one", "d1")
	w.claimed("with an instance", "d1", "f1")
	w.refused("another family", sandbox.CodeQuotaExceeded, w.try("other", of("f2")))
	w.refused("another family there", sandbox.CodeQuotaExceeded, w.try("other", of("f2"), at("d1")))
	w.dedicated("d2", 64)
	w.claimed("before it is used", "d2", "")
	w.create("two", of("f1"))
	w.isOn("two", "d1")
	w.create("three", of("f2"))
	w.isOn("three", "d2")
	w.claimed("with another family", "d2", "f2")
	w.refused("a third family", sandbox.CodeQuotaExceeded, w.try("four", of("f3")))
	w.refused("on an ordinary node", sandbox.CodeQuotaExceeded, w.try("five", of("f3"), at("a")))
	w.refused("on the server's machine", sandbox.CodeQuotaExceeded, w.try("six", of("f3"), at(sandbox.LocalNode)))
}

// TestNoDedicated checks what is said if there can be no dedicated sandbox, or none now.
func TestNoDedicated(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.withLocal()
	w.join("a")
	w.unsupported("no dedicated node", w.try("one", of("f1")), "cove node run --dedicated")
	w.dedicated("d", 8)
	mounts := func(s *engine.Spec) { s.Mounts = []engine.Mount{{Source: "/data", Target: "/data"}} }
	w.unsupported("with a directory of the host", w.try("two", of("f1"), mounts), "remove the mounts, or set dedicated to false")
	w.claimed("refused", "d", "")
	if _, err := w.Drain("d", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	w.refused("drained", sandbox.CodeQuotaExceeded, w.try("three", of("f1")))
}

// TestForksOfFamily checks that forks are made where the parent's state is, that nobody else
// continues from it there, and that no dedicated instance continues on an ordinary machine.
func TestForksOfFamily(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.withLocal()
	w.join("a")
	w.dedicated("d1", 8)
	w.dedicated("d2", 64)
	w.create("parent", of("f1"), at("d1"))
	w.create("ordinary", at("a"))
	w.create("own", at(sandbox.LocalNode))
	for instance, id := range map[string]string{"parent": "ckp", "ordinary": "ckp-a", "own": "ckp-own"} {
		if _, err := w.Checkpoint(t.Context(), instance, id, engine.CheckpointOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"child-1", "child-2"} {
		w.create(id, of("f1"), from("ckp"))
		w.isOn(id, "d1")
	}
	w.refused("of another family", sandbox.CodeUnavailable, w.try("other", of("f2"), from("ckp")))
	w.refused("of no family", sandbox.CodeUnavailable, w.try("other", from("ckp")))
	w.refused("from an ordinary node", sandbox.CodeUnavailable, w.try("other", of("f1"), from("ckp-a")))
	w.refused("from the server's machine", sandbox.CodeUnavailable, w.try("other", of("f1"), from("ckp-own")))
	w.claimed("at last", "d1", "f1")
	w.claimed("at last", "d2", "")
	// It says who does not take it.
	for id, want := range map[string]string{"ckp": "the state is on node d1, which is dedicated to other", "ckp-a": "the state is on node a, which does not run dedicated"} {
		if err := w.try("other", of("f2"), from(id)); !strings.Contains(sandbox.MessageOf(err), want) {
			t.Errorf("from %s: %v, want %q", id, err, want)
		}
	}
}

// TestTakes checks who may continue from a checkpoint where it is.
func TestTakes(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.join("a")
	w.dedicated("d", 8)
	w.pausedOn("a", "ckp-a")
	w.create("one", of("f1"))
	if _, err := w.Checkpoint(t.Context(), "one", "ckp-d", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func(id, family string, want bool) {
		t.Helper()
		if got := w.Takes(id, family); got != want {
			t.Errorf("Takes(%q, %q) is %t", id, family, got)
		}
	}
	check("ckp-a", "", true)
	check("ckp-a", "f1", false)
	check("ckp-d", "", false)
	check("ckp-d", "f1", true)
	check("ckp-d", "f2", false)
	check("unknown", "", true)
	check("unknown", "f1", true)
	w.end("one")
	w.standing("ckp-d", engine.StandingReady)
	w.retire("d")
	check("ckp-d", "f1", false)
	w.standing("ckp-d", engine.StandingDraining)
	w.standing("ckp-a", engine.StandingReady)
}

// TestClaimIsKept checks that a restart of the server forgets neither whose a node is nor that
// it is dedicated, also while nothing of the family is there.
func TestClaimIsKept(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	w.end("one")
	w.restart()
	w.claimed("before it is back", "d", "f1")
	w.attach(d)
	w.claimed("when it is back", "d", "f1")
	w.refused("another family", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
	w.create("three", of("f1"))
	w.isOn("three", "d")
}

// TestFailedCreate checks which nodes are free again if an instance that claimed them was not
// made: those of which nothing of the family can have got hold.
func TestFailedCreate(t *testing.T) {
	failure := errors.New("no such program")
	checkpointed := func(w *world, ends bool) {
		w.create("first", of("f1"))
		if _, err := w.Checkpoint(w.t.Context(), "first", "ckp", engine.CheckpointOptions{}); err != nil {
			w.t.Fatal(err)
		}
		if ends {
			w.end("first")
		}
	}
	for name, tt := range map[string]struct {
		before func(w *world) // nil if nothing was there
		change []func(*engine.Spec)
		fails  func(w *world) error // the node's answer; nil is failure
		want   string               // whose the node is then
	}{
		"booted":                       {want: ""},
		"unanswered":                   {fails: func(*world) error { panic(http.ErrAbortHandler) }, want: "f1"},
		"beside another of the family": {before: func(w *world) { w.create("first", of("f1")) }, want: "f1"},
		"beside a state of the family": {before: func(w *world) { checkpointed(w, true) }, want: "f1"},
		"after another of the family":  {before: func(w *world) { w.create("first", of("f1")); w.end("first") }, want: "f1"},
		"continued, and the state is gone": {
			before: func(w *world) { checkpointed(w, true) }, change: []func(*engine.Spec){from("ckp")},
			fails: func(w *world) error { return errors.Join(failure, w.RemoveCheckpoint(w.t.Context(), "ckp")) }, want: "f1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDedicatedWorld(t, time.Hour)
			d := w.dedicated("d", 8)
			if tt.before != nil {
				tt.before(w)
			}
			d.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error {
				w.claimed("meanwhile", "d", "f1")
				if tt.fails != nil {
					return tt.fails(w)
				}
				return failure
			})
			if err := w.try("one", append(tt.change, of("f1"))...); err == nil {
				t.Fatal("it was made")
			}
			w.claimed("after the failure", "d", tt.want)
			if tt.want != "" {
				w.refused("another family", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
				return
			}
			w.create("two", of("f2"))
			w.claimed("used by another", "d", "f2")
		})
	}
}

// TestFamiliesAtOnce checks that families that begin at the same time get different nodes, if
// there are as many.
func TestFamiliesAtOnce(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	const n = 8
	for i := range n {
		w.dedicated(fmt.Sprint("d", i), 8)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := w.try(fmt.Sprint("one-", i), of(fmt.Sprint("f", i))); err != nil {
				t.Errorf("family %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	to := map[string]bool{}
	for _, node := range w.Nodes(t.Context()) {
		to[node.DedicatedTo] = true
		if node.Sandboxes != 1 {
			t.Errorf("node %s has %d sandboxes", node.Name, node.Sandboxes)
		}
	}
	if len(to) != n || to[""] {
		t.Errorf("the families with nodes are %v", to)
	}
}

// TestDrainWhileCreating drains the server's own machine while instances are made there.
// The race detector checks it.
func TestDrainWhileCreating(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.withLocal()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 4 {
			if _, err := w.Drain(sandbox.LocalNode, nil); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 4 {
		w.create(fmt.Sprint("one-", i), at(sandbox.LocalNode))
	}
	wg.Wait()
}
