package fleet_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// TestVacancies checks when a dedicated node is vacant.
func TestVacancies(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.join("a")
	d := w.dedicated("d", 8)
	vacant := func(when string, want fleet.Vacancy) {
		t.Helper()
		want.Node, want.ID = "d", "id-of-d"
		if diff := cmp.Diff([]fleet.Vacancy{want}, w.Vacancies()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	w.notVacant("never used")
	w.cut(d)
	w.notVacant("away, never used")
	w.attach(d)
	d.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error { w.notVacant("beginning"); return nil })
	w.create("one", of("f1"))
	w.notVacant("with an instance")
	if ok, err := w.Retire(fleet.Vacancy{Node: "d", ID: "id-of-d"}); ok || err != nil {
		t.Errorf("retired with an instance: %t, %v", ok, err)
	}
	w.end("one")
	vacant("ended", fleet.Vacancy{Claimed: true})
	w.create("two", of("f1"))
	w.create("two-of-a")
	if _, err := w.Checkpoint(t.Context(), "two-of-a", "ckp-a", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Checkpoint(t.Context(), "two", "ckp", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	w.end("two")
	vacant("paused", fleet.Vacancy{Claimed: true, Checkpoints: []string{"ckp"}})
	w.cut(d)
	w.notVacant("away, within its lease")
	w.restart()
	w.notVacant("away, after a restart")
	w.attach(d)
	vacant("back", fleet.Vacancy{Claimed: true, Checkpoints: []string{"ckp"}})
	w.retire("d")
	vacant("retired", fleet.Vacancy{Claimed: true, Retired: true, Checkpoints: []string{"ckp"}})
}

// TestVacancyOfLost checks that a dedicated node is vacant when it is lost.
func TestVacancyOfLost(t *testing.T) {
	w := newDedicatedWorld(t, 50*time.Millisecond)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	w.cut(d)
	<-w.failed
	want := fleet.Vacancy{Node: "d", ID: "id-of-d", Claimed: true, Lost: true}
	if diff := cmp.Diff([]fleet.Vacancy{want}, w.Vacancies()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRest checks that a node is vacant only a while after something began or ended there, or
// it connected.
func TestRest(t *testing.T) {
	w := newWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("zero", of("f1"))
	w.end("zero")
	w.notVacant("with the usual rest") // which is longer than this test takes
	const rest = 200 * time.Millisecond
	w.cfg.Rest = rest
	w.restart()
	// after checks that the node is vacant a rest after something has happened.
	after := func(what string, happens func()) {
		t.Helper()
		began := time.Now()
		happens()
		vacant := len(w.Vacancies()) > 0
		if took := time.Since(began); vacant && took < rest {
			t.Errorf("vacant %v after it %s", took, what)
		}
		w.until(func() bool { return time.Since(began) > rest && len(w.Vacancies()) > 0 })
	}
	after("connected", func() { w.attach(d) })
	w.create("one", of("f1"))
	rested := time.Now()
	w.until(func() bool { return time.Since(rested) > 2*rest })
	w.notVacant("with an instance")
	after("ended", func() { w.end("one") })
}

// TestRetire checks that only what is vacant is retired, with no other states than those that
// were known, and that nothing is taken then.
func TestRetire(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	w.end("one")
	before := w.vacancy("d")
	w.create("two", of("f1"))
	if _, err := w.Checkpoint(t.Context(), "two", "ckp", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	w.end("two")
	refused := func(when string, v fleet.Vacancy) {
		t.Helper()
		if ok, err := w.Retire(v); ok || err != nil {
			t.Errorf("%s: retired %t, %v", when, ok, err)
		}
	}
	refused("another state was added", before)
	now := w.vacancy("d")
	if !slices.Equal(now.Checkpoints, []string{"ckp"}) {
		t.Fatalf("the node has %v", now.Checkpoints)
	}
	other := now
	other.ID = "id-of-another"
	refused("another node with the name", other)
	other.Node = "unknown"
	refused("no node", other)
	w.create("three", of("f1"))
	refused("another instance was made", now)
	w.end("three")
	if got := w.state("d"); got != sandbox.NodeReady {
		t.Errorf("the node is %s before it is retired", got)
	}
	w.retire("d")
	nothing := func(when string) {
		t.Helper()
		for _, family := range []string{"f1", "f2"} {
			w.refused(when, sandbox.CodeQuotaExceeded, w.try("more", of(family)))
		}
		w.refused(when+", to continue", sandbox.CodeUnavailable, w.try("more", of("f1"), from("ckp")))
		if got := w.state("d"); got != sandbox.NodeDraining {
			t.Errorf("%s: the node is %s", when, got)
		}
	}
	nothing("retired")
	w.restart()
	w.attach(d)
	nothing("retired, after a restart")
	w.retire("d") // again
	if all, err := w.Checkpoints(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the states are %v, %v", all, err)
	}
}

// TestFree checks that a node that is retired has nothing of the family before when it takes
// another one.
func TestFree(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	if _, err := w.Checkpoint(t.Context(), "one", "ckp", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	w.end("one")
	unknown := w.vacancy("d")
	unknown.Checkpoints = nil
	if err := w.Free(t.Context(), unknown); err != nil {
		t.Fatal(err)
	}
	w.claimed("not retired", "d", "f1")
	v := w.retire("d")
	if err := w.Free(t.Context(), unknown); err == nil {
		t.Error("freed with a state of the family before")
	}
	w.claimed("with a state of the family before", "d", "f1")
	other := unknown
	other.ID = "id-of-another"
	if err := w.Free(t.Context(), other); err != nil {
		t.Error(err)
	}
	w.cut(d)
	if err := w.Free(t.Context(), v); err == nil {
		t.Error("freed while it is away")
	}
	w.claimed("away", "d", "f1")
	w.attach(d)
	if err := w.Free(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if kept := d.state.Kept(); len(kept) > 0 {
		t.Errorf("the node has %v", kept)
	}
	w.claimed("freed", "d", "")
	w.create("two", of("f2"))
	w.isOn("two", "d")
	w.restart()
	w.attach(d)
	w.claimed("after a restart", "d", "f2")
	w.end("two")
	v = w.retire("d")
	w.cut(d)
	if err := w.Free(t.Context(), v); err == nil {
		t.Error("freed while it is away, with nothing known to be there")
	}
	w.claimed("away, with nothing there", "d", "f2")
}

// TestFreeRemoves checks that the node itself removes its states, and that one that has moved
// away meanwhile stays.
func TestFreeRemoves(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	for _, id := range []string{"ckp", "ckp-moves"} {
		if _, err := w.Checkpoint(t.Context(), "one", id, engine.CheckpointOptions{Owner: "red"}); err != nil {
			t.Fatal(err)
		}
	}
	moves := w.copy("ckp-moves")
	w.end("one")
	v := w.retire("d")
	b := w.dedicated("b", 8)
	if _, err := w.ImportFor(t.Context(), &engine.Spec{Family: "f1"}, moves.Checkpoint, moves.description, moves.fetch, nil); err != nil {
		t.Fatal(err)
	}
	w.until(func() bool { return len(d.state.Kept()) == 1 })
	if err := w.Free(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if kept := d.state.Kept(); len(kept) > 0 {
		t.Errorf("the freed node has %v", kept)
	}
	if kept := b.state.Kept(); len(kept) != 1 {
		t.Errorf("the other node has %v, want what moved there", kept)
	}
	w.create("continues", of("f1"), from("ckp-moves"))
	w.isOn("continues", "b")
}

// TestDedicatedForGood checks that a node stays what it was when it joined, whatever it says
// later: an ordinary one that others have used gets no dedicated sandbox.
func TestDedicatedForGood(t *testing.T) {
	for _, dedicated := range []bool{false, true} {
		w := newDedicatedWorld(t, time.Hour)
		m := w.joinAs("n", dedicated, func() remote.Report {
			return remote.Report{FreeMemory: 8 << 30, FreeDisk: 8 << 30, Dedicated: !dedicated}
		})
		for _, when := range []string{"joined", "restarted"} {
			if got := w.Rooms()[0].Dedicated; got != dedicated {
				t.Errorf("%s: the node is dedicated: %t", when, got)
			}
			w.restart()
			w.attach(m)
		}
	}
}

// TestUnknownOnDedicated checks that a node on which there is something that nobody knows of, as
// after a restore of older records, takes nothing beside it, and is replaced when that has ended.
func TestUnknownOnDedicated(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	// Behind the back of the fleet.
	spec := engine.Spec{ID: "one", Root: engine.Root{Digest: "d"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 64, DiskMiB: 16}}
	if _, err := d.engine.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.attach(d)
	w.isOn("one", "d")
	w.refused("another family", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
	w.notVacant("with an instance")
	w.end("one")
	if v := w.vacancy("d"); !v.Claimed || !v.Retired {
		t.Errorf("the node is %+v", v)
	}
}

// TestAside checks that a node on which a checkpoint was set aside is kept.
func TestAside(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	w.create("one", of("f1"))
	if _, err := w.Checkpoint(t.Context(), "one", "ckp", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	w.end("one")
	w.vacancy("d")
	to := filepath.Join(t.TempDir(), "aside")
	if err := w.SetAside(t.Context(), "ckp", to); err != nil {
		t.Fatal(err)
	}
	w.notVacant("with a checkpoint that was set aside")
	w.restart()
	w.attach(d)
	w.notVacant("after a restart")
	if _, err := w.BringBack(t.Context(), "ckp", to); err != nil {
		t.Fatal(err)
	}
}

// TestAsideRetired checks that nothing is set aside on a node that is being replaced, and nothing
// brought back there.
func TestAsideRetired(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.dedicated("d", 8)
	w.create("one", of("f1"))
	for _, id := range []string{"ckp", "ckp-aside"} {
		if _, err := w.Checkpoint(t.Context(), "one", id, engine.CheckpointOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.end("one")
	w.retire("d")
	if err := w.SetAside(t.Context(), "ckp", filepath.Join(t.TempDir(), "aside")); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("set aside: %v", err)
	}
	if all, err := w.Checkpoints(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("the states are %v, %v", all, err)
	}
}

// TestFreeEnds checks that a machine that could not end an instance in time does so before it is
// free.
func TestFreeEnds(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	d := w.dedicated("d", 8)
	d.state.Trap(memory.StepCreate, memory.After, func(context.Context) error { panic(http.ErrAbortHandler) })
	d.state.Fail(memory.StepDestroy, memory.Before, errors.New("it does not end"))
	if err := w.try("one", of("f1")); err == nil {
		t.Fatal("it was made")
	}
	v := w.retire("d")
	if err := w.Free(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if left, err := d.engine.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("the machine has %v, %v", left, err)
	}
	w.claimed("freed", "d", "")
}

// TestReadsDoNotClaim checks that state that is only read is not brought to a node that is free,
// nor to one that others share.
func TestReadsDoNotClaim(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.join("a")
	d1 := w.dedicated("d1", 8)
	w.create("one", of("f1"))
	if _, err := w.Checkpoint(t.Context(), "one", "ckp", engine.CheckpointOptions{Owner: "red"}); err != nil {
		t.Fatal(err)
	}
	kept := w.copy("ckp")
	if kept.Family != "f1" {
		t.Errorf("the state is of the family %q", kept.Family)
	}
	w.end("one")
	w.cut(d1)
	if err := w.Remove("d1"); err != nil {
		t.Fatal(err)
	}
	w.refused("while the node is replaced", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
	w.dedicated("d2", 8)
	read := func() error {
		_, err := w.ImportFor(t.Context(), nil, kept.Checkpoint, kept.description, kept.fetch, nil)
		return err
	}
	if err := read(); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("read: %v", err)
	}
	w.claimed("read", "d2", "")
	w.create("three", of("f1"))
	if err := read(); err != nil {
		t.Errorf("read where the family is: %v", err)
	}
	if got := w.PlaceOf(engine.Source{Checkpoint: "ckp"}); got != "d2" {
		t.Errorf("the state is on %q", got)
	}
}

// TestRemovedIsNotClaimed checks that a node that is removed while it is chosen is not recorded
// again.
func TestRemovedIsNotClaimed(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.join("a")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	w.dedicated("d1", 8)
	w.dedicated("d2", 8)
	removed := ""
	fetch := func(f engine.ExportFile, to io.WriterAt) error {
		if removed == "" {
			for _, n := range w.Nodes(t.Context()) {
				if n.Dedicated && n.DedicatedTo == "" {
					removed = n.Name
				}
			}
			if err := w.RemoveMember(removed, "id-of-"+removed); err != nil {
				t.Error(err)
			}
			return errors.New("the machine that was to have it has failed")
		}
		return kept.fetch(f, to)
	}
	_, err := w.ImportFor(t.Context(), &engine.Spec{ID: "one", Family: "f1"}, kept.Checkpoint, kept.description, fetch, nil)
	if err == nil {
		t.Error("the checkpoint is on a node that was removed")
	}
	w.restart()
	if w.IsMember(removed, "id-of-"+removed) {
		t.Errorf("node %s is a member again", removed)
	}
}

// TestLargestDedicated checks that the largest node is one of those that take the sandbox, and
// how full nodes are said to be.
func TestLargestDedicated(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	largest := func(when string, dedicated bool, want int64) {
		t.Helper()
		if got := w.Largest(dedicated).MemoryMiB; got != want<<10 {
			t.Errorf("%s: the largest (dedicated: %t) has %d MiB, want %d GiB", when, dedicated, got, want)
		}
	}
	rooms := func(when string, want ...bool) {
		t.Helper()
		var got []bool
		for _, r := range w.Rooms() {
			got = append(got, r.Dedicated, r.Claimed)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: dedicated and claimed are %v, want %v", when, got, want)
		}
	}
	w.join("a")
	largest("an ordinary node", true, 0)
	largest("an ordinary node", false, 16)
	w.dedicated("b", 32)
	w.dedicated("c", 8)
	largest("all nodes", true, 32)
	largest("all nodes", false, 16)
	rooms("unused", false, false, true, false, true, false)
	w.create("one", of("f1"), at("b"))
	rooms("used", false, false, true, true, true, false)
	w.end("one")
	w.retire("b")
	largest("one is retired", true, 8)
}

// TestImportClaims checks that a node is claimed for an instance before its checkpoint is
// brought there, and is not vacant meanwhile.
func TestImportClaims(t *testing.T) {
	w := newDedicatedWorld(t, time.Hour)
	w.join("a")
	w.pausedOn("a", "ckp")
	kept := w.copy("ckp")
	spec := &engine.Spec{ID: "one", Family: "f1", Resources: kept.Resources}
	if _, err := w.ImportFor(t.Context(), spec, kept.Checkpoint, kept.description, kept.fetch, nil); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("without a dedicated node: %v", err)
	}
	d := w.dedicated("d", 8)
	asked := false
	fetch := func(f engine.ExportFile, to io.WriterAt) error {
		if !asked {
			asked = true
			w.claimed("meanwhile", "d", "f1")
			w.refused("another family meanwhile", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
			w.notVacant("meanwhile")
			d.state.Fail(memory.StepCreate, memory.Before, errors.New("no such program"))
			if err := w.try("three", of("f1")); err == nil {
				t.Error("it was made")
			}
			w.claimed("after a failure of the family meanwhile", "d", "f1")
		}
		return kept.fetch(f, to)
	}
	if _, err := w.ImportFor(t.Context(), spec, kept.Checkpoint, kept.description, fetch, nil); err != nil || !asked {
		t.Fatalf("asked %t, %v", asked, err)
	}
	if got := w.vacancy("d"); !slices.Equal(got.Checkpoints, []string{"ckp"}) || !got.Claimed {
		t.Errorf("the node has %+v", got)
	}
	w.refused("another family then", sandbox.CodeQuotaExceeded, w.try("two", of("f2")))
	w.create("one", of("f1"), from("ckp"))
	w.isOn("one", "d")
}
