package cell

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fencePoll bounds how late a cell notices the end of its lease: the clock of a lease goes on
// while the machine sleeps, but timers do not.
const fencePoll = 250 * time.Millisecond

// fence stops a sandbox while its lease has run out: by then the server may continue the
// sandbox on another machine. The zero value has no lease.
type fence struct {
	// now reads the clock; stop and goOn stop the sandbox and let it continue.
	now        func() (time.Duration, error)
	stop, goOn func() error

	mu      sync.Mutex
	until   time.Duration // guarded by mu; 0 is no lease
	stopped bool          // guarded by mu
}

// BootTime reads the clock of leases, CLOCK_BOOTTIME, which all processes of a machine share.
func BootTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// set begins or renews the lease. First reports whether there was none.
func (f *fence) set(until time.Duration) (first bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = f.until == 0
	f.until = max(until, f.until) // calls may overtake each other
	return first, f.check()
}

// look stops the sandbox if the lease has run out.
func (f *fence) look() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.check()
}

// check is look for callers that hold mu.
func (f *fence) check() error {
	now, err := f.now()
	if err != nil {
		now = f.until // the lease cannot be kept
	}
	switch over := now >= f.until; {
	case over && !f.stopped:
		if err := f.stop(); err != nil {
			return err
		}
		f.stopped = true
	case !over && f.stopped:
		if err := f.goOn(); err != nil {
			return err
		}
		f.stopped = false
	}
	return err
}

// fenceRequest renews a lease.
type fenceRequest struct {
	// UntilNanos is when it ends, on [BootTime]'s clock.
	UntilNanos int64 `json:"untilNanos,string"`
}

// setFence begins or renews the lease of the sandbox. If it cannot be kept, the sandbox ends.
func (c *cell) setFence(_ context.Context, req *fenceRequest) (*empty, error) {
	first, err := c.fence.set(time.Duration(req.UntilNanos))
	if err != nil {
		return nil, err
	}
	if first {
		c.wg.Go(c.keepFence)
	}
	return &empty{}, nil
}

// keepFence watches the lease until the sandbox ends.
func (c *cell) keepFence() {
	tick := time.NewTicker(fencePoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.gone:
			return
		}
		if err := c.fence.look(); err != nil {
			c.log.Error("the lease of the sandbox cannot be kept; it ends", "error", err)
			c.sb.Kill()
		}
	}
}
