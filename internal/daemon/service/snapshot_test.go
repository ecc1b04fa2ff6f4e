package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func (w *harness) snapshot(ref, name string) *sandbox.Snapshot {
	w.t.Helper()
	snap, err := w.CreateSnapshot(asRed(w.t), ref, sandbox.CreateSnapshotRequest{Name: name})
	must(w.t, err)
	return snap
}

func (w *harness) restore(ref string, req sandbox.RestoreRequest) *sandbox.Sandbox {
	w.t.Helper()
	sbx, err := w.RestoreSnapshot(asRed(w.t), ref, req)
	must(w.t, err)
	return sbx
}

func TestSnapshotEnforcedOrRefused(t *testing.T) {
	everyField[sandbox.CreateSnapshotRequest](t, map[string]func(*testing.T, *harness){
		"name": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			snap := w.snapshot("x", "x") // names of snapshots are their own
			got, err := w.GetSnapshot(asRed(t), "x")
			must(t, err)
			if snap.Name != "x" || got.ID != snap.ID {
				t.Errorf("made %+v, found %+v", snap, got)
			}
			_, err = w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Name: "x"})
			wantCode(t, err, sandbox.CodeConflict)
			if n := w.state.Calls(memory.StepCheckpoint); n != 1 {
				t.Errorf("%d checkpoints were made, want 1", n)
			}
		},
		"label": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x"})
			label := strings.Repeat("é", sandbox.MaxSnapshotLabel/2)
			snap, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Label: label})
			must(t, err)
			if got, err := w.GetSnapshot(asRed(t), snap.ID); err != nil || got.Label != label {
				t.Errorf("found %+v, %v", got, err)
			}
			_, err = w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Label: label + "x"})
			wantCode(t, err, sandbox.CodeInvalid)
		},
		"kind": func(t *testing.T, w *harness) {
			sbx := w.create(sandbox.CreateRequest{Name: "x"})
			for kind, want := range map[sandbox.SnapshotKind]sandbox.SnapshotKind{
				"": sandbox.SnapshotMemory, sandbox.SnapshotMemory: sandbox.SnapshotMemory, sandbox.SnapshotFiles: sandbox.SnapshotFiles,
			} {
				snap, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Kind: kind})
				must(t, err)
				if snap.Kind != want || snap.SizeBytes <= 0 || snap.SandboxID != sbx.ID || snap.Template != "host" || snap.CreatedAt.IsZero() {
					t.Errorf("%q: made %+v", kind, snap)
				}
				from := w.create(sandbox.CreateRequest{Snapshot: snap.ID})
				w.restore("x", sandbox.RestoreRequest{Snapshot: snap.ID})
				for _, id := range []string{from.ID, sbx.ID} {
					if spec, _ := w.state.Spec(w.record(id).Instance); spec.FilesOnly != (want == sandbox.SnapshotFiles) {
						t.Errorf("%q: restored as %+v", kind, spec)
					}
				}
			}
			w.agree()
		},
	})
	two := func(w *harness) (*sandbox.Snapshot, *sandbox.Snapshot) {
		w.create(sandbox.CreateRequest{Name: "x", History: 3})
		w.create(sandbox.CreateRequest{Name: "y"})
		w.shell("x", "true")
		return w.snapshot("x", "sx"), w.snapshot("y", "sy")
	}
	list := func(t *testing.T, w *harness, req sandbox.ListSnapshotsRequest) (names []string, next string) {
		got, err := w.ListSnapshots(asRed(t), req)
		must(t, err)
		for _, s := range got.Items {
			if s.Automatic {
				s.Name = "step " + s.Label
			}
			names = append(names, s.Name)
		}
		return names, got.NextCursor
	}
	everyField[sandbox.ListSnapshotsRequest](t, map[string]func(*testing.T, *harness){
		"sandbox": func(t *testing.T, w *harness) {
			sx, _ := two(w)
			for _, ref := range []string{"x", sx.SandboxID} {
				if got, _ := list(t, w, sandbox.ListSnapshotsRequest{Sandbox: ref}); !slices.Equal(got, []string{"sx"}) {
					t.Errorf("of %s: %v", ref, got)
				}
			}
		},
		"automatic": func(t *testing.T, w *harness) {
			two(w)
			if got, _ := list(t, w, sandbox.ListSnapshotsRequest{Automatic: true}); !slices.Equal(got, []string{"sy", "sx", "step before shell"}) {
				t.Errorf("all: %v", got)
			}
			if got, _ := list(t, w, sandbox.ListSnapshotsRequest{}); !slices.Equal(got, []string{"sy", "sx"}) {
				t.Errorf("without: %v", got)
			}
		},
		"limit": func(t *testing.T, w *harness) {
			two(w)
			if got, next := list(t, w, sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: 1}}); len(got) != 1 || next == "" {
				t.Errorf("one: %v, next %q", got, next)
			}
		},
		"cursor": func(t *testing.T, w *harness) {
			two(w)
			_, next := list(t, w, sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: 1}})
			if got, next := list(t, w, sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: 1, Cursor: next}}); !slices.Equal(got, []string{"sx"}) || next != "" {
				t.Errorf("the second: %v, next %q", got, next)
			}
		},
	})
	everyField[sandbox.RestoreRequest](t, map[string]func(*testing.T, *harness){
		"snapshot": func(t *testing.T, w *harness) {
			sx, sy := two(w)
			if got := w.restore("x", sandbox.RestoreRequest{Snapshot: "sy"}); got.Snapshot != sy.ID || got.ID != sx.SandboxID || got.Name != "x" {
				t.Errorf("restored %+v", got)
			}
			if again := w.snapshot("x", ""); again.ParentID != sy.ID {
				t.Errorf("the next snapshot is %+v", again)
			}
			w.agree()
		},
		"step": func(t *testing.T, w *harness) {
			w.create(sandbox.CreateRequest{Name: "x", History: 2})
			for i := range 3 {
				w.shell("x", fmt.Sprintf("echo %d > file", i))
			}
			for _, c := range []struct {
				step int
				want string
			}{{-1, "1"}, {-2, "0"}, {-1, "1"}} {
				w.restore("x", sandbox.RestoreRequest{Step: c.step})
				f, err := w.ReadFile(asRed(t), "x", sandbox.ReadFileRequest{Path: "file"})
				must(t, err)
				var b [10]byte
				n, _ := f.Read(b[:])
				_ = f.Close()
				if got := strings.TrimSpace(string(b[:n])); got != c.want {
					t.Errorf("step %d has %q, want %q", c.step, got, c.want)
				}
			}
			_, err := w.RestoreSnapshot(asRed(t), "x", sandbox.RestoreRequest{Step: -3})
			wantCode(t, err, sandbox.CodeNotFound)
			w.agree()
		},
	})
	everyField[sandbox.ResumeRequest](t, map[string]func(*testing.T, *harness){
		"files_only": func(t *testing.T, w *harness) {
			sbx := w.create(sandbox.CreateRequest{})
			for _, only := range []bool{false, true} {
				w.pause(sbx.ID)
				_, err := w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{FilesOnly: only})
				must(t, err)
				if spec, _ := w.state.Spec(w.record(sbx.ID).Instance); spec.FilesOnly != only {
					t.Errorf("resumed as %+v", spec)
				}
			}
		},
	})
}

func TestSnapshotsLive(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	w.shell("x", "echo kept > file")
	first := w.snapshot("x", "first")
	w.pause("x")
	second := w.snapshot("x", "second") // of a paused one, without new work
	if n := w.state.Calls(memory.StepCheckpoint); n != 2 || w.get("x").State != sandbox.StatePaused {
		t.Errorf("%d checkpoints were made, it is %s", n, w.get("x").State)
	}
	// They outlive their sandbox, and its record.
	_, err := w.Kill(asRed(t), "x")
	must(t, err)
	w.agree()
	must(t, w.store.DeleteSandbox(t.Context(), sbx.ID))
	list, err := w.ListSnapshots(asRed(t), sandbox.ListSnapshotsRequest{Sandbox: sbx.ID})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("of a sandbox that is long gone there are %+v, %v", list, err)
	}
	for _, ref := range []string{"sbx-never", "x"} {
		_, err = w.ListSnapshots(asRed(t), sandbox.ListSnapshotsRequest{Sandbox: ref})
		wantCode(t, err, sandbox.CodeNotFound)
	}
	_, err = w.ListSnapshots(as(t.Context(), "blue"), sandbox.ListSnapshotsRequest{Sandbox: sbx.ID})
	wantCode(t, err, sandbox.CodeNotFound)
	a, b := w.create(sandbox.CreateRequest{Snapshot: "first"}), w.create(sandbox.CreateRequest{Snapshot: second.ID})
	// What was made from them outlives them.
	for _, ref := range []string{"first", second.ID} {
		gone, err := w.DeleteSnapshot(asRed(t), ref)
		must(t, err)
		if gone.SandboxID != sbx.ID {
			t.Errorf("deleted %+v", gone)
		}
		_, err = w.GetSnapshot(asRed(t), ref)
		wantCode(t, err, sandbox.CodeNotFound)
		_, err = w.DeleteSnapshot(asRed(t), ref)
		wantCode(t, err, sandbox.CodeNotFound)
	}
	w.agree()
	for _, s := range []*sandbox.Sandbox{a, b} {
		if got := w.shell(s.ID, "cat file"); got != "kept" {
			t.Errorf("it has %q", got)
		}
	}
	w.restart()
	w.agree()
	_, err = w.RestoreSnapshot(asRed(t), a.ID, sandbox.RestoreRequest{Snapshot: first.ID})
	wantCode(t, err, sandbox.CodeNotFound)
	want := []string{
		"key-red sandbox.create", "key-red job.start", "key-red snapshot.create", "key-red sandbox.pause", "key-red snapshot.create",
		"key-red sandbox.kill", "key-red snapshot.delete", "key-red snapshot.delete",
	}
	if got := w.events(sbx.ID); !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}

func TestSnapshotQuota(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota.Snapshots = 1 })
	w.create(sandbox.CreateRequest{Name: "x", History: 3})
	w.snapshot("x", "one")
	_, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	w.agree()
	w.shell("x", "true") // steps do not count
	w.agree()
	_, err = w.DeleteSnapshot(asRed(t), "one")
	must(t, err)
	w.snapshot("x", "two")
	w.agree()
}

func TestSnapshotFailures(t *testing.T) {
	boom := errors.New("boom at /secret")
	for name, set := range map[string]func(*harness){
		"before":       func(w *harness) { w.state.Fail(memory.StepCheckpoint, memory.Before, boom) },
		"lost":         func(w *harness) { w.state.Fail(memory.StepCheckpoint, memory.After, boom) },
		"not recorded": func(w *harness) { w.at("CreateSnapshot", func() error { return boom }) },
	} {
		t.Run(name, func(t *testing.T) {
			w := mortalHarness(t)
			w.create(sandbox.CreateRequest{Name: "x", History: 1})
			for _, call := range []func() error{
				func() error { _, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{}); return err },
				// A command that could not be undone does not run.
				func() error {
					_, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "echo > ran"}, nil)
					return err
				},
			} {
				set(w)
				err := call()
				wantCode(t, err, sandbox.CodeInternal)
				w.agree()
			}
			if got := w.shell("x", "ls"); got != "" {
				t.Errorf("there is %q", got)
			}
			w.agree()
		})
	}
}

// TestRestoreFailures restores in place: a failure leaves the old state, with the
// command that runs in it.
func TestRestoreFailures(t *testing.T) {
	boom := errors.New("boom at /secret")
	for _, c := range []struct {
		name   string
		paused bool
		set    func(*harness)
		want   sandbox.State
		code   sandbox.Code
	}{
		{"before", false, func(w *harness) { w.state.Fail(memory.StepCreate, memory.Before, boom) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"not recorded", false, func(w *harness) { w.at("UpdateSandbox", func() error { return boom }) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"paused", true, func(w *harness) { w.state.Fail(memory.StepCreate, memory.Before, boom) }, sandbox.StatePaused, sandbox.CodeInternal},
		{"killed", false, func(w *harness) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error { _, err := w.Kill(asRed(w.t), "x"); return err })
		}, sandbox.StateKilled, sandbox.CodeNotRunning},
		{"paused and killed", true, func(w *harness) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error { _, err := w.Kill(asRed(w.t), "x"); return err })
		}, sandbox.StateKilled, sandbox.CodeNotRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			sbx := w.create(sandbox.CreateRequest{Name: "x"})
			w.snapshot("x", "s")
			w.shell("x", "echo later > file")
			job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "sleep 300", Background: true}, nil)
			must(t, err)
			if c.paused {
				w.pause("x")
			}
			c.set(w)
			_, err = w.RestoreSnapshot(asRed(t), "x", sandbox.RestoreRequest{Snapshot: "s"})
			wantCode(t, err, c.code)
			got := w.waitState(sbx.ID, c.want)
			if got.Snapshot != "" {
				t.Errorf("the record says %+v", got)
			}
			w.agree()
			if c.want.Final() {
				return
			}
			if got := w.shell("x", "cat file"); got != "later" {
				t.Errorf("the file holds %q", got)
			}
			if c.paused {
				return
			}
			if j, err := w.GetJob(asRed(t), "x", job.ID); err != nil || j.State != sandbox.JobRunning {
				t.Errorf("the command that ran is %+v, %v", j, err)
			}
			w.restore("x", sandbox.RestoreRequest{Snapshot: "s"})
			if got := w.shell("x", "ls"); got != "" {
				t.Errorf("restored, there is %q", got)
			}
			w.agree()
		})
	}
}

// TestRestoreKeeps restores the state of another sandbox with other limits and
// environment: the sandbox's own stay.
func TestRestoreKeeps(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "other", Env: map[string]string{"A": "other"}, Resources: sandbox.Resources{VCPUs: 4, MemoryMiB: 444}})
	w.shell("other", "echo other > file")
	snap := w.snapshot("other", "s")
	sbx := w.create(sandbox.CreateRequest{
		Name: "x", Env: map[string]string{"A": "mine"}, Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 222}, OnTimeout: sandbox.ActionPause,
	})
	w.pause("x")
	before := w.get("x")
	got := w.restore("x", sandbox.RestoreRequest{Snapshot: "s"})
	if got.ID != sbx.ID || got.State != sandbox.StateRunning || got.Resources.VCPUs != 2 || got.Snapshot != snap.ID || !got.ExpiresAt.After(*before.ExpiresAt) {
		t.Errorf("restored %+v", got)
	}
	if got := w.shell("x", "cat file; echo $A"); got != "other\nmine" {
		t.Errorf("it has %q", got)
	}
	spec, _ := w.state.Spec(w.record(sbx.ID).Instance)
	if spec.Resources.VCPUs != 2 || spec.Resources.MemoryMiB != 222 || spec.Hostname != "x" {
		t.Errorf("the machine is %+v", spec)
	}
	// The restored sandbox gets new random numbers, and does not take over the other's
	// index among forks.
	if spec.Fork == nil || spec.Fork.Count != 0 {
		t.Errorf("it is taken for the sandbox of the snapshot: %+v", spec.Fork)
	}
	w.snapshot("x", "own")
	w.restore("x", sandbox.RestoreRequest{Snapshot: "own"})
	if spec, _ := w.state.Spec(w.record(sbx.ID).Instance); spec.Fork != nil {
		t.Errorf("restored from its own snapshot it is taken for another: %+v", spec.Fork)
	}
	w.agree()
	if got := w.events(sbx.ID); !slices.Contains(got, "key-red sandbox.restore") {
		t.Errorf("recorded %v", got)
	}
}

func TestHistory(t *testing.T) {
	w := newHarness(t)
	_, err := w.RestoreSnapshot(asRed(t), w.create(sandbox.CreateRequest{}).ID, sandbox.RestoreRequest{Step: -1})
	wantCode(t, err, sandbox.CodeNotFound)
	w.create(sandbox.CreateRequest{Name: "x", History: 3})
	labels := func() (all []string) {
		for _, s := range w.steps("x") {
			all = append(all, s.Label)
			if !s.Automatic || s.Name != "" || s.Kind != sandbox.SnapshotMemory {
				t.Errorf("a step is %+v", s)
			}
		}
		return all
	}
	for _, p := range []string{"true", "/bin/echo", "ls", "pwd"} {
		_, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Command: []string{p, "S3CRET"}}, nil)
		if p != "pwd" && p != "ls" && p != "true" {
			must(t, err)
		}
	}
	_, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true", Background: true}, nil)
	must(t, err)
	_, err = w.WriteFile(asRed(t), "x", sandbox.WriteFileRequest{Path: "f"}, strings.NewReader(""))
	must(t, err)
	if got, want := labels(), []string{"before pwd", "before ls", "before echo"}; !slices.Equal(got, want) {
		t.Errorf("steps are %v, want %v", got, want)
	}
	_, err = w.Exec(sandbox.WithFollowed(asRed(t)), "x", sandbox.ExecRequest{Command: []string{"date"}, Background: true}, nil)
	must(t, err)
	if got, want := labels(), []string{"before date", "before pwd", "before ls"}; !slices.Equal(got, want) {
		t.Errorf("after a command that is followed the steps are %v, want %v", got, want)
	}
	w.agree()
	w.restart()
	w.shell("x", "true") // counts on
	if got, want := labels(), []string{"before shell", "before date", "before pwd"}; !slices.Equal(got, want) {
		t.Errorf("after a restart the steps are %v, want %v", got, want)
	}
	for _, n := range []int{2, 0} {
		_, err = w.Update(asRed(t), "x", sandbox.UpdateRequest{History: &n})
		must(t, err)
		if got := labels(); len(got) != n {
			t.Errorf("with %d the steps are %v", n, got)
		}
		w.agree()
	}
	w.shell("x", "true")
	if got := labels(); len(got) != 0 {
		t.Errorf("without a history there are the steps %v", got)
	}
	_, err = w.Update(asRed(t), "x", sandbox.UpdateRequest{History: ptr(5)})
	must(t, err)
	w.shell("x", "true")
	step := w.steps("x")[0]
	kept := w.create(sandbox.CreateRequest{Snapshot: step.ID})
	_, err = w.Kill(asRed(t), "x")
	must(t, err)
	w.agree()
	if _, err := w.GetSnapshot(asRed(t), step.ID); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a step outlives its sandbox: %v", err)
	}
	w.shell(kept.ID, "true")
}

// TestTimeouts lets lifetimes and idle times pass, of running and of paused
// sandboxes.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		name   string
		action sandbox.TimeoutAction
		paused bool
		idle   bool
		want   sandbox.State
		event  string
	}{
		{"lifetime, kill", sandbox.ActionKill, false, false, sandbox.StateKilled, "system sandbox.expire"},
		{"lifetime, pause", sandbox.ActionPause, false, false, sandbox.StatePaused, "system sandbox.pause"},
		{"lifetime of a paused one, kill", sandbox.ActionKill, true, false, sandbox.StateKilled, "system sandbox.expire"},
		{"lifetime of a paused one, pause", sandbox.ActionPause, true, false, sandbox.StatePaused, ""},
		{"idle, kill", sandbox.ActionKill, false, true, sandbox.StateKilled, "system sandbox.expire"},
		{"idle, pause", sandbox.ActionPause, false, true, sandbox.StatePaused, "system sandbox.pause"},
		{"idle of a paused one, kill", sandbox.ActionKill, true, true, sandbox.StatePaused, ""},
		{"idle of a paused one, pause", sandbox.ActionPause, true, true, sandbox.StatePaused, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHarness(t)
			req := sandbox.CreateRequest{OnTimeout: c.action, LifetimeSeconds: ptr(int64(2000))}
			if c.idle {
				req = sandbox.CreateRequest{OnTimeout: c.action, IdleTimeoutSeconds: ptr(int64(1)), LifetimeSeconds: ptr(int64(0))}
			}
			sbx := w.create(req)
			if c.paused {
				w.pause(sbx.ID)
			}
			w.ago(sbx.ID, time.Hour)
			must(t, w.Expire(t.Context(), sbx.ID))
			if got := w.get(sbx.ID).State; got != c.want {
				t.Errorf("it is %s, want %s", got, c.want)
			}
			w.agree()
			if c.event != "" && !slices.Contains(w.events(sbx.ID), c.event) {
				t.Errorf("recorded %v, want %s", w.events(sbx.ID), c.event)
			}
			if c.want != sandbox.StatePaused || c.idle {
				return
			}
			// The lifetime starts again.
			w.shell(sbx.ID, "true")
			left := time.Until(*w.get(sbx.ID).ExpiresAt)
			if left < 1900*time.Second || left > 2000*time.Second {
				t.Errorf("after the resume %s are left", left)
			}
		})
	}
}

// TestLifetimeGoesOn pauses and resumes a sandbox that is killed at the end of its
// lifetime: a pause does not prolong it.
func TestLifetimeGoesOn(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{LifetimeSeconds: ptr(int64(2000))})
	w.pause(sbx.ID)
	w.shell(sbx.ID, "true")
	if got := w.get(sbx.ID); !got.ExpiresAt.Equal(*sbx.ExpiresAt) {
		t.Errorf("it expires at %s, was to at %s", got.ExpiresAt, sbx.ExpiresAt)
	}
}
