package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

func ptr[T any](v T) *T { return &v }

// late is how much later than its time a sandbox may end: the janitor looks
// every second, and ending takes a moment.
const late = 4 * time.Second

// ends waits until a sandbox has been killed for a reason, and checks that this
// was due after the given moment and not much later.
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

// stays checks that a sandbox runs at a moment.
func stays(t *testing.T, d *covetest.Daemon, id, what string, at time.Time) {
	t.Helper()
	<-time.After(time.Until(at))
	got, err := d.Client.Get(t.Context(), id)
	if err != nil || got.State != sandbox.StateRunning {
		t.Errorf("%s: %+v, %v; want it running", what, got, err)
	}
}

func TestTimers(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		small := sandbox.Resources{MemoryMiB: 128}
		lifetime := func(seconds int64) *sandbox.Sandbox {
			return d.Create(t, sandbox.CreateRequest{Resources: small, LifetimeSeconds: &seconds})
		}
		idle := func(seconds int64) *sandbox.Sandbox {
			return d.Create(t, sandbox.CreateRequest{Resources: small, IdleTimeoutSeconds: &seconds})
		}
		cases := map[string]func(t *testing.T){
			"lifetime": func(t *testing.T) {
				s := lifetime(2)
				ends(t, d, s.ID, *s.ExpiresAt, "its lifetime of 2s ended")
			},
			"lifetime is extended": func(t *testing.T) {
				s := lifetime(3)
				u, err := d.Client.Update(t.Context(), s.ID, sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(6))})
				if err != nil {
					t.Fatal(err)
				}
				stays(t, d, s.ID, "a longer lifetime", s.ExpiresAt.Add(1500*time.Millisecond))
				ends(t, d, s.ID, *u.ExpiresAt, "its lifetime of 6s ended")
			},
			"idle": func(t *testing.T) {
				s := idle(2)
				ends(t, d, s.ID, s.LastActiveAt.Add(2*time.Second), "it was idle for 2s")
			},
			"idle timeout is taken away": func(t *testing.T) {
				s := idle(2)
				if _, err := d.Client.Update(t.Context(), s.ID, sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(0))}); err != nil {
					t.Fatal(err)
				}
				stays(t, d, s.ID, "no idle timeout", time.Now().Add(4*time.Second))
			},
			"a call is use": func(t *testing.T) {
				s := idle(2)
				for range 4 {
					<-time.After(time.Second)
					d.Sh(t, s.ID, "true")
				}
				ends(t, d, s.ID, time.Now().Add(2*time.Second-100*time.Millisecond), "it was idle for 2s")
			},
			"a background command is use": func(t *testing.T) {
				s := idle(2)
				job, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{Command: []string{"sleep", "4"}, Background: true}, nil)
				if err != nil {
					t.Fatal(err)
				}
				stays(t, d, s.ID, "a background command", job.StartedAt.Add(3800*time.Millisecond))
				ends(t, d, s.ID, job.StartedAt.Add(6*time.Second), "it was idle for 2s")
			},
		}
		// All at once, however few processors there are: they only wait.
		var wg sync.WaitGroup
		for name, test := range cases {
			wg.Go(func() { t.Run(name, test) })
		}
		wg.Wait()
	})
}

// Timers hold although the daemon is killed: what was due meanwhile ends at
// the start, with its reason, and the rest at its time.
func TestTimersSurviveTheDaemon(t *testing.T) {
	covetest.EachUser(t, func(t *testing.T, d *covetest.Daemon) {
		create := func() *sandbox.Sandbox {
			return d.Create(t, sandbox.CreateRequest{Resources: sandbox.Resources{MemoryMiB: 128}})
		}
		update := func(s *sandbox.Sandbox, req sandbox.UpdateRequest) *sandbox.Sandbox {
			now, err := d.Client.Update(t.Context(), s.ID, req)
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		// Their times begin when all are there: a busy machine is slow to make
		// them.
		expired, idled, later, busy := create(), create(), create(), create()
		expired = update(expired, sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(2))})
		idled = update(idled, sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(2))})
		later = update(later, sandbox.UpdateRequest{LifetimeSeconds: ptr(int64(6))})
		busy = update(busy, sandbox.UpdateRequest{IdleTimeoutSeconds: ptr(int64(2))})
		job, err := d.Client.Exec(t.Context(), busy.ID, sandbox.ExecRequest{Command: []string{"sleep", "6"}, Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.Kill()
		// Nobody is there to end them; the machine must have them still.
		<-time.After(time.Until(idled.LastActiveAt.Add(3 * time.Second)))
		if n := len(d.Cells()); n != 4 {
			t.Errorf("%d sandboxes live without the daemon, want 4", n)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		for id, reason := range map[string]string{expired.ID: "its lifetime of 2s ended", idled.ID: "it was idle for 2s"} {
			ends(t, d, id, started.Add(-time.Second), reason)
		}
		d.NoTraces(t, expired.ID, idled.ID)
		ends(t, d, later.ID, *later.ExpiresAt, "its lifetime of 6s ended")
		stays(t, d, busy.ID, "a background command", job.StartedAt.Add(5500*time.Millisecond))
		ends(t, d, busy.ID, job.StartedAt.Add(8*time.Second), "it was idle for 2s")
	})
}
