package service

import (
	"context"
	"errors"
	"reflect"
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

// mortalHarness returns a harness in which a test can act between two changes.
func mortalHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	return (&harness{mortal: &mortality{}}).begin(t, change...)
}

// at calls f once, before the next change with a name; its error becomes the change's.
func (w *harness) at(name string, f func() error) {
	w.mortal.mu.Lock()
	defer w.mortal.mu.Unlock()
	w.mortal.before = func(change string) error {
		if change != name {
			return nil
		}
		w.mortal.mu.Lock()
		w.mortal.before = nil
		w.mortal.mu.Unlock()
		return f()
	}
}

func (w *harness) pause(ref string) *sandbox.Sandbox {
	w.t.Helper()
	sbx, err := w.Pause(asRed(w.t), ref)
	must(w.t, err)
	return sbx
}

// events lists the audit events of a sandbox, oldest first.
func (w *harness) events(id string) (all []string) {
	w.t.Helper()
	list, err := w.Audit(asRed(w.t), sandbox.AuditRequest{SandboxID: id})
	must(w.t, err)
	for _, e := range list.Items {
		all = append(all, strings.TrimSpace(e.KeyID+" "+e.Action+" "+string(e.Code)))
	}
	slices.Reverse(all)
	return all
}

func TestPauseAndResume(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	w.shell("x", "echo kept > file")
	for range 2 { // pausing a paused one is no error
		got := w.pause("x")
		if got.State != sandbox.StatePaused || got.PausedAt == nil || got.ID != sbx.ID || got.LastActiveAt.Before(sbx.LastActiveAt) {
			t.Fatalf("paused %+v", got)
		}
	}
	if n := w.state.Calls(memory.StepCheckpoint); n != 1 {
		t.Errorf("%d checkpoints were made, want 1", n)
	}
	w.agree()
	for range 2 { // resuming a running one neither
		got, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{})
		must(t, err)
		if got.State != sandbox.StateRunning || got.PausedAt != nil || got.ID != sbx.ID || *got.StartedAt != *sbx.StartedAt {
			t.Fatalf("resumed %+v", got)
		}
	}
	w.agree()
	if got := w.shell("x", "cat file"); got != "kept" {
		t.Errorf("the file holds %q", got)
	}
	if n := len(w.kept()); n != 0 {
		t.Errorf("%d checkpoints are left", n)
	}
	_, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{FilesOnly: true})
	wantCode(t, err, sandbox.CodeConflict)
	w.pause("x")
	_, err = w.Resume(asRed(t), "x", sandbox.ResumeRequest{FilesOnly: true})
	must(t, err)
	if spec, _ := w.state.Spec(w.record(sbx.ID).Instance); !spec.FilesOnly || spec.Hostname != "x" {
		t.Errorf("resumed as %+v", spec)
	}
	w.pause("x")
	_, err = w.Kill(asRed(t), "x")
	must(t, err)
	w.agree()
	for _, f := range []func() error{
		func() error { _, err := w.Pause(asRed(t), "x"); return err },
		func() error { _, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{}); return err },
		func() error { _, err := w.Fork(asRed(t), "x", sandbox.ForkRequest{}); return err },
		func() error { _, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{}); return err },
	} {
		wantCode(t, f(), sandbox.CodeNotRunning)
	}
	want := []string{
		"key-red sandbox.create", "key-red job.start", "key-red sandbox.pause", "key-red sandbox.pause", "system sandbox.resumed",
		"key-red sandbox.resume", "key-red sandbox.resume", "key-red job.start", "key-red sandbox.resume conflict", "key-red sandbox.pause",
		"system sandbox.resumed", "key-red sandbox.resume", "key-red sandbox.pause", "key-red sandbox.kill", "key-red sandbox.pause not_running",
		"key-red sandbox.resume not_running", "key-red sandbox.fork not_running", "key-red snapshot.create not_running",
	}
	got := w.events(sbx.ID)
	// Some events are recorded at once and others a little later, so the order varies.
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// TestCallsResume calls every verb of jobs and files on a paused sandbox, and those
// that must leave it paused. The errors are expected: the sink of WatchFiles fails, a
// sandbox cannot be merged into itself, and nothing listens on the port of DialPort.
func TestCallsResume(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "other"})
	stay := []string{"Get", "Update", "Stats", "Audit", "Pause", "Fork", "CreateSnapshot", "ListSnapshots", "RestoreSnapshot", "Diff", "Merge", "Kill"}
	stay = append(stay, stayAsleep...)
	// A sandbox is not resumed just to say that it is not a computer.
	for m := range reflect.TypeFor[sandbox.Computers]().Methods() {
		stay = append(stay, m.Name)
	}
	for verb, call := range onSandbox {
		t.Run(verb, func(t *testing.T) {
			sbx := w.create(sandbox.CreateRequest{})
			w.shell(sbx.ID, "echo good > file")
			w.pause(sbx.ID)
			limit := time.Minute
			if verb == "FollowNetworkLog" {
				limit = time.Second // it ends with its caller
			}
			ctx, cancel := context.WithTimeout(asRed(t), limit)
			defer cancel()
			err := call(ctx, w, sbx.ID)
			if c := sandbox.CodeOf(err); verb != "Stats" && verb != "Merge" && verb != "WatchFiles" && verb != "DialPort" && (c == sandbox.CodeNotRunning || c == sandbox.CodeInternal || c == sandbox.CodeUnavailable) {
				t.Errorf("on a paused sandbox: %v", err)
			}
			want := sandbox.StateRunning
			switch {
			case verb == "Kill":
				want = sandbox.StateKilled
			case verb == "Stats":
				wantCode(t, err, sandbox.CodeNotRunning)
				fallthrough
			case slices.Contains(stay, verb), verb == "Try":
				want = sandbox.StatePaused
			}
			if got := w.get(sbx.ID).State; got != want {
				t.Errorf("afterwards it is %s, want %s", got, want)
			}
		})
	}
	w.agree()
}

// TestOneResume makes many calls at once on a paused sandbox.
func TestOneResume(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	w.pause("x")
	before := w.state.Calls(memory.StepCreate)
	const callers = 50
	waiting := make(chan struct{}, callers)
	w.state.Trap(memory.StepCreate, memory.Before, func(ctx context.Context) error {
		for range callers / 2 {
			<-waiting
		}
		return nil
	})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			waiting <- struct{}{}
			var err error
			switch i % 4 {
			case 0:
				_, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true"}, nil)
			case 1:
				_, err = w.StatFile(asRed(t), sbx.ID, ".")
			case 2:
				_, err = w.ListJobs(asRed(t), "x", sandbox.Page{})
			default:
				_, err = w.Resume(asRed(t), "x", sandbox.ResumeRequest{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := w.state.Calls(memory.StepCreate) - before; n != 1 {
		t.Errorf("%d instances were made, want 1", n)
	}
	w.agree()
}

// TestResumeOutlivesCaller cancels the call that has begun a resume.
func TestResumeOutlivesCaller(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.pause("x")
	ctx, cancel := context.WithCancel(asRed(t))
	w.state.Trap(memory.StepCreate, memory.Before, func(inner context.Context) error { cancel(); return inner.Err() })
	_, err := w.StatFile(ctx, "x", ".")
	wantCode(t, err, sandbox.CodeCancelled)
	w.waitState("x", sandbox.StateRunning)
	w.agree()
}

func TestCloseDuringResume(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.pause("x")
	inside := make(chan struct{})
	w.state.Trap(memory.StepCreate, memory.After, func(ctx context.Context) error { close(inside); <-ctx.Done(); return ctx.Err() })
	resumed := make(chan error, 1)
	go func() { _, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{}); resumed <- err }()
	<-inside
	w.restart()
	if err := <-resumed; err == nil {
		t.Error("the resume succeeded")
	}
	w.agree()
	if got := w.get("x").State; got != sandbox.StatePaused {
		t.Errorf("it is %s", got)
	}
}

func TestPauseFailures(t *testing.T) {
	waitForNotice(t)
	boom := errors.New("disk on fire at /secret/path")
	for _, c := range []struct {
		name string
		set  func(*harness)
		want sandbox.State
		code sandbox.Code
	}{
		{"not written", func(w *harness) { w.state.Fail(memory.StepCheckpoint, memory.Before, boom) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"lost reply", func(w *harness) { w.state.Fail(memory.StepCheckpoint, memory.After, boom) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"not recorded", func(w *harness) { w.state.Fail(memory.StepCommit, memory.Before, boom) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"with a reason", func(w *harness) {
			w.state.Fail(memory.StepCheckpoint, memory.Before, sandbox.Errorf(sandbox.CodeUnavailable, "the disk is full; delete something"))
		}, sandbox.StateRunning, sandbox.CodeUnavailable},
		{"store fails", func(w *harness) { w.at("UpdateSandbox", func() error { return boom }) }, sandbox.StateRunning, sandbox.CodeInternal},
		{"killed meanwhile", func(w *harness) {
			w.state.Trap(memory.StepCheckpoint, memory.After, func(context.Context) error { _, err := w.Kill(asRed(w.t), "x"); return err })
		}, sandbox.StateKilled, sandbox.CodeNotRunning},
		{"killed at the record", func(w *harness) {
			w.state.Trap(memory.StepCommit, memory.Before, func(context.Context) error { _, err := w.Kill(asRed(w.t), "x"); return err })
		}, sandbox.StateKilled, sandbox.CodeNotRunning},
		{"dies meanwhile", func(w *harness) {
			w.state.Trap(memory.StepCheckpoint, memory.Before, func(context.Context) error {
				must(w.t, w.state.Kill(w.record(w.get("x").ID).Instance, "out of memory"))
				w.waitState("x", sandbox.StateFailed)
				return nil
			})
		}, sandbox.StateFailed, sandbox.CodeNotRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			sbx := w.create(sandbox.CreateRequest{Name: "x"})
			w.shell("x", "echo kept > file")
			c.set(w)
			_, err := w.Pause(asRed(t), "x")
			wantCode(t, err, c.code)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the cause shows: %q", err)
			}
			if got := w.get(sbx.ID).State; got != c.want {
				t.Errorf("it is %s, want %s", got, c.want)
			}
			w.agree()
			if c.want != sandbox.StateRunning {
				return
			}
			if got := w.shell("x", "cat file"); got != "kept" {
				t.Errorf("the file holds %q", got)
			}
			w.pause("x")
			w.agree()
		})
	}
}

// TestPauseLeavesInstance has an engine that fails to end the instance. The sandbox is
// paused all the same, and the next start removes the rest.
func TestPauseLeavesInstance(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	if got := w.pause("x"); got.State != sandbox.StatePaused {
		t.Fatalf("it is %s", got.State)
	}
	if n := len(w.state.IDs()); n != 1 {
		t.Fatalf("%d instances are left, want 1", n)
	}
	w.restart()
	w.agree()
	w.shell("x", "true")
	w.agree()
}

// TestPauseDuringCall pauses while a command runs and while a file is watched:
// the calls end and say why.
func TestPauseDuringCall(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	ended := make(chan error, 2)
	started := make(chan struct{})
	var once sync.Once
	go func() {
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "sleep 300"}, func(sandbox.JobEvent) error {
			once.Do(func() { close(started) })
			return nil
		})
		ended <- err
	}()
	<-started
	job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "sleep 300", Background: true}, nil)
	must(t, err)
	attached := make(chan struct{})
	go func() {
		var first sync.Once
		_, err := w.Attach(asRed(t), "x", job.ID, sandbox.AttachRequest{}, func(sandbox.JobEvent) error {
			first.Do(func() { close(attached) })
			return nil
		})
		ended <- err
	}()
	<-attached
	w.pause("x")
	for range 2 {
		err := <-ended
		// The end of the fake's process may arrive first.
		if err == nil {
			continue
		}
		wantCode(t, err, sandbox.CodeNotRunning)
		if m := err.Error(); !strings.Contains(m, "paused") || !strings.Contains(m, "resume") {
			t.Errorf("the call ended with %q", m)
		}
	}
	w.agree()
}

func TestResumeFailures(t *testing.T) {
	boom := errors.New("boom at /secret")
	for _, c := range []struct {
		name string
		set  func(*harness)
		want sandbox.State
		code sandbox.Code
	}{
		{"before", func(w *harness) { w.state.Fail(memory.StepCreate, memory.Before, boom) }, sandbox.StatePaused, sandbox.CodeInternal},
		{"store fails", func(w *harness) { w.at("UpdateSandbox", func() error { return boom }) }, sandbox.StatePaused, sandbox.CodeInternal},
		{"killed meanwhile", func(w *harness) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error { _, err := w.Kill(asRed(w.t), "x"); return err })
		}, sandbox.StateKilled, sandbox.CodeNotRunning},
		{"being killed", func(w *harness) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error {
				w.state.Fail(memory.StepDestroy, memory.Before, boom)
				_, err := w.Kill(asRed(w.t), "x")
				wantCode(w.t.(*testing.T), err, sandbox.CodeUnavailable)
				return nil
			})
		}, sandbox.StateStopping, sandbox.CodeNotRunning},
		{"dies at once", func(w *harness) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error {
				id := w.state.IDs()[0]
				must(w.t, w.state.Kill(id, "out of memory"))
				wait(w.t, func() bool { return len(w.state.IDs()) == 0 }, func() string { return "the dead instance stays" })
				return nil
			})
		}, sandbox.StatePaused, sandbox.CodeUnavailable},
		{"dies as it is recorded", func(w *harness) {
			w.at("UpdateSandbox", func() error { return w.state.Kill(w.state.IDs()[0], "out of memory") })
		}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := mortalHarness(t)
			sbx := w.create(sandbox.CreateRequest{Name: "x"})
			w.shell("x", "echo kept > file")
			w.pause("x")
			c.set(w)
			_, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{})
			if c.code != "" {
				wantCode(t, err, c.code)
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the cause shows: %q", err)
				}
			}
			if c.want == "" { // either, but nothing in between
				w.agree()
				return
			}
			w.waitState(sbx.ID, c.want)
			if c.want == sandbox.StateStopping {
				_, err := w.Kill(asRed(t), sbx.ID)
				must(t, err)
			}
			w.agree()
			if c.want == sandbox.StatePaused {
				if got := w.shell("x", "cat file"); got != "kept" {
					t.Errorf("the file holds %q", got)
				}
				w.agree()
			}
		})
	}
}

// TestStaleCall has a call that finds a sandbox running, but when it connects, the
// sandbox is paused or has another instance. The call must not take that for the
// sandbox's end.
func TestStaleCall(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *harness)
	}{
		{"paused", func(w *harness) { w.pause("x") }},
		{"paused and resumed", func(w *harness) {
			w.pause("x")
			_, err := w.Resume(asRed(w.t), "x", sandbox.ResumeRequest{})
			must(w.t, err)
		}},
		{"restored", func(w *harness) {
			_, err := w.RestoreSnapshot(asRed(w.t), "x", sandbox.RestoreRequest{Snapshot: "s"})
			must(w.t, err)
		}},
	} {
		for _, dropped := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				w := newHarness(t)
				sbx := w.create(sandbox.CreateRequest{Name: "x"})
				_, err := w.CreateSnapshot(asRed(t), "x", sandbox.CreateSnapshotRequest{Name: "s"})
				must(t, err)
				r := w.record(sbx.ID)
				c.then(w)
				if dropped {
					w.drop(sbx.ID, errors.New("test"))
				}
				if _, err := w.openRecord(t.Context(), &r); err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal {
					t.Error(err)
				}
				if got := w.get(sbx.ID); got.State.Final() {
					t.Fatalf("a call has ended the sandbox: %s, %s", got.State, got.Reason)
				}
				w.shell("x", "true")
				w.agree()
			})
		}
	}
}

// TestLateFailure has the engine report the end of an instance that the sandbox no
// longer has.
func TestLateFailure(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	r := w.record(sbx.ID)
	w.pause("x")
	w.shell("x", "true")
	w.fail(t.Context(), &r, "the old machine ended")
	if got := w.get("x").State; got != sandbox.StateRunning {
		t.Errorf("it is %s", got)
	}
	w.agree()
}

func TestResumeQuota(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{VCPUs: 2} })
	w.create(sandbox.CreateRequest{Name: "x", Resources: sandbox.Resources{VCPUs: 2}})
	w.pause("x")
	other := w.create(sandbox.CreateRequest{})
	_, err := w.Resume(asRed(t), "x", sandbox.ResumeRequest{})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.RetryAfter <= 0 {
		t.Error("the refusal does not say when to retry")
	}
	_, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	w.agree()
	_, err = w.Kill(asRed(t), other.ID)
	must(t, err)
	w.shell("x", "true")
	w.agree()
}

// TestUpdatePaused changes a paused sandbox, which stays paused and has the changes
// when it is resumed.
func TestUpdatePaused(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x", Env: map[string]string{"A": "1"}, History: 3})
	w.shell("x", "true")
	w.pause("x")
	got, err := w.Update(asRed(t), "x", sandbox.UpdateRequest{
		Name: ptr("y"), Metadata: map[string]string{"m": "1"}, Env: map[string]string{"B": "2"}, VCPUs: ptr(3), MemoryMiB: ptr(int64(333)), MaxPIDs: ptr(int64(33)),
		LifetimeSeconds: ptr(int64(50)), IdleTimeoutSeconds: ptr(int64(5)), OnTimeout: ptr(sandbox.ActionPause), History: ptr(0),
	})
	must(t, err)
	if got.State != sandbox.StatePaused || got.Name != "y" || got.Resources.VCPUs != 3 || got.History != 0 || got.IdleTimeoutSeconds != 5 {
		t.Fatalf("updated %+v", got)
	}
	if n := len(w.steps("y")); n != 0 {
		t.Errorf("%d steps are left", n)
	}
	w.agree()
	if got := w.shell("y", `echo "[$A$B]"`); got != "[2]" {
		t.Errorf("the environment is %q", got)
	}
	spec, _ := w.state.Spec(w.record(sbx.ID).Instance)
	want := sandbox.Resources{VCPUs: 3, MemoryMiB: 333, MaxPIDs: 33, DiskMiB: sbx.Resources.DiskMiB}
	if spec.Resources != want || spec.Hostname != "y" {
		t.Errorf("resumed with %+v", spec)
	}
	w.agree()
}

// TestPausedLifetime ends sandboxes that stay paused, and no others.
func TestPausedLifetime(t *testing.T) {
	w := newHarness(t)
	pause := func(req sandbox.CreateRequest) *sandbox.Sandbox {
		sbx := w.create(req)
		sbx, err := w.Pause(asRed(t), sbx.ID)
		must(t, err)
		return sbx
	}
	over := func(id string) { // makes the paused lifetime end
		_, err := w.store.UpdateSandbox(t.Context(), id, store.Change{Apply: func(r *store.Record) error {
			r.PausedExpiresAt = ptr(time.Now().Add(-time.Second))
			return nil
		}})
		must(t, err)
	}
	long := int64(3600)
	a := pause(sandbox.CreateRequest{Name: "a", PausedLifetimeSeconds: long, OnTimeout: sandbox.ActionPause})
	b := pause(sandbox.CreateRequest{Name: "b"})
	if a.PausedExpiresAt.Sub(*a.PausedAt) != time.Hour || b.PausedExpiresAt != nil {
		t.Errorf("they end at %v and %v", a.PausedExpiresAt, b.PausedExpiresAt)
	}
	for _, sbx := range []*sandbox.Sandbox{a, b} {
		must(t, w.Expire(t.Context(), sbx.ID))
		if got := w.get(sbx.ID); got.State != sandbox.StatePaused {
			t.Errorf("%s is %s", sbx.Name, got.State)
		}
	}
	// If the sandbox is paused, the time counts from the update.
	u, err := w.Update(asRed(t), "b", sandbox.UpdateRequest{PausedLifetimeSeconds: &long})
	must(t, err)
	if left := time.Until(*u.PausedExpiresAt); left < 3500*time.Second || left > 3600*time.Second {
		t.Errorf("%v are left after the update", left)
	}
	if u, err = w.Update(asRed(t), "b", sandbox.UpdateRequest{PausedLifetimeSeconds: ptr(int64(0))}); err != nil || u.PausedExpiresAt != nil {
		t.Errorf("without a bound: %+v, %v", u, err)
	}
	// A resume ends the count, and the next pause begins another. A fork has its own
	// count.
	_, err = w.Update(asRed(t), "b", sandbox.UpdateRequest{PausedLifetimeSeconds: &long})
	must(t, err)
	over(b.ID)
	r, err := w.Resume(asRed(t), "b", sandbox.ResumeRequest{})
	must(t, err)
	if r.PausedExpiresAt != nil {
		t.Error("a running sandbox has an end of its pause")
	}
	must(t, w.Expire(t.Context(), b.ID))
	if got := w.get("b"); got.State != sandbox.StateRunning {
		t.Fatalf("the resumed one is %s", got.State)
	}
	if child := w.fork("b", sandbox.ForkRequest{})[0]; child.PausedLifetimeSeconds != long || child.PausedExpiresAt != nil {
		t.Errorf("the child: %+v", child)
	}
	over(a.ID)
	w.restart()
	must(t, w.Expire(t.Context(), a.ID))
	if got := w.get(a.ID); got.State != sandbox.StateKilled || got.Reason != "it was paused for 1h0m0s" {
		t.Errorf("after its time: %s, %s", got.State, got.Reason)
	}
	w.agree()
}
