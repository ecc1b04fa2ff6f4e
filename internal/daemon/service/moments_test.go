package service

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// moments returns the moments of a sandbox, without the times.
func (w *harness) moments(ref string) []sandbox.Moment {
	w.t.Helper()
	sbx, err := w.Get(asRed(w.t), ref)
	must(w.t, err)
	return sbx.Moments
}

// wantMoments compares moments without their times, which must be set and in order.
func wantMoments(t *testing.T, got []sandbox.Moment, want ...sandbox.Moment) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(sandbox.Moment{}, "At", "Until", "StateAt")); diff != "" {
		t.Errorf("moments differ (-want +got):\n%s", diff)
	}
	var last time.Time
	for i, m := range got {
		if m.At.Before(last) || m.At.IsZero() {
			t.Errorf("moment %d is at %s, before %s", i, m.At, last)
		}
		if last = m.At; m.Until != nil {
			last = *m.Until
		}
		if (m.StateAt != nil) != (m.Kind == sandbox.MomentRestored) {
			t.Errorf("moment %d has the state of %v", i, m.StateAt)
		}
	}
}

// A pause lasts until something ends it: a resume, a restore or a merge, but not the end
// of the sandbox.
func TestMomentsOfPauses(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	snap := w.snapshot("x", "kept")
	other := w.snapshot(w.create(sandbox.CreateRequest{Name: "y"}).Name, "")
	paused := sandbox.Moment{Kind: sandbox.MomentPaused}
	if got := w.pause("x"); len(got.Moments) != 1 || got.Moments[0].Until != nil || !got.Moments[0].At.Equal(*got.PausedAt) {
		t.Errorf("paused %+v", got)
	}
	w.pause("x")         // which is paused already
	w.shell("x", "true") // resumes it
	wantMoments(t, w.moments("x"), paused)
	w.pause("x")
	got := w.restore("x", sandbox.RestoreRequest{Snapshot: "kept"})
	mine := sandbox.Moment{Kind: sandbox.MomentRestored, SandboxID: sbx.ID, Snapshot: snap.ID}
	wantMoments(t, got.Moments, paused, paused, mine)
	if at := got.Moments[2].StateAt; !at.Equal(snap.CreatedAt) {
		t.Errorf("restored to the state of %s, want %s", at, snap.CreatedAt)
	}
	for _, m := range got.Moments[:2] {
		if m.Until == nil {
			t.Errorf("a pause that is over has no end: %+v", m)
		}
	}
	w.restore("x", sandbox.RestoreRequest{Snapshot: other.ID})
	theirs := sandbox.Moment{Kind: sandbox.MomentRestored, SandboxID: other.SandboxID, Snapshot: other.ID}
	w.pause("x")
	_, err := w.Kill(asRed(t), "x")
	must(t, err)
	all := w.moments(sbx.ID)
	wantMoments(t, all, paused, paused, mine, theirs, paused)
	if all[4].Until != nil {
		t.Errorf("the sandbox was killed while it was paused, but %+v", all[4])
	}
}

// A sandbox can be restored to a step of a history as to a snapshot.
func TestMomentsOfSteps(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x", History: 1})
	w.shell("x", "true")
	step := w.steps("x")[0].ID
	w.restore("x", sandbox.RestoreRequest{Step: -1})
	wantMoments(t, w.moments("x"), sandbox.Moment{Kind: sandbox.MomentRestored, SandboxID: sbx.ID, Snapshot: step})
}

func TestMomentsOfMerges(t *testing.T) {
	for name, c := range map[string]struct {
		req  sandbox.MergeRequest
		want sandbox.Moment
	}{
		"whole":           {sandbox.MergeRequest{}, sandbox.Moment{Merge: sandbox.MergeWhole, KillWinner: true}},
		"files":           {sandbox.MergeRequest{Kind: sandbox.MergeFiles}, sandbox.Moment{Merge: sandbox.MergeFiles}},
		"files, and kill": {sandbox.MergeRequest{Kind: sandbox.MergeFiles, KillWinner: true}, sandbox.Moment{Merge: sandbox.MergeFiles, KillWinner: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			_, child := w.family()
			w.pause("parent")
			w.pause("child")
			// A child has none of its parent's.
			grandchild := w.fork("child", sandbox.ForkRequest{})[0]
			wantMoments(t, grandchild.Moments)
			c.req.Winner, c.want.Kind, c.want.SandboxID = "child", sandbox.MomentMerged, child.ID
			res := w.merge(c.req)
			wantMoments(t, res.Sandbox.Moments, sandbox.Moment{Kind: sandbox.MomentPaused}, c.want)
			if res.Sandbox.Moments[0].Until == nil {
				t.Error("the parent is paused still")
			}
			winner, err := w.Get(asRed(t), child.ID)
			must(t, err)
			if winner.State.Final() != c.want.KillWinner {
				t.Errorf("the winner is %s, and the parent says %+v", winner.State, res.Sandbox.Moments[1])
			}
			if at := res.Sandbox.Moments[1].At; c.req.Kind == "" && !at.Equal(*winner.EndedAt) {
				t.Errorf("the winner ended at %s, and was merged at %s", winner.EndedAt, at)
			}
		})
	}
	t.Run("stopped by conflicts", func(t *testing.T) {
		w := newHarness(t)
		w.family()
		w.shell("parent", "echo ours > file")
		if res := w.merge(sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles}); res.Merged {
			t.Fatal("there was no conflict")
		}
		wantMoments(t, w.moments("parent"))
	})
}

// The newest moments stay, and records that were returned earlier do not change.
func TestMomentsAreBounded(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	var told *sandbox.Sandbox
	for range sandbox.MaxMoments + 2 {
		told = w.pause("x")
		_, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{})
		must(t, err)
	}
	all := w.moments("x")
	if n := len(all); n != sandbox.MaxMoments {
		t.Errorf("%d moments are kept, want %d", n, sandbox.MaxMoments)
	}
	last := told.Moments[len(told.Moments)-1]
	if last.Until != nil || !last.At.Equal(all[len(all)-1].At) {
		t.Errorf("the last pause was told as %+v and is kept as %+v", last, all[len(all)-1])
	}
}

// A merge of files that could not end the winner does not say that it did. If the winner
// ends a little later, it does.
func TestMomentsOfMergesThatFailToKill(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(w *harness, child string)
		kills bool
	}{
		"it is not recorded": {func(w *harness, child string) {
			db, err := sql.Open("sqlite", "file:"+w.path+"?_pragma=busy_timeout(10000)")
			must(w.t, err)
			defer db.Close()
			_, err = db.ExecContext(w.t.Context(), "CREATE TRIGGER refuse BEFORE UPDATE ON sandboxes WHEN NEW.id = '"+child+"' AND NEW.state = 'stopping' BEGIN SELECT RAISE(ABORT, 'boom'); END")
			must(w.t, err)
		}, false},
		"not all is removed": {func(w *harness, _ string) { w.state.Fail(memory.StepDestroy, memory.Before, errors.New("boom")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			parent, child := w.family()
			c.set(w, child.ID)
			if _, err := w.Merge(asRed(t), "parent", sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles, KillWinner: true}); err == nil {
				t.Fatal("the merge says that all went well")
			}
			wantMoments(t, w.moments(parent.ID), sandbox.Moment{Kind: sandbox.MomentMerged, SandboxID: child.ID, Merge: sandbox.MergeFiles, KillWinner: c.kills})
			if got := w.get(child.ID).State; (got == sandbox.StateRunning) == c.kills {
				t.Errorf("the winner is %s", got)
			}
		})
	}
}
