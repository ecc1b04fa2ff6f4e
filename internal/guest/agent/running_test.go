package agent

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRunTime(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		planned, elapsed, want time.Duration
	}{
		{"on time", time.Second, time.Second, time.Second},
		{"a busy machine", time.Second, 2900 * time.Millisecond, 2900 * time.Millisecond},
		{"paused for an hour", time.Second, time.Hour, time.Second},
		{"paused in a short piece", time.Millisecond, time.Hour, time.Millisecond},
		{"a clock that was set back", time.Second, 0, 0},
	} {
		if got := runTime(tt.planned, tt.elapsed); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRunTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := make(chan time.Duration, 2)
		afterRunning(10*time.Second+time.Millisecond, func() { at <- time.Since(start) })
		if got := <-at; got != 10*time.Second+time.Millisecond {
			t.Errorf("called after %v", got)
		}
		stopped := afterRunning(3*time.Second, func() { t.Error("called after it was stopped") })
		time.Sleep(2500 * time.Millisecond)
		stopped.stop()
		stopped.stop()
		afterRunning(0, func() { at <- time.Since(start) })
		<-at
		time.Sleep(time.Minute)
	})
}

// A jump of the clock, such as a pause, uses up at most one interval of the time left.
func TestRunTimerJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var jump atomic.Int64
		at := make(chan time.Duration, 1)
		timer := &runTimer{f: func() { at <- time.Since(start) }, left: 20 * time.Second, started: start}
		timer.now = func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		timer.mu.Lock()
		timer.timer = time.AfterFunc(runPiece, timer.tick)
		timer.mu.Unlock()
		for range 5 {
			time.Sleep(1500 * time.Millisecond)
			jump.Add(int64(time.Hour))
		}
		if got := <-at; got < 15*time.Second || got > 20*time.Second {
			t.Errorf("called after running for %v", got)
		}
	})
}
