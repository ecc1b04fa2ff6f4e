package service

import (
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// testClock is a [Clock] that a test sets.
type testClock struct {
	wall    time.Time
	running time.Duration
}

func (c *testClock) read() (time.Time, time.Duration, error) { return c.wall, c.running, nil }

// A step of the wall clock and a sleep of the machine move the lifetimes of
// running sandboxes, also when they happen while no daemon runs, and end none.
func TestLifetimesFollowTheRunningTime(t *testing.T) {
	clock := &testClock{wall: time.Now(), running: time.Hour}
	w := newHarness(t, func(c *Config) { c.Clock = clock.read })
	lifetime := int64(3600)
	running := w.create(sandbox.CreateRequest{LifetimeSeconds: &lifetime, IdleTimeoutSeconds: &lifetime})
	paused := w.create(sandbox.CreateRequest{LifetimeSeconds: &lifetime})
	w.pause(paused.ID)
	first, kept := w.record(running.ID), w.record(paused.ID)
	moved := func(what string, want time.Duration) {
		t.Helper()
		got := w.record(running.ID)
		if ends, used := got.ExpiresAt.Sub(*first.ExpiresAt), got.LastActiveAt.Sub(first.LastActiveAt); ends != want || used != want {
			t.Errorf("%s: its end was moved by %s and its last use by %s, want %s", what, ends, used, want)
		}
		if now := w.record(paused.ID); !now.ExpiresAt.Equal(*kept.ExpiresAt) {
			t.Errorf("%s: the end of the paused one was moved by %s", what, now.ExpiresAt.Sub(*kept.ExpiresAt))
		}
	}
	pass := func(wall, running time.Duration) {
		clock.wall, clock.running = clock.wall.Add(wall), clock.running+running
	}
	pass(time.Hour, time.Hour)
	must(t, w.KeepTime(t.Context()))
	moved("an hour that the machine ran", 0)
	pass(time.Minute+clockBound-1, time.Minute)
	must(t, w.KeepTime(t.Context()))
	moved("a correction within the bound", 0)
	pass(1, 0)
	must(t, w.KeepTime(t.Context()))
	moved("with it at the bound", clockBound)
	pass(9*time.Hour, time.Second)
	must(t, w.KeepTime(t.Context()))
	want := clockBound + 9*time.Hour - time.Second
	moved("a sleep", want)
	w.stop()
	pass(-5*time.Hour, time.Minute)
	w.start()
	want += -5*time.Hour - time.Minute
	moved("a step back while no daemon ran", want)
	if at, _ := w.handles[running.ID].lastActive(); at.Sub(first.LastActiveAt) != want {
		t.Errorf("its handle was last active at %s", at)
	}
	w.stop()
	pass(24*time.Hour, -time.Hour)
	w.cfg.Boot.ID = "boot-2"
	w.open()
	must(t, w.KeepTime(t.Context()))
	moved("a restart of the machine", want)
	got, err := w.store.ClockReading(t.Context())
	if err != nil || got.BootID != "boot-2" || got.Running != clock.running {
		t.Errorf("the stored reading is %+v, %v", got, err)
	}
}

// A sandbox whose end has passed on the wall clock only, while the machine
// slept, is not ended.
func TestSleepEndsNoSandbox(t *testing.T) {
	clock := &testClock{wall: time.Now().Add(-2 * time.Hour), running: time.Hour}
	w := newHarness(t, func(c *Config) { c.Clock = clock.read })
	sbx := w.create(sandbox.CreateRequest{})
	before := time.Now().Add(-time.Hour) // two hours ago, an hour was left
	_, err := w.store.UpdateSandbox(t.Context(), sbx.ID, store.Change{Apply: func(r *store.Record) error {
		r.ExpiresAt = &before
		return nil
	}})
	must(t, err)
	clock.wall = time.Now()
	must(t, w.KeepTime(t.Context()))
	must(t, w.Expire(t.Context(), sbx.ID))
	if got := w.get(sbx.ID); got.State != sandbox.StateRunning || time.Until(*got.ExpiresAt) < 59*time.Minute {
		t.Errorf("it is %s and ends at %s, want it running for an hour", got.State, got.ExpiresAt)
	}
}

// The time of last use is right after a step of the wall clock, for a sandbox that was
// used since it was opened.
func TestHandleAfterStep(t *testing.T) {
	now := time.Now()
	used := now.Add(-time.Minute) // with a monotonic reading, whatever the wall clock said
	h := &handle{active: used, stored: used.Round(0).Add(-time.Hour)}
	h.shift(now, time.Hour)
	if at, _ := h.lastActive(); now.Sub(at) != time.Minute || now.Round(0).Sub(at.Round(0)) != time.Minute {
		t.Errorf("it was last used %s ago, want a minute", now.Sub(at))
	}
	if !h.stored.Equal(used.Round(0)) {
		t.Errorf("stored is %s", h.stored)
	}
}
