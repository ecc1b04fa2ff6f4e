package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

func ptr[T any](v T) *T { return &v }

// late is how long after its time a test waits for the end of a sandbox. How
// soon it must come is shown where a clock can be trusted, in internal/daemon/janitor;
// here the machine may be busy.
const late = time.Minute

// longEnough tries something timed, first with this time and then with longer
// ones. A try reports false if the time was too short for a machine as busy as
// this one, so that it has shown nothing.
func longEnough(t *testing.T, first time.Duration, try func(time.Duration) bool) {
	t.Helper()
	for n := first; n < time.Minute; n *= 2 {
		if try(n) {
			return
		}
		t.Logf("%v were too short", n)
	}
	t.Fatal("no time that was tried was long enough")
}

// inTime reports whether a sandbox was used, with this result, before a timer
// could end it, which did not begin before a moment. An error fails the test if
// it was.
func inTime(t *testing.T, err error, began time.Time, timer time.Duration) bool {
	t.Helper()
	early := time.Since(began) < timer
	if err != nil && early {
		t.Fatal(err)
	}
	return early
}

// seconds is a time as requests have it.
func seconds(d time.Duration) *int64 { return ptr(int64(d / time.Second)) }

// ends waits until a sandbox has been killed for a reason, and checks that this
// was not before it was due.
func ends(t *testing.T, d *covetest.Daemon, id string, due time.Time, reason string) {
	t.Helper()
	var got *sandbox.Sandbox
	over := func() bool {
		s, err := d.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatalf("get %s: %v", id, err)
		}
		got = s
		return s.State.Final()
	}
	if !covetest.Eventually(time.Until(due)+late, over) {
		t.Errorf("%s is %s, %v after its time", id, got.State, late)
		return
	}
	if got.State != sandbox.StateKilled || !strings.Contains(got.Reason, reason) {
		t.Errorf("%s is %s: %q; want killed: %q", id, got.State, got.Reason, reason)
	}
	if early := due.Sub(*got.EndedAt); early > 0 {
		t.Errorf("%s (%s) ended %v too early", id, reason, early)
	}
	t.Logf("%s: %v after its time", reason, got.EndedAt.Sub(due).Round(time.Millisecond))
}

// stays checks that a sandbox runs at a certain time. If the check comes too late to
// tell, the caller uses [ends].
func stays(t *testing.T, d *covetest.Daemon, id, what string, at, due time.Time) {
	t.Helper()
	<-time.After(time.Until(at))
	got, err := d.Client.Get(t.Context(), id)
	if err != nil || got.State != sandbox.StateRunning && time.Now().Before(due) {
		t.Errorf("%s: %+v, %v; want it running", what, got, err)
	}
}

func TestTimers(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		create := func(change ...func(*sandbox.CreateRequest)) *sandbox.Sandbox {
			req := sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 128}}
			for _, f := range change {
				f(&req)
			}
			return d.Create(t, req)
		}
		// Sandboxes that must be used in time get their timer after their creation,
		// since a busy machine is slow to make them.
		cases := map[string]func(t *testing.T, n time.Duration) bool{
			"lifetime": func(t *testing.T, n time.Duration) bool {
				s := create(func(r *sandbox.CreateRequest) { r.LifetimeSeconds = seconds(n) })
				ends(t, d, s.ID, *s.ExpiresAt, fmt.Sprintf("its lifetime of %v ended", n))
				return true
			},
			"lifetime is extended": func(t *testing.T, n time.Duration) bool {
				n += time.Second
				s, began := create(), time.Now()
				s = update(t, d, s.ID, sandbox.UpdateRequest{LifetimeSeconds: seconds(n)})
				due := time.Now().Add(2 * n)
				_, err := d.Client.Update(t.Context(), s.ID, sandbox.UpdateRequest{LifetimeSeconds: seconds(2 * n)})
				if !inTime(t, err, began, n) {
					return false
				}
				stays(t, d, s.ID, "a longer lifetime", s.ExpiresAt.Add(n/2), due)
				ends(t, d, s.ID, due, fmt.Sprintf("its lifetime of %v ended", 2*n))
				return true
			},
			"idle": func(t *testing.T, n time.Duration) bool {
				s := create(func(r *sandbox.CreateRequest) { r.IdleTimeoutSeconds = seconds(n) })
				ends(t, d, s.ID, s.LastActiveAt.Add(n), fmt.Sprintf("it was idle for %v", n))
				return true
			},
			"idle timeout is taken away": func(t *testing.T, n time.Duration) bool {
				s, began := create(), time.Now()
				update(t, d, s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(n)})
				_, err := d.Client.Update(t.Context(), s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(0)})
				if !inTime(t, err, began, n) {
					return false
				}
				stays(t, d, s.ID, "no idle timeout", time.Now().Add(2*n), *s.ExpiresAt)
				return true
			},
			"a call is use": func(t *testing.T, n time.Duration) bool {
				s, used := create(), time.Now()
				update(t, d, s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(n)})
				for range 4 {
					<-time.After(n / 2)
					called := time.Now()
					res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"true"}})
					if !inTime(t, err, used, n) {
						return false
					}
					if res.Job.ExitCode != 0 {
						t.Errorf("the call: %+v", res)
					}
					used = called
				}
				ends(t, d, s.ID, used.Add(n), fmt.Sprintf("it was idle for %v", n))
				return true
			},
			"a background command is use": func(t *testing.T, n time.Duration) bool {
				s, began := create(), time.Now()
				update(t, d, s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(n)})
				job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"sleep", fmt.Sprint(2 * n.Seconds())}, Background: true}, nil)
				if !inTime(t, err, began, n) {
					return false
				}
				due := job.StartedAt.Add(3 * n)
				stays(t, d, s.ID, "a background command", job.StartedAt.Add(2*n-200*time.Millisecond), due)
				ends(t, d, s.ID, due, fmt.Sprintf("it was idle for %v", n))
				return true
			},
		}
		// All at once, however few processors there are: they only wait.
		var wg sync.WaitGroup
		for name, test := range cases {
			wg.Go(func() {
				t.Run(name, func(t *testing.T) {
					longEnough(t, 2*time.Second, func(n time.Duration) bool { return test(t, n) })
				})
			})
		}
		wg.Wait()
	})
}

// Timers survive a kill of the daemon: sandboxes that were due meanwhile end at the start, with
// the reason, and the others at their time. In "make test", TestTimers, and TestTimeouts and
// TestLifetimesFollowTheRunningTime of package service, stand for it.
func TestMoreTimersSurviveTheDaemon(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		longEnough(t, 2*time.Second, func(n time.Duration) bool { return timersSurvive(t, d, n) })
	})
}

// timersSurvive reports false if the daemon lived long enough to end one of the
// sandboxes itself.
func timersSurvive(t *testing.T, d *covetest.Daemon, n time.Duration) bool {
	create := func() *sandbox.Sandbox {
		return d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 128}})
	}
	// Their times begin when all of them exist, since a busy machine is slow to make
	// them.
	expired, idled, later, busy := create(), create(), create(), create()
	job, err := d.Client.Exec(t.Context(), busy.ID, sandbox.ExecRequest{Command: []string{"sleep", fmt.Sprint(3 * n.Seconds())}, Background: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	update(t, d, busy.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(n)})
	later = update(t, d, later.ID, sandbox.UpdateRequest{LifetimeSeconds: seconds(3 * n)})
	update(t, d, expired.ID, sandbox.UpdateRequest{LifetimeSeconds: seconds(n)})
	update(t, d, idled.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: seconds(n)})
	set := time.Now()
	d.Kill()
	if time.Since(began) >= n {
		err := d.Run(t.Context())
		if err == nil {
			err = d.KillAll(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	// Without a daemon nobody ends them, so they must still run.
	<-time.After(time.Until(set.Add(n + time.Second)))
	living := d.Cells() // a golden checkpoint that was being made may have one too
	for what, s := range map[string]*sandbox.Sandbox{"expired": expired, "idled": idled, "later": later, "busy": busy} {
		if living[s.ID] == 0 {
			t.Errorf("the sandbox %q does not live without the daemon", what)
		}
	}
	started := time.Now()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends(t, d, expired.ID, started, fmt.Sprintf("its lifetime of %v ended", n))
	ends(t, d, idled.ID, started, fmt.Sprintf("it was idle for %v", n))
	d.NoTraces(t, expired.ID, idled.ID)
	ends(t, d, later.ID, *later.ExpiresAt, fmt.Sprintf("its lifetime of %v ended", 3*n))
	due := job.StartedAt.Add(4 * n)
	stays(t, d, busy.ID, "a background command", job.StartedAt.Add(3*n-500*time.Millisecond), due)
	ends(t, d, busy.ID, due, fmt.Sprintf("it was idle for %v", n))
	return true
}
