package store

import (
	"context"
	"time"
)

// ClockReading is the wall clock and the running time of a machine at one
// instant.
type ClockReading struct {
	// BootID identifies the run of the machine.
	BootID string
	Wall   time.Time
	// Running is how long the machine has run since it was started, without
	// the time that it slept.
	Running time.Duration
}

// Drift is by how much the wall clock has run away from the running time since
// an earlier reading of the same run of the machine: positive after a step
// ahead or a sleep.
func (r ClockReading) Drift(earlier ClockReading) time.Duration {
	return r.Wall.Round(0).Sub(earlier.Wall.Round(0)) - (r.Running - earlier.Running)
}

// Clock keeps the times in the record in line with the running time of the
// machine.
type Clock interface {
	// ClockReading returns what was stored last, or a zero one.
	ClockReading(ctx context.Context) (ClockReading, error)
	// SetClock stores a reading and, in the same step, moves the ends of
	// lifetimes and the times of last use of sandboxes that are being created
	// or running by shift. Those of paused ones are wall-clock times and stay.
	SetClock(ctx context.Context, r ClockReading, shift time.Duration) error
}
