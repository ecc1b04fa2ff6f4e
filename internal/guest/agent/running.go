package agent

import (
	"sync"
	"time"
)

// When a sandbox is resumed, all its clocks jump forward by the length of the pause,
// the monotonic one too, and every timer is due at once. Limits on running time are
// therefore counted in short intervals; one that took far too long counts only for
// its planned length.

const (
	// runPiece is the length of the intervals of a [runTimer].
	runPiece = time.Second
	// runLate is how late an interval may end on a busy machine and still count in
	// full. A pause shorter than that counts too.
	runLate = 2 * time.Second
)

// runTime returns for how long the sandbox ran in an interval that was planned to
// take planned and took elapsed.
func runTime(planned, elapsed time.Duration) time.Duration {
	if elapsed > planned+runLate {
		return planned
	}
	return elapsed
}

// runTimer calls a function once, after the sandbox has run for some time. Its
// methods are safe for concurrent use.
type runTimer struct {
	f   func()
	now func() time.Time

	mu      sync.Mutex
	timer   *time.Timer   // guarded by mu; nil when stopped or over
	left    time.Duration // guarded by mu
	started time.Time     // guarded by mu; when the current interval began
}

// afterRunning calls f in a goroutine of its own after d.
func afterRunning(d time.Duration, f func()) *runTimer {
	t := &runTimer{f: f, now: time.Now, left: d}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = t.now()
	t.timer = time.AfterFunc(t.piece(), t.tick)
	return t
}

// Preconditions: t.mu is held.
func (t *runTimer) piece() time.Duration { return max(0, min(t.left, runPiece)) }

func (t *runTimer) tick() {
	if t.over() {
		t.f()
	}
}

// over is called at the end of an interval. It reports whether that was the last
// one; otherwise it begins the next.
func (t *runTimer) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return false
	}
	now := t.now()
	t.left -= runTime(t.piece(), now.Sub(t.started))
	if t.left <= 0 {
		t.timer = nil
		return true
	}
	t.started = now
	t.timer.Reset(t.piece())
	return false
}

// stop keeps the function from being called, unless that has begun. A nil timer is
// stopped.
func (t *runTimer) stop() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
