package storetest

import (
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

func testClock(t *testing.T, open Opener) {
	s := open(t)
	if got, err := s.ClockReading(t.Context()); err != nil || got != (store.ClockReading{}) {
		t.Fatalf("before the first: %+v, %v", got, err)
	}
	end := epoch.Add(time.Hour)
	states := []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping, sandbox.StateKilled}
	for _, state := range states {
		r := plain("sbx-"+string(state), "red", 0)
		r.Name, r.State, r.ExpiresAt, r.LastActiveAt = "", state, &end, epoch
		must(t, s.CreateSandbox(t.Context(), r, store.Quota{}))
	}
	r := plain("sbx-unbounded", "red", 0)
	r.Name, r.State, r.ExpiresAt, r.LastActiveAt = "", sandbox.StateRunning, nil, epoch
	must(t, s.CreateSandbox(t.Context(), r, store.Quota{}))
	check := func(shift time.Duration) {
		t.Helper()
		for _, state := range states {
			want := time.Duration(0)
			if state == sandbox.StateCreating || state == sandbox.StateRunning {
				want = shift
			}
			got, err := s.Sandbox(t.Context(), "sbx-"+string(state))
			must(t, err)
			if !got.ExpiresAt.Equal(end.Add(want)) || !got.LastActiveAt.Equal(epoch.Add(want)) {
				t.Errorf("%s: ends %s, last used %s; want both moved by %s", state, got.ExpiresAt, got.LastActiveAt, want)
			}
		}
		if got, err := s.Sandbox(t.Context(), "sbx-unbounded"); err != nil || got.ExpiresAt != nil {
			t.Errorf("one without an end: %v, %v", got.ExpiresAt, err)
		}
	}
	first := store.ClockReading{BootID: "boot-1", Wall: epoch, Running: time.Minute}
	must(t, s.SetClock(t.Context(), first, 0))
	check(0)
	later := store.ClockReading{BootID: "boot-1", Wall: epoch.Add(3 * time.Hour), Running: 2 * time.Minute}
	must(t, s.SetClock(t.Context(), later, later.Drift(first)))
	check(3*time.Hour - time.Minute)
	must(t, s.Close())
	s = open(t)
	if got, err := s.ClockReading(t.Context()); err != nil || got != later {
		t.Errorf("stored %+v, %v; want %+v", got, err, later)
	}
	must(t, s.SetClock(t.Context(), first, -3*time.Hour+time.Minute))
	check(0)
}
