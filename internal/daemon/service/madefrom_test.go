package service

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// A sandbox keeps which snapshot or step it was made from, even if that is deleted and its
// sandbox is gone. Forks of the sandbox do not have it.
func TestMadeFrom(t *testing.T) {
	w := newHarness(t)
	x := w.create(sandbox.CreateRequest{Name: "x", History: 2})
	if x.MadeFrom != nil {
		t.Errorf("what was made from a template says %+v", x.MadeFrom)
	}
	w.shell("x", "true")
	for name, from := range map[string]*sandbox.Snapshot{"of-snapshot": w.snapshot("x", "kept"), "of-step": &w.steps("x")[0]} {
		want := &sandbox.MadeFrom{SandboxID: x.ID, Snapshot: from.ID, StateAt: from.CreatedAt}
		is := func(when string, sbx *sandbox.Sandbox) {
			t.Helper()
			if diff := cmp.Diff(want, sbx.MadeFrom); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, when, diff)
			}
		}
		made := w.create(sandbox.CreateRequest{Name: name, Snapshot: from.ID})
		is("made", made)
		other := w.snapshot(name, "")
		is("restored to its own", w.restore(name, sandbox.RestoreRequest{Snapshot: other.ID}))
		_, err := w.DeleteSnapshot(asRed(t), from.ID)
		must(t, err)
		is("without the snapshot", w.get(name))
		if fork := w.fork(name, sandbox.ForkRequest{})[0]; fork.MadeFrom != nil || fork.ForkedFrom != made.ID {
			t.Errorf("%s: a fork of it is of %q, and made from %+v", name, fork.ForkedFrom, fork.MadeFrom)
		}
	}
	_, err := w.Kill(asRed(t), "x")
	must(t, err)
	if got := w.get("of-step").MadeFrom; got == nil || got.SandboxID != x.ID {
		t.Errorf("when its source has ended it is made from %+v", got)
	}
}
