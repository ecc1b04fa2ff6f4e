package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// family makes a parent with one child, which has changed a file.
func (w *harness) family() (parent, child sandbox.Sandbox) {
	w.t.Helper()
	p := w.create(sandbox.CreateRequest{Name: "parent", Env: map[string]string{"A": "parent"}})
	w.shell("parent", "echo begun > file; echo same > other")
	c := w.fork("parent", sandbox.ForkRequest{Name: "child", Env: map[string]string{"A": "child"}})[0]
	w.shell("child", "echo child > file; echo new > added")
	return *p, c
}

func (w *harness) merge(req sandbox.MergeRequest) *sandbox.MergeResult {
	w.t.Helper()
	res, err := w.Merge(asRed(w.t), "parent", req)
	must(w.t, err)
	return res
}

func TestMergeWhole(t *testing.T) {
	for _, state := range []string{"both run", "parent paused", "winner paused", "both paused", "parent works"} {
		t.Run(state, func(t *testing.T) {
			w := newHarness(t)
			parent, child := w.family()
			_, err := w.Update(asRed(t), "parent", sandbox.UpdateRequest{VCPUs: ptr(3), MemoryMiB: ptr(int64(333))})
			must(t, err)
			job, err := w.Exec(asRed(t), "child", sandbox.ExecRequest{Shell: "sleep 300", Background: true}, nil)
			must(t, err)
			running := make(chan error, 1)
			switch state {
			case "parent paused":
				w.pause("parent")
			case "winner paused":
				w.pause("child")
			case "both paused":
				w.pause("parent")
				w.pause("child")
			case "parent works":
				started := make(chan struct{})
				go func() {
					first := true
					_, err := w.Exec(asRed(t), "parent", sandbox.ExecRequest{Shell: "sleep 300"}, func(sandbox.JobEvent) error {
						if first {
							close(started)
						}
						first = false
						return nil
					})
					running <- err
				}()
				<-started
			}
			res := w.merge(sandbox.MergeRequest{Winner: "child"})
			if !res.Merged || res.Kind != sandbox.MergeWhole || res.Sandbox.ID != parent.ID || res.Sandbox.Name != "parent" || res.Sandbox.State != sandbox.StateRunning {
				t.Errorf("merged %+v of %+v", res, res.Sandbox)
			}
			w.agree()
			if state == "parent works" {
				// The end of the fake's process may arrive first.
				if err := <-running; err != nil {
					wantCode(t, err, sandbox.CodeNotRunning)
				}
			}
			lost := w.get(child.ID)
			if lost.State != sandbox.StateKilled || lost.EndedAt == nil || !strings.Contains(lost.Reason, "merged into "+parent.ID) {
				t.Errorf("the winner is %+v", lost)
			}
			_, err = w.Exec(asRed(t), child.ID, sandbox.ExecRequest{Shell: "true"}, nil)
			wantCode(t, err, sandbox.CodeNotRunning)
			if !strings.Contains(err.Error(), "merged into "+parent.ID) {
				t.Errorf("the winner's id answers %q", err)
			}
			// Calls by the parent's id go to the winner's machine, which has the
			// parent's name, limits and environment.
			if got := w.shell(parent.ID, "cat file added; echo $A"); got != "child\nnew\nparent" {
				t.Errorf("the parent has %q", got)
			}
			if state == "both run" {
				if j, err := w.GetJob(asRed(t), "parent", job.ID); err != nil || j.State != sandbox.JobRunning {
					t.Errorf("what ran in the winner is %+v, %v", j, err)
				}
			}
			spec, _ := w.state.Spec(w.record(parent.ID).Instance)
			if spec.Hostname != "parent" || spec.Resources.VCPUs != 3 || spec.Resources.MemoryMiB != 333 {
				t.Errorf("the machine is %+v", spec)
			}
			// The name of the winner is free.
			w.create(sandbox.CreateRequest{Name: "child"})
			if got := w.events(parent.ID); !slices.Contains(got, "key-red sandbox.merge") {
				t.Errorf("recorded %v", got)
			}
			w.restart()
			w.agree()
			w.shell("parent", "true")
			_, err = w.Kill(asRed(t), "parent")
			must(t, err)
			w.agree()
		})
	}
}

// TestCallBeforeHandover makes calls after the record says in which instance a sandbox
// continues and before the handle is replaced. The call may open the instance before
// the new handle exists, or after.
func TestCallBeforeHandover(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("opened after: ", after), func(t *testing.T) {
			w := newHarness(t)
			parent, _ := w.family()
			w.pause("parent")
			inside, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			var opened *handle
			w.state.Trap(memory.StepSetNetwork, memory.Before, func(ctx context.Context) error {
				if after {
					w.state.Trap(memory.StepOpen, memory.Before, func(context.Context) error { close(inside); <-leave; return nil })
				}
				go func() {
					first := true
					_, err := w.Exec(asRed(t), parent.ID, sandbox.ExecRequest{Shell: "until [ -e go ]; do sleep 0.01; done"}, func(sandbox.JobEvent) error {
						if first && !after {
							close(inside)
						}
						first = false
						return nil
					})
					ended <- err
				}()
				<-inside
				opened = w.handleOf(parent.ID)
				return nil
			})
			w.merge(sandbox.MergeRequest{Winner: "child"})
			kept := w.handleOf(parent.ID)
			if !after && kept != opened {
				t.Error("the handle of the call under way was ended")
			}
			close(leave)
			w.shell("parent", "touch go")
			must(t, <-ended)
			if got := w.handleOf(parent.ID); got != kept {
				t.Error("the call has put another handle in place of the one that was there")
			}
			w.agree()
		})
	}
}

// handleOf returns the handle of a running sandbox.
func (w *harness) handleOf(id string) *handle {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.handles[id]
}

func TestMergeWholeFailures(t *testing.T) {
	boom := errors.New("boom at /secret")
	for _, c := range []struct {
		name          string
		set           func(w *harness, child string)
		code          sandbox.Code
		parent, child sandbox.State
	}{
		{"not recorded", func(w *harness, _ string) { w.at("UpdateSandboxes", func() error { return boom }) },
			sandbox.CodeInternal, sandbox.StateRunning, sandbox.StateRunning},
		{"winner dies", func(w *harness, child string) {
			w.at("UpdateSandboxes", func() error {
				must(w.t, w.state.Kill(child, "out of memory"))
				w.waitState(child, sandbox.StateFailed)
				return nil
			})
		}, sandbox.CodeNotRunning, sandbox.StateRunning, sandbox.StateFailed},
		{"winner killed", func(w *harness, child string) {
			w.at("UpdateSandboxes", func() error { _, err := w.Kill(asRed(w.t), child); return err })
		}, sandbox.CodeNotRunning, sandbox.StateRunning, sandbox.StateKilled},
		{"parent killed", func(w *harness, _ string) {
			w.at("UpdateSandboxes", func() error { _, err := w.Kill(asRed(w.t), "parent"); return err })
		}, sandbox.CodeNotRunning, sandbox.StateKilled, sandbox.StateRunning},
		{"winner cannot resume", func(w *harness, child string) {
			w.pause(child)
			w.state.Fail(memory.StepCreate, memory.Before, boom)
		}, sandbox.CodeInternal, sandbox.StateRunning, sandbox.StatePaused},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			parent, child := w.family()
			c.set(w, child.ID)
			_, err := w.Merge(asRed(t), "parent", sandbox.MergeRequest{Winner: child.ID})
			wantCode(t, err, c.code)
			if p, ch := w.get(parent.ID).State, w.get(child.ID).State; p != c.parent || ch != c.child {
				t.Errorf("they are %s and %s, want %s and %s", p, ch, c.parent, c.child)
			}
			w.agree()
			if c.parent == sandbox.StateRunning {
				if got := w.shell(parent.ID, "cat file"); got != "begun" {
					t.Errorf("the parent has %q", got)
				}
			}
		})
	}
}

// TestMergeKeepsTheOld makes the removal of the old instance fail: the merge is done,
// and the next start removes the rest.
func TestMergeKeepsTheOld(t *testing.T) {
	w := newHarness(t)
	w.family()
	again := w.stuck()
	w.merge(sandbox.MergeRequest{Winner: "child"})
	<-again
	if n := len(w.state.IDs()); n != 2 {
		t.Errorf("%d instances, want the winner's and the old one", n)
	}
	w.restart()
	w.agree()
	if got := w.shell("parent", "cat file"); got != "child" {
		t.Errorf("the parent has %q", got)
	}
}

func TestMergeRefused(t *testing.T) {
	w := newHarness(t)
	_, child := w.family()
	w.create(sandbox.CreateRequest{Name: "stranger"})
	w.create(sandbox.CreateRequest{Name: "gone"})
	_, err := w.Kill(asRed(t), "gone")
	must(t, err)
	for _, c := range []struct {
		req  sandbox.MergeRequest
		code sandbox.Code
		says string
	}{
		{sandbox.MergeRequest{Winner: "parent"}, sandbox.CodeInvalid, "into itself"},
		{sandbox.MergeRequest{Winner: "none"}, sandbox.CodeNotFound, "there is no sandbox"},
		{sandbox.MergeRequest{Winner: "gone"}, sandbox.CodeNotRunning, "killed"},
		{sandbox.MergeRequest{Winner: "stranger", Kind: sandbox.MergeFiles}, sandbox.CodeConflict, "not forked from"},
		{sandbox.MergeRequest{Winner: child.ID, Policy: sandbox.PolicyOurs}, sandbox.CodeInvalid, "policy"},
	} {
		_, err := w.Merge(asRed(t), "parent", c.req)
		wantCode(t, err, c.code)
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %q, want %q", c.req, err, c.says)
		}
	}
	w.agree()
}

// TestMergeConflict merges files that both sides have changed: without a policy
// nothing happens, and with "ours" the parent's stay.
func TestMergeConflict(t *testing.T) {
	w := newHarness(t)
	w.family()
	w.shell("parent", "echo parent > file")
	res := w.merge(sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles, KillWinner: true})
	want := []sandbox.Conflict{{Path: "/workspace/file", Ours: sandbox.ChangeModified, Theirs: sandbox.ChangeModified}}
	if res.Merged || !slices.Equal(res.Conflicts, want) || len(res.Applied) != 0 || res.Sandbox.Name != "parent" {
		t.Errorf("merged %+v", res)
	}
	res = w.merge(sandbox.MergeRequest{Winner: "child", Kind: sandbox.MergeFiles, Policy: sandbox.PolicyOurs, Paths: []string{"/workspace/file"}})
	if !res.Merged || len(res.Applied) != 0 || len(res.Conflicts) != 1 {
		t.Errorf("merged %+v", res)
	}
	if got := w.shell("parent", "cat file; ls"); got != "parent\nfile\nother" {
		t.Errorf("the parent has %q", got)
	}
	if got := w.get("child").State; got != sandbox.StateRunning {
		t.Errorf("the winner is %s", got)
	}
	w.agree()
}

func TestDiffEnforcedOrRefused(t *testing.T) {
	diff := func(ref string, req sandbox.DiffRequest, check func(d *sandbox.Diff, paths string) bool) func(*testing.T, *harness) {
		return func(t *testing.T, w *harness) {
			w.family()
			w.snapshot("child", "s")
			for range 2 { // running and paused
				got, err := w.Diff(asRed(t), ref, req)
				must(t, err)
				var paths []string
				for _, c := range got.Changes {
					paths = append(paths, fmt.Sprintf("%s %s", c.Kind, c.Path))
				}
				if !check(got, strings.Join(paths, ", ")) {
					t.Errorf("the changes are %v of %+v", paths, got)
				}
				if w.get("child").State == sandbox.StateRunning {
					w.pause("child")
				}
			}
			w.agree()
		}
	}
	everyField[sandbox.DiffRequest](t, map[string]func(*testing.T, *harness){
		"against": func(t *testing.T, w *harness) {
			for subject, against := range map[string]string{"child": "parent", "s": "parent"} {
				diff(subject, sandbox.DiffRequest{Against: against}, func(d *sandbox.Diff, paths string) bool {
					return paths == "added /workspace/added, modified /workspace/file" && d.Added == 1 && d.Modified == 1 && d.Removed == 0
				})(t, newHarness(t))
			}
			diff("parent", sandbox.DiffRequest{Against: "s"}, func(_ *sandbox.Diff, paths string) bool {
				return paths == "removed /workspace/added, modified /workspace/file"
			})(t, w)
		},
		"paths": diff("child", sandbox.DiffRequest{Against: "parent", Paths: []string{"/workspace/added", "/none"}}, func(_ *sandbox.Diff, paths string) bool {
			return paths == "added /workspace/added"
		}),
		"patch": diff("child", sandbox.DiffRequest{Against: "parent", Patch: true, Paths: []string{"/workspace/file"}}, func(d *sandbox.Diff, _ string) bool {
			return strings.Contains(d.Changes[0].Patch, "-begun\n+child")
		}),
		"limit": diff("child", sandbox.DiffRequest{Against: "parent", Limit: 1}, func(d *sandbox.Diff, _ string) bool {
			return len(d.Changes) == 1 && d.Truncated && d.Added+d.Modified == 2
		}),
	})
	w := newHarness(t)
	w.family()
	w.create(sandbox.CreateRequest{Name: "full", Template: "full"})
	_, err := w.Diff(asRed(t), "full", sandbox.DiffRequest{Against: "parent"})
	wantCode(t, err, sandbox.CodeConflict)
	_, err = w.Diff(asRed(t), "none", sandbox.DiffRequest{})
	wantCode(t, err, sandbox.CodeNotFound)
}

func TestTry(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "parent"})
	w.shell("parent", "echo begun > file")
	three := []sandbox.TryCommand{
		{Shell: "echo one > file; exit 3"}, {Shell: "echo two > file; echo said"}, {Shell: "echo three > file; echo failed >&2; sleep 0.2"},
	}
	var told []int
	res, err := w.Try(asRed(t), "parent", sandbox.TryRequest{Commands: three, Keep: sandbox.KeepWinners}, func(e sandbox.TryEvent) error {
		if told = append(told, e.Attempt.Index); e.Done != len(told) || e.Total != 3 {
			t.Errorf("told %+v", e)
		}
		return nil
	})
	must(t, err)
	if len(told) != 3 || res.Picked != nil || res.Merge != nil || len(res.Attempts) != 3 {
		t.Errorf("told %v, got %+v", told, res)
	}
	for i, a := range res.Attempts {
		want := []sandbox.Attempt{{ExitCode: 3}, {Stdout: "said\n", Kept: true}, {Stderr: "failed\n", Kept: true}}[i]
		if a.Index != i || a.ExitCode != want.ExitCode || a.Stdout != want.Stdout || a.Stderr != want.Stderr || a.Kept != want.Kept || a.Error != "" {
			t.Errorf("attempt %d is %+v", i, a)
		}
		if a.Changes == nil || len(a.Changes.Changes) != 1 || a.Changes.Changes[0].Path != "/workspace/file" {
			t.Errorf("attempt %d changed %+v", i, a.Changes)
		}
		if living := !w.get(a.SandboxID).State.Final(); living != want.Kept {
			t.Errorf("attempt %d lives: %v", i, living)
		}
	}
	w.agree()
	for _, a := range res.Attempts {
		_, err := w.Kill(asRed(t), a.SandboxID)
		must(t, err)
	}
	for _, c := range []struct {
		req    sandbox.TryRequest
		picked int // -1: none
		file   string
	}{
		{sandbox.TryRequest{Commands: three[:1], Count: 2, Pick: sandbox.PickFirstSuccess}, -1, "begun"},
		{sandbox.TryRequest{Commands: three, Pick: sandbox.PickFirstSuccess, NoDiff: true}, 1, "two"},
		{sandbox.TryRequest{Commands: three, Pick: "0"}, 0, "one"},
	} {
		res, err := w.Try(asRed(t), "parent", c.req, nil)
		must(t, err)
		if c.picked >= 0 && (res.Picked == nil || *res.Picked != c.picked || res.Merge == nil || !res.Merge.Merged) || c.picked < 0 && res.Picked != nil {
			t.Errorf("%+v: got %+v", c.req, res)
		}
		if (res.Attempts[0].Changes == nil) != c.req.NoDiff {
			t.Errorf("the changes are %+v", res.Attempts[0].Changes)
		}
		if got := w.shell("parent", "cat file"); got != c.file {
			t.Errorf("%+v: the parent has %q", c.req, got)
		}
		list, err := w.List(asRed(t), sandbox.ListRequest{})
		must(t, err)
		if len(list.Items) != 1 {
			t.Errorf("%+v: left are %+v", c.req, list.Items)
		}
		w.agree()
	}
}

// TestTryCannotEnd makes the end of a fork fail: the error goes to the caller and the
// log.
func TestTryCannotEnd(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "parent"})
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	res, err := w.Try(asRed(t), "parent", sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "true"}}, Count: 2, Keep: sandbox.KeepNone}, nil)
	if err == nil {
		t.Errorf("a try whose fork lives on: %+v", res)
	}
}

// TestTryEnds ends a try in all the ways in which its forks must be killed.
func TestTryEnds(t *testing.T) {
	boom := errors.New("the caller's own error")
	for _, c := range []struct {
		name string
		set  func(w *harness, cancel func())
		sink func(cancel func()) error
		want func(error) bool
	}{
		{"cancelled", nil, func(cancel func()) error { cancel(); return nil },
			func(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeCancelled }},
		{"sink fails", nil, func(func()) error { return boom }, func(err error) bool { return errors.Is(err, boom) }},
		{"base is not read", func(w *harness, _ func()) { w.state.Fail(memory.StepChanges, memory.Before, boom) }, nil,
			func(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeInternal }},
		{"not forked", func(w *harness, _ func()) { w.state.Fail(memory.StepCreate, memory.Before, boom) }, nil,
			func(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeInternal }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHarness(t)
			w.create(sandbox.CreateRequest{Name: "parent"})
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			if c.set != nil {
				c.set(w, cancel)
			}
			req := sandbox.TryRequest{Commands: []sandbox.TryCommand{{Shell: "true"}, {Shell: "sleep 300"}}, Keep: sandbox.KeepAll}
			_, err := w.Try(ctx, "parent", req, func(sandbox.TryEvent) error { return c.sink(cancel) })
			if !c.want(err) {
				t.Errorf("Try: %v", err)
			}
			list, err := w.List(asRed(t), sandbox.ListRequest{})
			must(t, err)
			if len(list.Items) != 1 {
				t.Errorf("left are %+v", list.Items)
			}
			w.agree()
		})
	}
}
