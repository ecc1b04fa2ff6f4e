package service

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// TestCollectExactly makes every kind of reference to a checkpoint, and takes
// them away one by one: each checkpoint goes with its last reference.
func TestCollectExactly(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.create(sandbox.CreateRequest{Name: "x", History: 2})
	w.shell("x", "true")                            // a step
	w.snapshot("x", "s")                            // a snapshot
	w.fork("x", sandbox.ForkRequest{Name: "child"}) // a fork point
	w.pause("x")                                    // a paused sandbox
	w.snapshot("x", "same")                         // the same checkpoint again
	for _, c := range []struct {
		what string
		do   func() error
		left int
	}{
		{"nothing", func() error { return w.collectNow(ctx) }, 4},
		{"delete the snapshot", func() error { _, err := w.DeleteSnapshot(ctx, "s"); return err }, 3},
		{"kill the child", func() error { _, err := w.Kill(ctx, "child"); return err }, 2},
		{"resume", func() error { _, err := w.Resume(ctx, "x", sandbox.ResumeRequest{}); return err }, 2},
		{"delete what shared it", func() error { _, err := w.DeleteSnapshot(ctx, "same"); return err }, 1},
		{"end the history", func() error { _, err := w.Update(ctx, "x", sandbox.UpdateRequest{History: ptr(0)}); return err }, 0},
	} {
		must(t, c.do())
		w.agree()
		if got := w.kept(); len(got) != c.left {
			t.Errorf("%s: %v are left, want %d", c.what, got, c.left)
		}
	}
}

// TestCollectAtTheWorstTime collects between the writing of a checkpoint and of its
// record, and while a checkpoint is read whose record is gone.
func TestCollectAtTheWorstTime(t *testing.T) {
	for _, c := range []struct {
		name string
		at   string // the change before which it collects
		verb func(w *harness) error
	}{
		{"snapshot", "CreateSnapshot", func(w *harness) error {
			_, err := w.CreateSnapshot(asRed(w.t), "x", sandbox.CreateSnapshotRequest{})
			return err
		}},
		{"pause", "UpdateSandbox", func(w *harness) error { _, err := w.Pause(asRed(w.t), "x"); return err }},
		{"fork", "UpdateSandboxes", func(w *harness) error { _, err := w.Fork(asRed(w.t), "x", sandbox.ForkRequest{Count: 2}); return err }},
		{"step", "CreateSnapshot", func(w *harness) error {
			_, err := w.Exec(asRed(w.t), "x", sandbox.ExecRequest{Shell: "true"}, nil)
			return err
		}},
		{"create", "Create", func(w *harness) error {
			_, err := w.Create(asRed(w.t), sandbox.CreateRequest{Snapshot: "s"})
			return err
		}},
		{"restore", "Create", func(w *harness) error {
			_, err := w.RestoreSnapshot(asRed(w.t), "x", sandbox.RestoreRequest{Snapshot: "s"})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			w.create(sandbox.CreateRequest{Name: "x", History: 1})
			w.snapshot("x", "s")
			w.at(c.at, func() error {
				_, err := w.DeleteSnapshot(asRed(t), "s")
				return errors.Join(err, w.collectNow(t.Context()))
			})
			must(t, c.verb(w))
			w.agree()
			w.shell("x", "true")
			w.agree()
		})
	}
}

// TestCollectTakenIntoUse deletes a snapshot that a create has just taken into use,
// between the collector's reading of what is in use and of the records.
func TestCollectTakenIntoUse(t *testing.T) {
	w := mortalHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.shell("x", "echo kept > file")
	w.snapshot("x", "s")
	reading, collected := make(chan struct{}), make(chan struct{})
	w.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error { close(reading); <-collected; return nil })
	created := make(chan error, 1)
	var once sync.Once
	w.at("Checkpoints", func() error {
		once.Do(func() {
			go func() {
				_, err := w.Create(asRed(t), sandbox.CreateRequest{Name: "new", Snapshot: "s"})
				created <- err
			}()
			<-reading
			if _, err := w.DeleteSnapshot(asRed(t), "s"); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	must(t, w.collectNow(t.Context()))
	close(collected)
	must(t, <-created)
	if got := w.shell("new", "cat file"); got != "kept" {
		t.Errorf("the new one has %q", got)
	}
	w.agree()
}

// TestCollectFailures makes the removal of a checkpoint fail: a repair removes it.
func TestCollectFailures(t *testing.T) {
	for _, step := range []memory.Step{memory.StepCheckpoints, memory.StepRemoveCheckpoint} {
		w := newHarness(t)
		w.create(sandbox.CreateRequest{Name: "x"})
		w.snapshot("x", "s")
		w.agree()
		calls := w.state.Calls(step)
		w.state.Fail(step, memory.Before, errors.New("busy"))
		_, err := w.DeleteSnapshot(asRed(t), "s")
		must(t, err)
		wait(t, func() bool { return w.state.Calls(step) > calls }, func() string { return "nothing is collected" })
		must(t, w.Repair(t.Context()))
		w.agree()
	}
}

// TestGolden creates from templates: the first boots, later ones continue from
// its golden checkpoint, which is not collected and which the next daemon uses.
func TestGolden(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm, c.Build = 2, "v1" })
	golden := func() (kept []string) {
		for _, c := range w.state.Kept() {
			if strings.HasPrefix(c.ID, ids.Golden) {
				kept = append(kept, c.ID)
			}
		}
		return kept
	}
	spec := func(sbx *sandbox.Sandbox) (checkpoint string, fresh bool) {
		s, _ := w.state.Spec(sbx.ID)
		return s.Checkpoint, s.Fresh
	}
	if from, fresh := spec(w.create(sandbox.CreateRequest{})); from != "" || fresh {
		t.Errorf("the first continues from %q", from)
	}
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is offered" })
	made := golden()
	if len(made) != 1 || w.state.Warm()[0].Checkpoint != made[0] || w.state.Warm()[0].Max != 2 {
		t.Fatalf("golden are %v, offered %+v", made, w.state.Warm())
	}
	w.agree()
	must(t, w.collectNow(t.Context()))
	if from, fresh := spec(w.create(sandbox.CreateRequest{Env: map[string]string{"A": "1"}})); from != made[0] || !fresh {
		t.Errorf("the second continues from %q, fresh %v", from, fresh)
	}
	if from, _ := spec(w.create(sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 99}})); from != "" {
		t.Errorf("one with other resources continues from %q", from)
	}
	wait(t, func() bool { return len(w.state.Warm()) == 2 }, func() string { return "no second golden checkpoint is offered" })
	w.restart()
	w.create(sandbox.CreateRequest{})
	before := w.state.Calls(memory.StepCheckpoint)
	wait(t, func() bool {
		from, _ := spec(w.create(sandbox.CreateRequest{}))
		return from == made[0]
	}, func() string { return "the next daemon does not use it" })
	if n := w.state.Calls(memory.StepCheckpoint) - before; n != 0 {
		t.Errorf("the next daemon has made %d again", n)
	}
	w.agree()
	// Golden checkpoints of another version are removed when they are a day old.
	w.stop()
	w.cfg.Build = "v2"
	w.start()
	must(t, w.collectNow(t.Context()))
	if n := len(golden()); n != 2 {
		t.Errorf("%d golden checkpoints, want 2", n)
	}
	old := w.state.Kept()[0]
	old.CreatedAt = old.CreatedAt.Add(-goldenAge)
	if !w.golden.stale(&old) {
		t.Error("an old one is kept for ever")
	}
}

// TestGoldenIsTriedAgain makes the making of a golden checkpoint fail: it is tried
// again, with longer pauses each time.
func TestGoldenIsTriedAgain(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	look := func() (a attempt) {
		w.golden.mu.Lock()
		defer w.golden.mu.Unlock()
		for _, one := range w.golden.attempts {
			a = *one
		}
		return a
	}
	for n, pause := range append(goldenPauses, goldenPauses[len(goldenPauses)-1]) {
		w.state.Fail(memory.StepCreate, memory.Before, errors.New("boom"))
		must(t, w.Prepare(t.Context(), "host"))
		wait(t, func() bool { return look().failures == n+1 }, func() string { return "the making did not fail" })
		if d := time.Until(look().again); d > pause || d < pause-time.Minute {
			t.Errorf("after %d failures it waits %v, want %v", n+1, d, pause)
		}
		must(t, w.Prepare(t.Context(), "host"))
		if got := w.state.Calls(memory.StepCreate); got != n+1 {
			t.Errorf("%d tries, want %d: it was tried before its time", got, n+1)
		}
		w.golden.mu.Lock()
		for _, one := range w.golden.attempts {
			one.again = time.Now()
		}
		w.golden.mu.Unlock()
	}
	must(t, w.Prepare(t.Context(), "host"))
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is offered" })
}

// TestQuotaIsAskedBeforeTheWork reaches the quotas: calls over them make nothing.
func TestQuotaIsAskedBeforeTheWork(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota.VCPUs, c.Quota.Snapshots = 2, 1 })
	ctx := asRed(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.snapshot("x", "s")
	made := w.state.Calls(memory.StepCheckpoint)
	_, err := w.CreateSnapshot(ctx, "x", sandbox.CreateSnapshotRequest{})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if got := w.state.Calls(memory.StepCheckpoint); got != made {
		t.Error("a state was kept in vain")
	}
	w.pause("x")
	w.create(sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 2}})
	machines := w.state.Calls(memory.StepCreate)
	for _, err := range []error{
		func() error { _, err := w.Resume(ctx, "x", sandbox.ResumeRequest{}); return err }(),
		func() error {
			_, err := w.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Snapshot: "s"})
			return err
		}(),
		func() error { _, err := w.Exec(ctx, "x", sandbox.ExecRequest{Shell: "true"}, nil); return err }(),
	} {
		wantCode(t, err, sandbox.CodeQuotaExceeded)
	}
	if got := w.state.Calls(memory.StepCreate); got != machines {
		t.Error("a machine was made in vain")
	}
	w.agree()
}
