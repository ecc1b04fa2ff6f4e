// Package checkpoints tests the verbs of time on real sandboxes: programs continue
// after a pause, in a fork and from a snapshot, and comparing and merging are right.
package checkpoints

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Everything that can run in a sandbox continues after a pause, whatever happens to the
// daemon and the machine meanwhile. "make soak" also has the milder cases.
func TestSurvives(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		w := build(t, d, "subject", memoryMiB())
		last := w.ask(t)
		w.checkJobs(t, "at first")
		made := w.make(t, "0.3")
		for _, round := range []struct {
			name      string
			soak      bool
			meanwhile func(t *testing.T)
		}{
			{"paused and resumed", true, func(*testing.T) {}},
			{"the daemon was stopped", true, func(t *testing.T) { restart(t, d, d.Stop) }},
			{"the daemon was killed", true, func(t *testing.T) { restart(t, d, func() error { d.Kill(); return nil }) }},
			{"the machine was restarted", false, func(t *testing.T) {
				other := d.Create(t, sandbox.CreateRequest{})
				restart(t, d, func() error { d.Kill(); d.PowerCut(t); return nil })
				if got, err := d.Client.Get(t.Context(), other.ID); err != nil || got.State != sandbox.StateFailed {
					t.Errorf("a sandbox that ran: %+v, %v; want it failed", got, err)
				}
			}},
			{"paused and resumed again", false, func(*testing.T) {}},
		} {
			if round.soak && !needs.Soak() {
				continue
			}
			w.pause(t)
			round.meanwhile(t)
			got, err := d.Client.Get(t.Context(), w.id)
			if err != nil || got.State != sandbox.StatePaused || got.Name != w.hostname {
				t.Fatalf("%s: %+v, %v; want it paused", round.name, got, err)
			}
			if got, err := d.Client.Resume(t.Context(), w.id, sandbox.ResumeRequest{}); err != nil || got.State != sandbox.StateRunning {
				t.Fatalf("%s: resume: %+v, %v", round.name, got, err)
			}
			last = w.check(t, round.name, last)
			w.checkJobs(t, round.name)
		}
		w.checkMade(t, "in the end", made)
		// The outside answers at once, and nothing is left of earlier connections
		// to the agent.
		if got := d.Sh(t, w.id, "python3 w/w.py network"); got != "ConnectionRefusedError True True\n" {
			t.Errorf("a connection to the outside, whether soon, and whether no old ones are left: %s", got)
		}
	})
}

// pause pauses the sandbox and checks that nothing of it runs.
func (w *subject) pause(t *testing.T) {
	t.Helper()
	got, err := w.d.Client.Pause(t.Context(), w.id)
	if err != nil || got.State != sandbox.StatePaused {
		t.Fatalf("pause: %+v, %v", got, err)
	}
	if living := w.d.Cells(); living[w.id] != 0 {
		t.Errorf("the cell of a paused sandbox lives: %v", living)
	}
}

// restart ends the daemon in some way and starts another.
func restart(t *testing.T, d *covetest.Daemon, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}
