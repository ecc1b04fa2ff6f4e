package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// minutely is a request for a sandbox that is kept each minute.
func minutely() sandbox.CreateRequest {
	return sandbox.CreateRequest{CheckpointIntervalSeconds: ptr(int64(60))}
}

// keep makes an automatic checkpoint of a sandbox as if it were due, and returns what is known
// of the newest one.
func (w *harness) keep(id string) *sandbox.AutomaticCheckpoint {
	w.t.Helper()
	r := w.record(id)
	h, err := w.openRecord(w.t.Context(), &r)
	must(w.t, err)
	w.checkpointOne(w.t.Context(), h)
	return w.get(id).LastCheckpoint
}

// TestCheckpointTimes follows when checkpoints are due.
func TestCheckpointTimes(t *testing.T) {
	var c checkpointTimes
	now := time.Now()
	if c.due(now.Add(time.Hour)) {
		t.Error("one is due without an interval")
	}
	r := &store.Record{Kept: store.Kept{Since: now}}
	r.CheckpointIntervalSeconds = 60
	c.set(r)
	if c.due(now.Add(59*time.Second)) || !c.due(now.Add(60*time.Second)) {
		t.Error("the first one is not due a minute after the creation")
	}
	r.Kept.Last = store.KeptState{Checkpoint: "cp", At: now.Add(-50 * time.Second)}
	r.Kept.Since = now.Add(-time.Hour)
	c.set(r)
	if c.due(now.Add(9*time.Second)) || !c.due(now.Add(10*time.Second)) {
		t.Error("it is not due a minute after the last one")
	}
	r.Kept.FailedAt = now.Add(-40 * time.Second)
	c.set(r)
	if c.due(now.Add(19*time.Second)) || !c.due(now.Add(20*time.Second)) {
		t.Error("it is not due a minute after a failure")
	}
	r.Kept.Last.At = now.Add(time.Hour) // the clock was set back
	c.set(r)
	if !c.due(time.Now().Add(time.Minute)) {
		t.Error("it is not due a minute after the clock was set back")
	}
	r.Kept = store.Kept{}
	c.set(r)
	if !c.begin(time.Now().Add(time.Hour)) || c.begin(time.Now().Add(time.Hour)) {
		t.Error("it does not begin once")
	}
	if c.due(now) {
		t.Error("it is due while it is made")
	}
	c.end(now.Add(time.Minute))
	if c.due(now) || !c.due(now.Add(time.Minute)) {
		t.Error("the next one is not due when it was said to be")
	}
	if c.busy(now, 5e9) || c.busy(now.Add(100*time.Second), 5e9+9e8) || !c.busy(now.Add(100*time.Second), 5e9+11e8) {
		t.Error("it is not busy from 1 % of a processor on")
	}
}

// TestAutomaticCheckpoint keeps the newest state of a sandbox that is in use, across a restart
// of the daemon, until the sandbox or its interval ends.
func TestAutomaticCheckpoint(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(minutely())
	first := w.keep(sbx.ID)
	if first == nil || first.At == nil || first.SizeBytes == 0 || first.Failure != "" {
		t.Fatalf("kept is %+v", first)
	}
	w.agree()
	id := w.record(sbx.ID).Kept.Last.Checkpoint
	w.restart()
	w.keep(sbx.ID)
	if got := w.record(sbx.ID).Kept.Last.Checkpoint; got != id {
		t.Errorf("%s was made although the sandbox was not used since %s", got, id)
	}
	w.shell(sbx.ID, "echo used > file")
	if second := w.keep(sbx.ID); !second.At.After(*first.At) {
		t.Errorf("after %v, %v is kept", first.At, second.At)
	}
	w.agree()
	if kept := w.kept(); len(kept) != 1 || kept[0] == id {
		t.Errorf("kept are %v, before it was %s", kept, id)
	}
	child := w.fork(sbx.ID, sandbox.ForkRequest{})[0]
	if child.CheckpointIntervalSeconds != 60 || child.LastCheckpoint != nil {
		t.Errorf("the fork has %d, %+v", child.CheckpointIntervalSeconds, child.LastCheckpoint)
	}
	if got := w.keep(child.ID); got == nil || got.At == nil {
		t.Errorf("of the fork is kept %+v", got)
	}
	_, err := w.Kill(asRed(t), child.ID)
	must(t, err)
	_, err = w.Update(asRed(t), sbx.ID, sandbox.UpdateRequest{CheckpointIntervalSeconds: ptr(int64(0))})
	must(t, err)
	w.agree()
	if kept := w.kept(); len(kept) != 0 {
		t.Errorf("at the end %v is kept", kept)
	}
	if got := w.keep(sbx.ID); got != nil {
		t.Errorf("without an interval %+v is kept", got)
	}
}

// TestDueCheckpoints makes those that are due, and no others.
func TestDueCheckpoints(t *testing.T) {
	w := newHarness(t)
	due, early, never := w.create(minutely()), w.create(minutely()), w.create(sandbox.CreateRequest{})
	w.mu.Lock()
	for _, id := range []string{due.ID, never.ID} {
		w.handles[id].checkpoints.end(time.Now().Add(-time.Second))
	}
	w.mu.Unlock()
	w.checkpointDue()
	wait(t, func() bool { c := w.get(due.ID).LastCheckpoint; return c != nil && c.At != nil }, func() string { return "nothing is kept" })
	if w.get(early.ID).LastCheckpoint != nil || w.get(never.ID).LastCheckpoint != nil {
		t.Error("others are kept too")
	}
}

// TestFailedGoesBack ends the instance of a sandbox: the sandbox continues from its automatic
// checkpoint with the next call, but not again and again.
func TestFailedGoesBack(t *testing.T) {
	for _, down := range []bool{false, true} {
		w := newHarness(t)
		sbx := w.create(minutely())
		w.shell(sbx.ID, "echo one > file")
		at := *w.keep(sbx.ID).At
		for n := range sandbox.MaxCheckpointRestores {
			if got := w.shell(sbx.ID, "cat file; echo two > file"); got != "one" {
				t.Errorf("the file has %q", got)
			}
			w.die(sbx.ID, "it was hit", down)
			got := w.get(sbx.ID)
			if got.State != sandbox.StatePaused || got.LastCheckpoint.Restores != n+1 || got.PausedAt == nil {
				t.Fatalf("it is %s (%s), %+v", got.State, got.Reason, got.LastCheckpoint)
			}
			m := got.Moments[len(got.Moments)-2]
			if m.Kind != sandbox.MomentRestored || !m.StateAt.Equal(at) || m.Reason == "" || m.Snapshot != "" {
				t.Errorf("the moment is %+v", m)
			}
			w.agree()
		}
		w.audited(sbx.ID, "sandbox.restored", "because")
		// A new one begins the count again.
		w.shell(sbx.ID, "echo one > file")
		if got := w.keep(sbx.ID); got.Restores != 0 || !got.At.After(at) {
			t.Errorf("the new one is %+v", got)
		}
		for range sandbox.MaxCheckpointRestores {
			w.shell(sbx.ID, "true")
			w.die(sbx.ID, "it was hit", down)
		}
		w.shell(sbx.ID, "true")
		w.die(sbx.ID, "it was hit", down)
		if got := w.get(sbx.ID); got.State != sandbox.StateFailed || !strings.Contains(got.Reason, "failed 4 times since its automatic checkpoint") {
			t.Errorf("it is %s (%s)", got.State, got.Reason)
		}
		w.agree()
		if kept := w.kept(); len(kept) > 0 {
			t.Errorf("kept are %v", kept)
		}
	}
}

// die ends the instance of a sandbox, also while the daemon is down, and waits until that is
// recorded.
func (w *harness) die(id, reason string, down bool) {
	w.t.Helper()
	instance := w.record(id).Instance
	if down {
		w.stop()
		must(w.t, w.state.Kill(instance, reason))
		w.start()
	} else {
		must(w.t, w.state.Kill(instance, reason))
	}
	wait(w.t, func() bool { return w.record(id).State != sandbox.StateRunning }, func() string { return "it still runs" })
}

// audited checks that an action with a detail was recorded for a sandbox.
func (w *harness) audited(id, action, detail string) {
	w.t.Helper()
	list, err := w.Audit(asRed(w.t), sandbox.AuditRequest{SandboxID: id})
	must(w.t, err)
	if !slices.ContainsFunc(list.Items, func(e sandbox.AuditEvent) bool { return e.Action == action && strings.Contains(e.Detail, detail) }) {
		w.t.Errorf("recorded is %+v", list.Items)
	}
}

// TestKillDoesNotGoBack checks that what somebody ends has ended.
func TestKillDoesNotGoBack(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(minutely())
	w.keep(sbx.ID)
	_, err := w.Kill(asRed(t), sbx.ID)
	must(t, err)
	w.wantState(sbx.ID, sandbox.StateKilled)
	w.agree()
	if kept := w.kept(); len(kept) > 0 {
		t.Errorf("kept are %v", kept)
	}
}

// TestCallSeesGoingBack tells a call under way what has happened.
func TestCallSeesGoingBack(t *testing.T) {
	waitForNotice(t)
	w := newHarness(t)
	sbx := w.create(minutely())
	w.keep(sbx.ID)
	failed := make(chan error, 1)
	go func() {
		_, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "touch begun; exec sleep 1000"}, nil)
		failed <- err
	}()
	wait(t, func() bool { return w.shell(sbx.ID, "ls") != "" }, func() string { return "the command does not begin" })
	w.die(sbx.ID, "it was hit", false)
	err := <-failed
	wantCode(t, err, sandbox.CodeNotRunning)
	if !strings.Contains(err.Error(), "it was hit") || !strings.Contains(err.Error(), "continues from its automatic checkpoint of") {
		t.Errorf("the call says: %v", err)
	}
}

// pausing is a store that says when a sandbox is paused, before its caller knows.
type pausing struct {
	store.Store
	paused func(id string)
}

func (p pausing) UpdateSandbox(ctx context.Context, id string, c store.Change) (store.Record, error) {
	r, err := p.Store.UpdateSandbox(ctx, id, c)
	if err == nil && r.State == sandbox.StatePaused {
		p.paused(id)
	}
	return r, err
}

// TestCallDuringGoingBack makes a call at the moment at which a sandbox has gone back, or is
// paused, and its old connection is still there: the call is for the instance that continues.
func TestCallDuringGoingBack(t *testing.T) {
	for name, end := range map[string]func(w *harness, id string) error{
		"failed": func(w *harness, id string) error { return w.state.Kill(w.record(id).Instance, "it was hit") },
		"paused": func(w *harness, id string) error { _, err := w.Pause(asRed(w.t), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := &harness{}
			done := make(chan error, 1)
			var once sync.Once
			w.wrapStore = func(s store.Store) store.Store {
				return pausing{s, func(id string) {
					once.Do(func() {
						w.mu.Lock()
						h := w.handles[id]
						w.mu.Unlock()
						if h == nil || h.acquire() == nil {
							t.Error("a call uses the old instance")
						}
						go func() {
							_, err := w.Exec(asRed(t), id, sandbox.ExecRequest{Shell: "true"}, nil)
							done <- err
						}()
					})
				}}
			}
			w.begin(t)
			sbx := w.create(minutely())
			w.keep(sbx.ID)
			must(t, end(w, sbx.ID))
			must(t, <-done)
			if _, err := w.Exec(asRed(t), sbx.ID, sandbox.ExecRequest{Shell: "true"}, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCheckpointFails shows a failure, which does not disturb the sandbox.
func TestCheckpointFails(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(minutely())
	w.state.Fail(memory.StepCheckpoint, memory.Before, sandbox.Errorf(sandbox.CodeUnavailable, "the disk is full"))
	got := w.keep(sbx.ID)
	if got == nil || got.At != nil || got.FailedAt == nil || got.Failure != "the disk is full" {
		t.Fatalf("kept is %+v", got)
	}
	w.shell(sbx.ID, "true")
	if got = w.keep(sbx.ID); got.At == nil || got.FailedAt != nil || got.Failure != "" {
		t.Errorf("kept is %+v", got)
	}
	w.shell(sbx.ID, "true")
	w.state.Fail(memory.StepCheckpoint, memory.Before, errors.New("a secret of the server"))
	if got = w.keep(sbx.ID); got.At == nil || got.FailedAt == nil || strings.Contains(got.Failure, "secret") {
		t.Errorf("kept is %+v", got)
	}
	w.agree()
}

// TestCheckpointOverQuota refuses what the team has no disk for.
func TestCheckpointOverQuota(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Quota.DiskMiB = 1000 })
	r := minutely()
	r.Resources.DiskMiB = 1000
	sbx := w.create(r)
	if got := w.keep(sbx.ID); got == nil || got.At != nil || !strings.Contains(got.Failure, "quota") {
		t.Errorf("kept is %+v", got)
	}
	w.agree()
}

// TestCheckpointMakesWay pauses, forks and restores a sandbox while it is kept: nobody waits
// for the automatic checkpoint, and nobody's call fails.
func TestCheckpointMakesWay(t *testing.T) {
	for name, verb := range map[string]func(*harness, string) error{
		"pause": func(w *harness, id string) error { _, err := w.Pause(asRed(w.t), id); return err },
		"fork":  func(w *harness, id string) error { _, err := w.Fork(asRed(w.t), id, sandbox.ForkRequest{}); return err },
		"snapshot": func(w *harness, id string) error {
			_, err := w.CreateSnapshot(asRed(w.t), id, sandbox.CreateSnapshotRequest{})
			return err
		},
		"kill": func(w *harness, id string) error { _, err := w.Kill(asRed(w.t), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t)
			sbx := w.create(minutely())
			w.state.Trap(memory.StepCheckpoint, memory.After, func(ctx context.Context) error {
				must(t, verb(w, sbx.ID))
				if name == "kill" {
					return nil
				}
				return context.Cause(ctx) // it has ended by now
			})
			if got := w.keep(sbx.ID); got != nil && got.Failure != "" {
				t.Errorf("kept is %+v", got)
			}
			w.agree()
		})
	}
	w := newHarness(t)
	sbx := w.create(minutely())
	unlock, err := w.lock(t.Context(), sbx.ID)
	must(t, err)
	if got := w.keep(sbx.ID); got != nil {
		t.Errorf("during a transition %+v was kept", got)
	}
	unlock()
	if got := w.keep(sbx.ID); got == nil {
		t.Error("nothing is kept after a transition")
	}
}

// TestCheckpointOfResume checks that a sandbox goes back to its last pause, and not further,
// and that a restore to a snapshot begins anew.
func TestCheckpointOfResume(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(minutely())
	w.keep(sbx.ID)
	w.shell(sbx.ID, "echo paused > file")
	_, err := w.Pause(asRed(t), sbx.ID)
	must(t, err)
	w.agree()
	if got := w.shell(sbx.ID, "cat file; echo after > file"); got != "paused" {
		t.Errorf("the file has %q", got)
	}
	w.agree()
	w.die(sbx.ID, "it was hit", false)
	if got := w.shell(sbx.ID, "cat file"); got != "paused" {
		t.Errorf("the file has %q", got)
	}
	snap, err := w.CreateSnapshot(asRed(t), sbx.ID, sandbox.CreateSnapshotRequest{})
	must(t, err)
	_, err = w.RestoreSnapshot(asRed(t), sbx.ID, sandbox.RestoreRequest{Snapshot: snap.ID})
	must(t, err)
	if got := w.get(sbx.ID); got.LastCheckpoint != nil {
		t.Errorf("after the restore %+v is kept", got.LastCheckpoint)
	}
	w.mu.Lock()
	due := w.handles[sbx.ID].checkpoints.due(time.Now())
	w.mu.Unlock()
	if !due {
		t.Error("after the restore none is due")
	}
	w.agree()
}

// lostEngine is a [storedEngine] that says whether instances are lost.
type lostEngine struct {
	storedEngine
	told          chan string // what is fenced; nil if nobody waits for it
	fencing       sync.Mutex
	fenced        map[string]bool // guarded by fencing
	lost, stopped bool
}

func (e *lostEngine) Fence(_ context.Context, id string) error {
	e.fencing.Lock()
	defer e.fencing.Unlock()
	e.fenced[id] = true
	select {
	case e.told <- id:
	default: // nobody waits for it
	}
	return nil
}

func (e *lostEngine) isFenced(id string) bool {
	e.fencing.Lock()
	defer e.fencing.Unlock()
	return e.fenced[id]
}

func (e *lostEngine) Lost(string) (lost, stopped bool) { return e.lost, e.stopped }

// TestResumedIsFenced loses the node of a sandbox soon after a resume, long before its next
// automatic checkpoint: the sandbox goes back to the state of its pause.
func TestResumedIsFenced(t *testing.T) {
	var e *lostEngine
	w := (&harness{wrap: func(k *memory.Keeper) engine.Engine {
		e = &lostEngine{storedEngine: storedEngine{Keeper: k}, fenced: map[string]bool{}, told: make(chan string, 1)}
		return e
	}}).begin(t)
	e.set(nil, true)
	sbx := w.create(minutely())
	w.shell(sbx.ID, "echo paused > file")
	_, err := w.Pause(asRed(t), sbx.ID)
	must(t, err)
	w.settleStored(t.Context())
	w.shell(sbx.ID, "echo after > file") // which resumes it
	if got, want := <-e.told, w.record(sbx.ID).Instance; got != want {
		t.Errorf("instance %s is fenced, not %s", got, want)
	}
	e.lost, e.stopped = true, true
	w.die(sbx.ID, "its node is lost", false)
	e.lost, e.stopped = false, false
	if got := w.shell(sbx.ID, "cat file"); got != "paused" {
		t.Errorf("the file has %q", got)
	}
}

// TestStoredBeforeRemoved keeps the checkpoint before the newest one until that is in the
// object store, goes back to the stored one if a node is lost, and to none if the sandbox may
// still run there.
func TestStoredBeforeRemoved(t *testing.T) {
	for _, c := range []struct {
		name          string
		lost, stopped bool
		want          string
	}{
		{"crash", false, false, "two"},
		{"node lost", true, true, "one"},
		{"node lost, not fenced", true, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e *lostEngine
			w := (&harness{wrap: func(k *memory.Keeper) engine.Engine {
				e = &lostEngine{storedEngine: storedEngine{Keeper: k}, fenced: map[string]bool{}}
				return e
			}}).begin(t)
			sbx := w.create(minutely())
			w.shell(sbx.ID, "echo one > file")
			e.set(nil, true)
			w.keep(sbx.ID)
			w.settleStored(t.Context())
			if !e.isFenced(w.record(sbx.ID).Instance) {
				t.Error("the instance is not fenced")
			}
			first := w.record(sbx.ID).Kept
			if first.Last.Checkpoint == "" || first.Next.Checkpoint != "" {
				t.Fatalf("kept are %+v", first)
			}
			e.set(nil, false)
			w.shell(sbx.ID, "echo two > file")
			w.keep(sbx.ID)
			w.settleStored(t.Context())
			second := w.record(sbx.ID).Kept
			if second.Last != first.Last || second.Next.Checkpoint == "" {
				t.Fatalf("kept are %+v, before %+v", second, first)
			}
			w.agree()
			if w.keep(sbx.ID); w.record(sbx.ID).Kept.Next != second.Next {
				t.Error("a checkpoint that is being stored was replaced")
			}
			e.lost, e.stopped = c.lost, c.stopped
			w.die(sbx.ID, "its node is lost", false)
			e.lost, e.stopped = false, false
			if c.want == "" {
				if got := w.get(sbx.ID); got.State != sandbox.StateFailed || !strings.Contains(got.Reason, "may still run") {
					t.Errorf("it is %s (%s)", got.State, got.Reason)
				}
			} else if got := w.shell(sbx.ID, "cat file"); got != c.want {
				t.Errorf("the file has %q", got)
			}
			e.set(nil, true)
			w.settleStored(t.Context())
			w.agree()
			if kept := w.kept(); c.want != "" && len(kept) != 1 {
				t.Errorf("kept are %v", kept)
			}
		})
	}
}
