package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func (w *harness) fork(ref string, req sandbox.ForkRequest) []sandbox.Sandbox {
	w.t.Helper()
	list, err := w.Fork(asRed(w.t), ref, req)
	must(w.t, err)
	return list.Items
}

func TestForkEnforcedOrRefused(t *testing.T) {
	forked := func(req sandbox.ForkRequest, check func(t *testing.T, w *harness, children []sandbox.Sandbox) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{
				Name: "parent", Env: map[string]string{"A": "1", "B": "1"}, Metadata: map[string]string{"a": "1", "b": "1"},
				LifetimeSeconds: ptr(int64(500)), IdleTimeoutSeconds: ptr(int64(50)),
			})
			if children := w.fork("parent", req); !check(t, w, children) {
				t.Errorf("no effect on %+v", children)
			}
			w.agree()
		}
	}
	everyField[sandbox.ForkRequest](t, map[string]func(*testing.T, *harness){
		"count": forked(sandbox.ForkRequest{Count: 3}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			for i, c := range all {
				if got := w.shell(c.ID, "echo $COVE_FORK_INDEX/$COVE_FORK_COUNT"); got != fmt.Sprintf("%d/3", i) {
					t.Errorf("child %d is told %q", i, got)
				}
			}
			return len(all) == 3
		}),
		"name": forked(sandbox.ForkRequest{Count: 2, Name: "c"}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			one := w.fork("parent", sandbox.ForkRequest{Name: "only"})
			return all[0].Name == "c-0" && all[1].Name == "c-1" && one[0].Name == "only" && w.get("c-1").ID == all[1].ID
		}),
		"env": forked(sandbox.ForkRequest{Env: map[string]string{"B": "2"}}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			return w.shell(all[0].ID, "echo $A$B") == "12" && w.shell("parent", "echo $A$B") == "11"
		}),
		"metadata": forked(sandbox.ForkRequest{Metadata: map[string]string{"b": "2"}}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			want := map[string]string{"a": "1", "b": "2", metadataForkedFrom: w.get("parent").ID}
			return cmp.Equal(all[0].Metadata, want) && len(w.get("parent").Metadata) == 2
		}),
		"lifetime_seconds": forked(sandbox.ForkRequest{LifetimeSeconds: ptr(int64(77))}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			same := w.fork("parent", sandbox.ForkRequest{})[0]
			none := w.fork("parent", sandbox.ForkRequest{LifetimeSeconds: ptr(int64(0))})[0]
			left := time.Until(*all[0].ExpiresAt)
			return all[0].LifetimeSeconds == 77 && left > 70*time.Second && left <= 77*time.Second && same.LifetimeSeconds == 500 && none.ExpiresAt == nil
		}),
		"idle_timeout_seconds": forked(sandbox.ForkRequest{IdleTimeoutSeconds: ptr(int64(7))}, func(_ *testing.T, w *harness, all []sandbox.Sandbox) bool {
			return all[0].IdleTimeoutSeconds == 7 && w.fork("parent", sandbox.ForkRequest{})[0].IdleTimeoutSeconds == 50
		}),
	})
}

func TestFork(t *testing.T) {
	w := newHarness(t)
	parent := w.create(sandbox.CreateRequest{Name: "parent", History: 2, OnTimeout: sandbox.ActionPause})
	w.shell("parent", "echo common > file")
	for _, paused := range []bool{false, true} {
		if paused {
			w.pause("parent")
		}
		children := w.fork("parent", sandbox.ForkRequest{Count: 2})
		want := sandbox.StateRunning
		if paused {
			want = sandbox.StatePaused
		}
		if got := w.get("parent").State; got != want {
			t.Errorf("the parent is %s, want %s", got, want)
		}
		for i, c := range children {
			if c.State != sandbox.StateRunning || c.ForkedFrom != parent.ID || c.Name != "" || c.ID == parent.ID || c.StartedAt == nil ||
				c.Resources != parent.Resources || c.OnTimeout != sandbox.ActionPause || c.History != 2 || c.PausedAt != nil {
				t.Errorf("child %d is %+v", i, c)
			}
			if got := w.shell(c.ID, fmt.Sprintf("cat file; echo %d > mine; ls", i)); got != "common\nfile\nmine" {
				t.Errorf("child %d has %q", i, got)
			}
			if got := w.events(c.ID); !slices.Contains(got, "system sandbox.forked") {
				t.Errorf("recorded of a child: %v", got)
			}
		}
		w.agree()
	}
	if got := w.shell("parent", "ls"); got != "file" {
		t.Errorf("the parent has %q", got)
	}
	grandchild := w.fork(w.fork("parent", sandbox.ForkRequest{})[0].ID, sandbox.ForkRequest{})[0]
	if got := w.shell(grandchild.ID, "cat file"); got != "common" {
		t.Errorf("the grandchild has %q", got)
	}
	w.agree()
	list, err := w.List(asRed(t), sandbox.ListRequest{})
	must(t, err)
	for _, s := range list.Items {
		_, err := w.Kill(asRed(t), s.ID)
		must(t, err)
	}
	w.agree()
	if got := w.kept(); len(got) > 0 {
		t.Errorf("without sandboxes %v is left", got)
	}
}

// TestForkFailures makes a fork of five fail at the third child, and elsewhere: then
// there are no children, and the parent continues.
func TestForkFailures(t *testing.T) {
	boom := errors.New("boom at /secret")
	// third runs f at the third child, after two were made.
	third := func(w *harness, when memory.When, f func(context.Context) error) {
		for range 2 {
			w.state.Trap(memory.StepCreate, when, func(context.Context) error { return nil })
		}
		w.state.Trap(memory.StepCreate, when, f)
	}
	child := func(w *harness) string {
		list, err := w.List(asRed(w.t), sandbox.ListRequest{States: []sandbox.State{sandbox.StateCreating}})
		must(w.t, err)
		return list.Items[0].ID
	}
	for _, c := range []struct {
		name string
		set  func(w *harness, cancel func())
		code sandbox.Code
	}{
		{"third before", func(w *harness, _ func()) { third(w, memory.Before, func(context.Context) error { return boom }) }, sandbox.CodeInternal},
		{"third lost", func(w *harness, _ func()) { third(w, memory.After, func(context.Context) error { return boom }) }, sandbox.CodeInternal},
		{"third with a reason", func(w *harness, _ func()) {
			third(w, memory.Before, func(context.Context) error {
				return sandbox.Errorf(sandbox.CodeUnavailable, "no memory left; retry later")
			})
		}, sandbox.CodeUnavailable},
		{"no checkpoint", func(w *harness, _ func()) { w.state.Fail(memory.StepCheckpoint, memory.Before, boom) }, sandbox.CodeInternal},
		{"not announced", func(w *harness, _ func()) { w.at("UpdateSandboxes", func() error { return boom }) }, sandbox.CodeInternal},
		{"not recorded", func(w *harness, _ func()) { w.at("CreateSandboxes", func() error { return boom }) }, sandbox.CodeInternal},
		{"cancelled", func(w *harness, cancel func()) {
			third(w, memory.After, func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() })
		}, sandbox.CodeCancelled},
		{"child killed", func(w *harness, _ func()) {
			third(w, memory.After, func(ctx context.Context) error {
				go func() { _, _ = w.Kill(asRed(w.t), child(w)) }()
				<-ctx.Done()
				return ctx.Err()
			})
		}, sandbox.CodeConflict},
		{"child dies", func(w *harness, _ func()) {
			third(w, memory.After, func(ctx context.Context) error {
				id := child(w)
				wait(w.t, func() bool { return w.state.Kill(id, "out of memory") == nil }, func() string { return "the child does not come" })
				wait(w.t, func() bool { return w.record(id).State == sandbox.StateFailed }, func() string { return "it has not failed" })
				return nil
			})
		}, sandbox.CodeNotRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			w.create(sandbox.CreateRequest{Name: "parent"})
			w.shell("parent", "echo kept > file")
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			c.set(w, cancel)
			_, err := w.Fork(ctx, "parent", sandbox.ForkRequest{Count: 5, Name: "c"})
			wantCode(t, err, c.code)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the cause shows: %q", err)
			}
			list, err := w.List(asRed(t), sandbox.ListRequest{States: states})
			must(t, err)
			if len(list.Items) != 1 {
				t.Errorf("left are %+v", list.Items)
			}
			w.agree()
			if got := w.kept(); len(got) > 0 {
				t.Errorf("kept %v", got)
			}
			if got := w.shell("parent", "cat file"); got != "kept" {
				t.Errorf("the parent has %q", got)
			}
			if got := w.fork("parent", sandbox.ForkRequest{Count: 5, Name: "c"}); len(got) != 5 {
				t.Errorf("forked %+v", got)
			}
			w.agree()
		})
	}
}

// TestForkOfWhatEnds kills the parent while its children are made: they live.
func TestForkOfWhatEnds(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "parent"})
	w.state.Trap(memory.StepCreate, memory.Before, func(context.Context) error { _, err := w.Kill(asRed(t), "parent"); return err })
	if children := w.fork("parent", sandbox.ForkRequest{}); w.shell(children[0].ID, "echo ok") != "ok" {
		t.Error("the child does not work")
	}
	w.agree()

	w.create(sandbox.CreateRequest{Name: "parent"})
	w.state.Trap(memory.StepCheckpoint, memory.Before, func(context.Context) error { _, err := w.Kill(asRed(t), "parent"); return err })
	_, err := w.Fork(asRed(t), "parent", sandbox.ForkRequest{Count: 2})
	wantCode(t, err, sandbox.CodeNotRunning)
	w.agree()
}

// TestForkUndone makes the clean-up of a failed fork fail: the record stays until a
// repair has completed it.
func TestForkUndone(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "parent"})
	w.state.Fail(memory.StepCreate, memory.After, errors.New("boom"))
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	_, err := w.Fork(asRed(t), "parent", sandbox.ForkRequest{})
	wantCode(t, err, sandbox.CodeInternal)
	if n := len(w.state.IDs()); n != 2 {
		t.Fatalf("%d instances, want the parent's and one that is left", n)
	}
	must(t, w.Repair(t.Context()))
	w.agree()
}

// TestForkRefused refuses before any work is done.
func TestForkRefused(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{Sandboxes: 5, VCPUs: 8} })
	w.create(sandbox.CreateRequest{Name: "parent", Resources: sandbox.Resources{VCPUs: 2}})
	w.create(sandbox.CreateRequest{Name: "c-1"})
	for _, c := range []struct {
		req  sandbox.ForkRequest
		code sandbox.Code
	}{
		{sandbox.ForkRequest{Count: 4}, sandbox.CodeQuotaExceeded}, // sandboxes
		{sandbox.ForkRequest{Count: 3}, sandbox.CodeQuotaExceeded}, // processors
		{sandbox.ForkRequest{Count: 2, Name: "c"}, sandbox.CodeConflict},
		{sandbox.ForkRequest{Name: "parent"}, sandbox.CodeConflict},
	} {
		_, err := w.Fork(asRed(t), "parent", c.req)
		wantCode(t, err, c.code)
		if e, ok := errors.AsType[*sandbox.Error](err); ok && c.code == sandbox.CodeQuotaExceeded && e.RetryAfter <= 0 {
			t.Error("the refusal does not say when to retry")
		}
	}
	if n := w.state.Calls(memory.StepCheckpoint); n != 0 {
		t.Errorf("%d checkpoints were made for nothing", n)
	}
	w.agree()
	w.fork("parent", sandbox.ForkRequest{Count: 2, Name: "d"})
	w.agree()
}

// TestManyTransitions makes all transitions of one sandbox at once.
func TestManyTransitions(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x", History: 3})
	_, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Name: "s"})
	must(t, err)
	var wg sync.WaitGroup
	for i := range 5 {
		for name, call := range map[string]func() error{
			"pause":    func() error { _, err := w.Pause(asRed(t), "x"); return err },
			"resume":   func() error { _, err := w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{}); return err },
			"exec":     func() error { _, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true"}, nil); return err },
			"file":     func() error { _, err := w.StatFile(asRed(t), sbx.ID, "."); return err },
			"snapshot": func() error { _, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{}); return err },
			"restore": func() error {
				_, err := w.RestoreSnapshot(asRed(t), "x", sandbox.RestoreRequest{Snapshot: "s"})
				return err
			},
			"fork":   func() error { _, err := w.Fork(asRed(t), "x", sandbox.ForkRequest{}); return err },
			"update": func() error { _, err := w.Update(asRed(t), "x", sandbox.UpdateRequest{VCPUs: ptr(i + 1)}); return err },
			"diff":   func() error { _, err := w.Diff(asRed(t), "x", sandbox.DiffRequest{Against: "s"}); return err },
			"expire": func() error { return w.Expire(t.Context(), sbx.ID) },
		} {
			wg.Go(func() {
				switch err := call(); sandbox.CodeOf(err) {
				case "", sandbox.CodeNotRunning, sandbox.CodeUnavailable, sandbox.CodeConflict:
				default:
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	wg.Wait()
	w.agree()
	if got := w.get("x"); got.State.Final() || got.ID != sbx.ID {
		t.Errorf("it is %+v", got)
	}
	w.shell("x", "true")
	if spec, _ := w.state.Spec(w.record(sbx.ID).Instance); spec.Resources != w.get("x").Resources {
		t.Errorf("the machine has %+v, the record %+v", spec.Resources, w.get("x").Resources)
	}
	seen := map[int64]bool{}
	steps, err := w.Service.steps(t.Context(), sbx.ID)
	must(t, err)
	for _, s := range steps {
		if seen[s.Step] {
			t.Errorf("two steps have the number %d", s.Step)
		}
		seen[s.Step] = true
	}
	if len(steps) > 3 {
		t.Errorf("%d steps are kept", len(steps))
	}
	w.agree()
}
