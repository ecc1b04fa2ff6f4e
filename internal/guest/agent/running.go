package agent

import (
	"sync"
	"time"
)

// A sandbox that is paused and resumed sees all its clocks jump forward by the
// time in between, the monotonic one too: all that waited is due at once. What
// is meant as time in which the sandbox runs is therefore counted in small
// pieces, of which one that took far too long counts no more than it should have
// taken.

const (
	// runPiece is how long the pieces of a [runTimer] are.
	runPiece = time.Second
	// runLate is by how much more a piece may last on a busy machine and still
	// counts whole. A pause that is shorter counts as well.
	runLate = 2 * time.Second
)

// runTime returns how much of a piece that was to last for planned, and ended
// after elapsed, the sandbox ran.
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
	started time.Time     // guarded by mu; when the present piece began
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

// over is called at the end of a piece. It reports whether that was the last
// one, and otherwise begins the next.
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

// stop keeps the function from being called, unless it has begun.
func (t *runTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
