package checkpoints

import (
	"context"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Who follows events hears of forks and of a job that ends after a pause, and takes a stream up
// again without a loss. In "make test", the tests of package service/events stand for it.
func TestMoreEvents(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		box := d.Create(t, covetest.Small())
		events, done := make(chan sandbox.Event, 256), make(chan error, 1)
		go func() {
			done <- d.Client.FollowEvents(ctx, sandbox.FollowEventsRequest{}, func(e sandbox.Event) error { events <- e; return nil })
		}()
		until := func(what string, is func(*sandbox.Event) bool) sandbox.Event {
			t.Helper()
			for {
				select {
				case e := <-events:
					if is(&e) {
						return e
					}
				case err := <-done:
					t.Fatalf("%s is not told; the stream ended with %v", what, err)
				}
			}
		}
		state := func(id string, s sandbox.State) func(*sandbox.Event) bool {
			return func(e *sandbox.Event) bool { return e.SandboxID == id && e.Sandbox != nil && e.Sandbox.State == s }
		}
		begun := until("the beginning", func(e *sandbox.Event) bool { return e.Kind == sandbox.EventBegun && !e.Missed })
		job, err := d.Client.Exec(ctx, box.ID, sandbox.ExecRequest{Shell: "until [ -e go ]; do sleep 0.05; done; exit 3", Background: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.Pause(ctx, box.ID); err != nil {
			t.Fatal(err)
		}
		until("the pause", state(box.ID, sandbox.StatePaused))
		forked, err := d.Client.Fork(ctx, box.ID, sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		child := forked.Items[0]
		t.Cleanup(func() { _, _ = d.Client.Kill(context.WithoutCancel(ctx), child.ID) })
		fork := until("the fork", state(child.ID, sandbox.StateRunning))
		if fork.Sandbox.ForkedFrom != box.ID {
			t.Errorf("the fork is told to be of %q", fork.Sandbox.ForkedFrom)
		}
		d.Sh(t, box.ID, "touch go")
		ended := func(e *sandbox.Event) bool {
			return e.Job != nil && e.Job.ID == job.ID && e.Job.State == sandbox.JobExited
		}
		if end := until("the end of the job", func(e *sandbox.Event) bool { return e.SandboxID == box.ID && ended(e) }); end.Job.ExitCode != 3 {
			t.Errorf("the job is told to have ended with %d", end.Job.ExitCode)
		}
		// From the beginning on, once more.
		var again []string
		err = d.Client.FollowEvents(ctx, sandbox.FollowEventsRequest{After: begun.ID, Once: true, Sandbox: box.ID}, func(e sandbox.Event) error {
			if e.Missed {
				t.Error("events are told to be missing")
			}
			if e.Sandbox != nil {
				again = append(again, string(e.Sandbox.State))
			}
			return nil
		})
		if err != nil || len(again) == 0 || again[0] != string(sandbox.StatePaused) {
			t.Errorf("the states are told again as %q, %v", again, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("leaving gave %v", err)
		}
	})
}
