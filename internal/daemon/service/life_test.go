package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

func TestCreateExecKill(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "work"})
	if sbx.State != sandbox.StateRunning || sbx.StartedAt == nil || !strings.HasPrefix(sbx.ID, "sbx-") || len(sbx.Unenforced) == 0 {
		t.Fatalf("created %+v", sbx)
	}
	var out strings.Builder
	job, err := w.Exec(asRed(t), "work", sandbox.ExecRequest{Command: []string{"echo", "hi"}}, func(e sandbox.JobEvent) error {
		out.Write(e.Data)
		return nil
	})
	must(t, err)
	if job.ExitCode != 0 || out.String() != "hi\n" || job.SandboxID != sbx.ID || job.EndedAt == nil {
		t.Fatalf("job %+v printed %q", job, out.String())
	}
	for range 2 {
		killed, err := w.Kill(asRed(t), sbx.ID)
		must(t, err)
		if killed.State != sandbox.StateKilled || killed.EndedAt == nil || killed.Reason != "killed by key-red" {
			t.Fatalf("killed %+v", killed)
		}
	}
	w.agree()
	_, err = w.Exec(asRed(t), "work", sandbox.ExecRequest{Command: []string{"true"}}, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
	if m := err.Error(); !strings.Contains(m, "killed by key-red") || !strings.Contains(m, "create a new one") {
		t.Errorf("after a kill: %q", m)
	}
	// The name is free again.
	if again := w.create(sandbox.CreateRequest{Name: "work"}); again.ID == sbx.ID {
		t.Error("an id was used twice")
	}
}

func TestDefaults(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Lifetime, c.IdleTimeout = 2*time.Hour, 5*time.Minute })
	plain := w.create(sandbox.CreateRequest{})
	want := sandbox.Sandbox{
		Team: "red", Namespace: "default", Template: "host", State: sandbox.StateRunning,
		Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 1024, DiskMiB: 4096, MaxPIDs: 512},
		User:      "root", WorkDir: "/", LifetimeSeconds: 7200, IdleTimeoutSeconds: 300, OnTimeout: sandbox.ActionKill,
		Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen},
	}
	ignore := cmp.FilterPath(func(p cmp.Path) bool {
		switch p.String() {
		case "ID", "CreatedAt", "StartedAt", "LastActiveAt", "ExpiresAt", "Unenforced":
			return true
		}
		return false
	}, cmp.Ignore())
	if diff := cmp.Diff(want, *plain, ignore); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if got := plain.ExpiresAt.Sub(plain.CreatedAt); got != 2*time.Hour {
		t.Errorf("expires after %v", got)
	}
	full := w.create(sandbox.CreateRequest{Template: "full", Env: map[string]string{"A": "mine"}, LifetimeSeconds: ptr(int64(0)), IdleTimeoutSeconds: ptr(int64(0))})
	want.Template, want.User, want.WorkDir, want.LifetimeSeconds, want.IdleTimeoutSeconds = "full", "user", "/workspace", 0, 0
	want.Resources, want.Env = sandbox.Resources{VCPUs: 3, MemoryMiB: 300, DiskMiB: 3000, MaxPIDs: 333}, map[string]string{"A": "mine"}
	if diff := cmp.Diff(want, *full, ignore); diff != "" || full.ExpiresAt != nil {
		t.Errorf("expires %v, differs (-want +got):\n%s", full.ExpiresAt, diff)
	}
	spec, _ := w.state.Spec(full.ID)
	if diff := cmp.Diff(map[string]string{"A": "mine", "LANG": "C.UTF-8"}, spec.Env); diff != "" {
		t.Errorf("environment differs (-want +got):\n%s", diff)
	}
}

func TestConcurrentCreatesOfOneName(t *testing.T) {
	w := newHarness(t)
	const n = 8
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := w.Create(asRed(t), sandbox.CreateRequest{Name: "one"})
			errs <- err
		}()
	}
	made := 0
	for range n {
		if err := <-errs; err == nil {
			made++
		} else if sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d sandboxes have the name, want 1", made)
	}
	w.agree()
}

func TestQuota(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota = store.Quota{Sandboxes: 2, VCPUs: 4} })
	w.create(sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 2}})
	_, err := w.Create(asRed(t), sandbox.CreateRequest{Resources: sandbox.Resources{VCPUs: 3}})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	second := w.create(sandbox.CreateRequest{})
	_, err = w.Create(asRed(t), sandbox.CreateRequest{})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	var e *sandbox.Error
	if errors.As(err, &e); e.RetryAfter <= 0 {
		t.Error("the refusal does not say when to retry")
	}
	_, err = w.Update(asRed(t), second.ID, sandbox.UpdateRequest{VCPUs: ptr(3)})
	wantCode(t, err, sandbox.CodeQuotaExceeded)
	if _, err := w.Create(as(t.Context(), "blue"), sandbox.CreateRequest{}); err != nil {
		t.Errorf("another team: %v", err)
	}
	_, err = w.Kill(asRed(t), second.ID)
	must(t, err)
	w.create(sandbox.CreateRequest{})
	w.agree()
}

func TestCreateFailures(t *testing.T) {
	boom := errors.New("disk on fire at /secret/path")
	for _, c := range []struct {
		name string
		set  func(w *harness, cancel func())
		code sandbox.Code
		kept bool // a failed record stays
	}{
		{"before", func(w *harness, _ func()) { w.state.Fail(memory.StepCreate, memory.Before, boom) }, sandbox.CodeInternal, true},
		{"lost reply", func(w *harness, _ func()) { w.state.Fail(memory.StepCreate, memory.After, boom) }, sandbox.CodeInternal, true},
		{"with a reason", func(w *harness, _ func()) {
			w.state.Fail(memory.StepCreate, memory.After, sandbox.Errorf(sandbox.CodeUnavailable, "no memory left on the machine; retry later"))
		}, sandbox.CodeUnavailable, true},
		{"cancelled before", func(w *harness, cancel func()) {
			w.state.Trap(memory.StepCreate, memory.Before, func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() })
		}, sandbox.CodeCancelled, false},
		{"cancelled after", func(w *harness, cancel func()) {
			w.state.Trap(memory.StepCreate, memory.After, func(ctx context.Context) error { cancel(); return nil })
		}, sandbox.CodeCancelled, false},
		{"dies at once", func(w *harness, _ func()) {
			w.state.Trap(memory.StepCreate, memory.After, func(context.Context) error {
				return w.state.Kill(w.state.IDs()[0], "out of memory")
			})
		}, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHarness(t)
			ctx, cancel := context.WithCancel(asRed(t))
			defer cancel()
			c.set(w, cancel)
			_, err := w.Create(ctx, sandbox.CreateRequest{Name: "x"})
			if c.code != "" {
				wantCode(t, err, c.code)
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the cause shows: %q", err)
				}
			}
			wait(t, func() bool { return len(w.state.IDs()) == 0 }, func() string { return "an instance is left" })
			list, err := w.List(asRed(t), sandbox.ListRequest{States: []sandbox.State{sandbox.StateFailed}})
			must(t, err)
			if kept := len(list.Items) == 1 && list.Items[0].Reason != ""; kept != c.kept {
				t.Errorf("failed records: %+v, want one: %v", list.Items, c.kept)
			}
			w.agree()
			w.create(sandbox.CreateRequest{Name: "x"})
		})
	}
}

// TestCreateCannotBeUndone makes the clean-up of a failed create fail: the record stays
// until a repair has completed it.
func TestCreateCannotBeUndone(t *testing.T) {
	w := newHarness(t)
	w.state.Fail(memory.StepCreate, memory.After, errors.New("boom"))
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("busy"))
	_, err := w.Create(asRed(t), sandbox.CreateRequest{})
	wantCode(t, err, sandbox.CodeInternal)
	ids := w.state.IDs()
	if len(ids) != 1 || !w.record(ids[0]).Held {
		t.Fatalf("instances %v, want one that the record holds", ids)
	}
	w.state.Fail(memory.StepDestroy, memory.Before, errors.New("still busy"))
	if err := w.Repair(t.Context()); err == nil {
		t.Error("a repair that failed says nothing")
	}
	must(t, w.Repair(t.Context()))
	w.agree()
}

func TestKillDuringCreate(t *testing.T) {
	w := newHarness(t)
	inside := make(chan struct{})
	w.state.Trap(memory.StepCreate, memory.After, func(ctx context.Context) error {
		close(inside)
		<-ctx.Done()
		return ctx.Err()
	})
	created := make(chan error, 1)
	go func() {
		_, err := w.Create(asRed(t), sandbox.CreateRequest{Name: "x"})
		created <- err
	}()
	<-inside
	_, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
	sbx, err := w.Kill(asRed(t), "x")
	must(t, err)
	if sbx.State != sandbox.StateKilled {
		t.Errorf("killed %+v", sbx)
	}
	wantCode(t, <-created, sandbox.CodeNotRunning)
	w.agree()
}

func TestCloseDuringCreate(t *testing.T) {
	w := newHarness(t)
	inside := make(chan struct{})
	w.state.Trap(memory.StepCreate, memory.After, func(ctx context.Context) error {
		close(inside)
		<-ctx.Done()
		return ctx.Err()
	})
	created := make(chan error, 1)
	go func() {
		_, err := w.Create(asRed(t), sandbox.CreateRequest{})
		created <- err
	}()
	<-inside
	w.restart()
	if err := <-created; err == nil {
		t.Error("the create succeeded")
	}
	w.agree()
}

func TestKillFailures(t *testing.T) {
	for _, when := range []memory.When{memory.Before, memory.After} {
		t.Run(string(when), func(t *testing.T) {
			w := newHarness(t)
			sbx := w.create(sandbox.CreateRequest{})
			w.state.Fail(memory.StepDestroy, when, errors.New("boom"))
			_, err := w.Kill(asRed(t), sbx.ID)
			wantCode(t, err, sandbox.CodeUnavailable)
			if got := w.get(sbx.ID).State; got != sandbox.StateStopping {
				t.Errorf("after a failed kill it is %s", got)
			}
			_, err = w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true"}, nil)
			wantCode(t, err, sandbox.CodeNotRunning)
			_, err = w.Kill(asRed(t), sbx.ID)
			must(t, err)
			w.agree()
		})
	}
}

func TestConcurrentKills(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got, err := w.Kill(asRed(t), sbx.ID); err != nil || got.State != sandbox.StateKilled {
				t.Errorf("Kill: %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	w.agree()
}

func TestFailure(t *testing.T) {
	waitForNotice(t)
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	started := make(chan struct{})
	var once sync.Once
	result := make(chan error, 1)
	go func() {
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "sleep 300"}, func(sandbox.JobEvent) error {
			once.Do(func() { close(started) })
			return nil
		})
		result <- err
	}()
	<-started
	must(t, w.state.Kill(sbx.ID, "it used more memory than it has"))
	err := <-result
	// The command's end may arrive before the connection breaks.
	if err != nil {
		wantCode(t, err, sandbox.CodeNotRunning)
		if !strings.Contains(err.Error(), "it used more memory than it has") {
			t.Errorf("the command's error is %q, without the reason", err)
		}
	}
	got := w.waitState(sbx.ID, sandbox.StateFailed)
	if got.Reason != "it used more memory than it has" || got.EndedAt == nil {
		t.Errorf("failed as %+v", got)
	}
	wait(t, func() bool { return len(w.state.IDs()) == 0 }, func() string { return "the instance is left" })
	w.agree()
	_, err = w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
}

func TestRestart(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "x"})
	job, err := w.Exec(asRed(t), "x", sandbox.ExecRequest{Shell: "echo one; read line; echo two $line", OpenStdin: true, Background: true}, nil)
	must(t, err)
	w.restart()
	if got := w.get("x"); got.State != sandbox.StateRunning || got.ID != sbx.ID {
		t.Fatalf("after a restart: %+v", got)
	}
	must(t, w.WriteInput(asRed(t), "x", job.ID, []byte("more\n"), false))
	var out strings.Builder
	end, err := w.Attach(asRed(t), "x", job.ID, sandbox.AttachRequest{}, func(e sandbox.JobEvent) error { out.Write(e.Data); return nil })
	must(t, err)
	if out.String() != "one\ntwo more\n" || end.State != sandbox.JobExited {
		t.Errorf("after a restart the job is %+v and printed %q", end, out.String())
	}
	must(t, w.state.Kill(sbx.ID, "boom"))
	w.waitState(sbx.ID, sandbox.StateFailed)
}

// TestReconcile prepares what crashes leave behind, and starts the daemon.
func TestReconcile(t *testing.T) {
	w := newHarness(t)
	ids := map[string]string{}
	for _, name := range []string{"running", "lost", "rebooted", "died", "creating", "stopping", "held", "updating"} {
		ids[name] = w.create(sandbox.CreateRequest{Name: name}).ID
	}
	w.stop()
	w.open()
	set := func(name string, f func(*store.Record)) {
		_, err := w.store.UpdateSandbox(t.Context(), ids[name], store.Change{Apply: func(r *store.Record) error { f(r); return nil }})
		must(t, err)
	}
	lose := func(name string) { must(t, w.engine.Destroy(t.Context(), ids[name])) }
	lose("lost")
	lose("rebooted")
	set("rebooted", func(r *store.Record) { r.BootID = "boot-0" })
	must(t, w.store.DeleteSandbox(t.Context(), w.unrecorded()))
	must(t, w.engine.Close())
	must(t, w.state.Kill(ids["died"], "killed while nobody looked"))
	set("creating", func(r *store.Record) { r.State = sandbox.StateCreating })
	set("stopping", func(r *store.Record) { r.State, r.Reason = sandbox.StateStopping, "killed by key-red" })
	set("held", func(r *store.Record) {
		now := time.Now()
		r.State, r.Reason, r.EndedAt = sandbox.StateFailed, "boom", &now
	})
	set("updating", func(r *store.Record) { r.Applying, r.Resources.VCPUs = true, 7 })
	must(t, w.Close())
	must(t, w.store.Close())

	for range 2 { // it may be repeated
		w.start()
		for name, want := range map[string]struct {
			state  sandbox.State
			reason string
		}{
			"running":  {sandbox.StateRunning, ""},
			"lost":     {sandbox.StateFailed, "its supervisor exited unexpectedly while the daemon was down"},
			"rebooted": {sandbox.StateFailed, "the machine restarted at 1970-01-01T00:00:01Z"},
			"died":     {sandbox.StateFailed, "killed while nobody looked"},
			"creating": {sandbox.StateFailed, "the daemon exited while the sandbox was being created"},
			"stopping": {sandbox.StateKilled, "killed by key-red"},
			"held":     {sandbox.StateFailed, "boom"},
			"updating": {sandbox.StateRunning, ""},
		} {
			if got := w.get(ids[name]); got.State != want.state || !strings.HasPrefix(got.Reason, want.reason) || (want.reason == "") != (got.Reason == "") {
				t.Errorf("%s: %s, %q, want %s, %q", name, got.State, got.Reason, want.state, want.reason)
			}
		}
		w.agree()
		if spec, _ := w.state.Spec(ids["updating"]); spec.Resources.VCPUs != 7 {
			t.Errorf("the update that was cut off is not applied: %+v", spec.Resources)
		}
		w.stop()
	}
	w.start()
}

// unrecorded makes an instance whose record is then deleted.
func (w *harness) unrecorded() string {
	sbx, err := w.Create(asRed(w.t), sandbox.CreateRequest{})
	must(w.t, err)
	return sbx.ID
}

func TestStartFailsWithoutTheEngine(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{})
	w.stop()
	w.open()
	w.state.Fail(memory.StepList, memory.Before, errors.New("boom"))
	if err := w.Start(t.Context()); err == nil {
		t.Error("Start hid the failure")
	}
	must(t, w.Start(t.Context()))
	w.agree()
}

// TestOpenVanished calls into a sandbox that the engine has lost.
func TestOpenVanished(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	w.drop(sbx.ID, errors.New("test"))
	w.state.Fail(memory.StepOpen, memory.Before, errors.New("boom"))
	_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeUnavailable)
	must(t, w.engine.Destroy(t.Context(), sbx.ID))
	_, err = w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
	w.agree()
}

func TestUpdateAllOrNothing(t *testing.T) {
	w := newHarness(t)
	w.create(sandbox.CreateRequest{Name: "taken"})
	sbx := w.create(sandbox.CreateRequest{Name: "x", Env: map[string]string{"A": "1"}})
	env := func() string {
		var out strings.Builder
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "echo $A"}, func(e sandbox.JobEvent) error { out.Write(e.Data); return nil })
		must(t, err)
		return strings.TrimSpace(out.String())
	}
	change := sandbox.UpdateRequest{Name: ptr("y"), VCPUs: ptr(2), MemoryMiB: ptr(int64(2048)), Env: map[string]string{"A": "2"}, LifetimeSeconds: ptr(int64(9))}
	for _, c := range []struct {
		name string
		set  func(*sandbox.UpdateRequest)
		code sandbox.Code
	}{
		{"name taken", func(r *sandbox.UpdateRequest) { r.Name = ptr("taken") }, sandbox.CodeConflict},
		{"before", func(*sandbox.UpdateRequest) {
			w.state.Fail(memory.StepSetLimits, memory.Before, sandbox.Errorf(sandbox.CodeInvalid, "less than it uses"))
		}, sandbox.CodeInvalid},
		{"lost reply", func(*sandbox.UpdateRequest) { w.state.Fail(memory.StepSetLimits, memory.After, errors.New("boom")) }, sandbox.CodeInternal},
	} {
		before := w.get(sbx.ID)
		req := change
		c.set(&req)
		_, err := w.Update(asRed(t), sbx.ID, req)
		wantCode(t, err, c.code)
		after := w.get(sbx.ID)
		after.LastActiveAt = before.LastActiveAt
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s: changed (-before +after):\n%s", c.name, diff)
		}
		if spec, _ := w.state.Spec(sbx.ID); spec.Resources.VCPUs != 1 || spec.Resources.MemoryMiB != 1024 {
			t.Errorf("%s: the engine has %+v", c.name, spec.Resources)
		}
		if got := env(); got != "1" {
			t.Errorf("%s: the environment is %q", c.name, got)
		}
		w.agree()
	}
	_, err := w.Update(asRed(t), sbx.ID, change)
	must(t, err)
	if got := env(); got != "2" {
		t.Errorf("after the update the environment is %q", got)
	}
	w.agree()
}

func TestIdle(t *testing.T) {
	w := newHarness(t)
	quiet := func() bool {
		idle, _, err := w.Idle(t.Context())
		must(t, err)
		return idle
	}
	if !quiet() {
		t.Error("an empty server is not idle")
	}
	sbx := w.create(sandbox.CreateRequest{})
	if quiet() {
		t.Error("idle with a sandbox")
	}
	_, err := w.Kill(asRed(t), sbx.ID)
	must(t, err)
	_, last, err := w.Idle(t.Context())
	must(t, err)
	if !quiet() || time.Since(last) > time.Minute {
		t.Errorf("after the kill idle since %v", last)
	}
	ctx, cancel := context.WithCancel(asRed(t))
	inside := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := w.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "x"}, func(sandbox.BuildEvent) error { close(inside); <-ctx.Done(); return ctx.Err() })
		done <- err
	}()
	<-inside
	if quiet() {
		t.Error("idle during a build")
	}
	cancel()
	<-done
}

func TestClosedService(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	must(t, w.Close())
	_, err := w.Get(asRed(t), sbx.ID)
	wantCode(t, err, sandbox.CodeUnavailable)
	must(t, w.store.Close())
	must(t, w.engine.Close())
	w.start()
	if got := w.get(sbx.ID); got.State != sandbox.StateRunning {
		t.Errorf("after the restart: %+v", got)
	}
}

func TestActivityIsStored(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.flushEvery = time.Hour })
	sbx := w.create(sandbox.CreateRequest{})
	before := w.record(sbx.ID).LastActiveAt
	_, err := w.StatFile(asRed(t), sbx.ID, "/")
	must(t, err)
	if got := w.record(sbx.ID).LastActiveAt; got != before {
		t.Errorf("a call wrote to the store")
	}
	if got := w.get(sbx.ID).LastActiveAt; !got.After(before) {
		t.Errorf("Get says last active at %v, which is the creation", got)
	}
	w.restart()
	if got := w.record(sbx.ID).LastActiveAt; !got.After(before) {
		t.Errorf("after a restart last active at %v", got)
	}
}

func TestManyClients(t *testing.T) {
	w := newHarness(t)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ctx := as(t.Context(), fmt.Sprint("team", i%3))
			sbx, err := w.Create(ctx, sandbox.CreateRequest{})
			if err != nil {
				t.Error(err)
				return
			}
			if job, err := w.Exec(ctx, sbx.ID, sandbox.ExecRequest{Shell: "exit 7"}, nil); err != nil || job.ExitCode != 7 {
				t.Errorf("%+v, %v", job, err)
			}
			if _, err := w.Kill(ctx, sbx.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.agree()
}
