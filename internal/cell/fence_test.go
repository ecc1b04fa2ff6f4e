package cell

import (
	"errors"
	"testing"
	"time"
)

// TestFence follows a lease: the sandbox stops when it has run out, goes on when it is
// renewed, and stops at once if the lease is over already or the clock cannot be read.
func TestFence(t *testing.T) {
	var now time.Duration
	var broken error
	runs := true
	f := &fence{
		now:  func() (time.Duration, error) { return now, broken },
		stop: func() error { runs = false; return nil },
		goOn: func() error { runs = true; return nil },
	}
	step := func(at time.Duration, want bool) {
		t.Helper()
		now = at
		if err := f.look(); !errors.Is(err, broken) || runs != want {
			t.Errorf("at %d it runs: %v, %v", at, runs, err)
		}
	}
	renew := func(until time.Duration, want bool) {
		t.Helper()
		if first, err := f.set(until); err != nil || first != (until == 10) || runs != want {
			t.Errorf("with a lease until %d it runs: %v, first %v, %v", until, runs, first, err)
		}
	}
	renew(10, true)
	step(9, true)
	step(10, false)
	step(11, false)
	renew(20, true)
	renew(15, true) // late
	step(19, true)
	step(25, false)
	renew(24, false)
	renew(30, true)
	broken = errors.New("no clock")
	step(26, false)
	broken = nil
	step(27, true)
}
