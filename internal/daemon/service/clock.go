package service

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/daemon/store"
)

// clockBound is by how much the wall clock may diverge from the machine's
// running time before the times of sandboxes are moved. Corrections by a network
// time service, and the time between two readings, are below it.
const clockBound = 5 * time.Second

// A Clock returns the wall-clock time and how long the machine has run, without
// the time that it slept.
type Clock func() (wall time.Time, running time.Duration, err error)

// readClock is the [Clock] of this machine.
func readClock() (time.Time, time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Now(), time.Duration(ts.Nano()), nil
}

// KeepTime compares the wall clock with the time that the machine has run, and
// moves the ends of lifetimes and idle times of running sandboxes when the
// two have diverged by more than [clockBound]: the clock was set, or the
// machine slept. So lifetimes pass only while the machine runs, although
// users see them as wall-clock times. The janitor calls KeepTime before it looks
// for sandboxes that are due; calls do not overlap.
//
// The lifetime of a paused sandbox is wall-clock time: it also passes during
// reboots.
func (s *Service) KeepTime(ctx context.Context) error {
	wall, running, err := s.cfg.Clock()
	if err != nil {
		return err
	}
	now := store.ClockReading{BootID: s.cfg.Boot.ID, Wall: wall, Running: running}
	if s.clock.BootID == "" {
		if s.clock, err = s.cfg.Store.ClockReading(ctx); err != nil {
			return err
		}
	}
	shift := time.Duration(0)
	if s.clock.BootID == now.BootID {
		if shift = now.Drift(s.clock); shift.Abs() < clockBound {
			return nil
		}
	}
	// After a restart of the machine, no sandbox runs.
	if err := s.cfg.Store.SetClock(ctx, now, shift); err != nil {
		s.clock = store.ClockReading{} // it may have been stored: read it again
		return err
	}
	s.clock = now
	if shift == 0 {
		return nil
	}
	s.mu.Lock()
	for _, h := range s.handles {
		h.shift(wall, shift)
	}
	s.mu.Unlock()
	s.log.Warn("the clock was set or the machine slept; the lifetimes of running sandboxes were moved", "by", shift)
	return nil
}

// shift moves the time of last use after the wall clock was moved; now is the current
// time. A time with a reading of Go's monotonic clock needs no correction.
func (h *handle) shift(now time.Time, by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	move := func(t time.Time) time.Time {
		if t == t.Round(0) { // from the store
			return t.Add(by)
		}
		return now.Add(-now.Sub(t))
	}
	h.active, h.stored = move(h.active), h.stored.Round(0).Add(by)
}
