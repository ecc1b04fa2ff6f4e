package agent

import (
	"sync"
	"sync/atomic"
	"time"
)

// monitor inspects, again and again, something that has a limit, while there is a
// limit and there are processes that could reach it.
type monitor struct {
	active  func() bool                            // whether there are processes to watch
	inspect func(limit int64) (next time.Duration) // acts if it must; returns when to inspect again

	limit   atomic.Int64
	wake    chan struct{} // a value makes the monitor inspect at once
	stop    chan struct{}
	stopped sync.WaitGroup
}

// start runs the monitor until close is called.
func (m *monitor) start(active func() bool, inspect func(limit int64) time.Duration) {
	m.active, m.inspect = active, inspect
	m.wake = make(chan struct{}, 1)
	m.stop = make(chan struct{})
	m.stopped.Go(m.run)
}

// setLimit sets the limit; 0 is none.
func (m *monitor) setLimit(limit int64) {
	m.limit.Store(limit)
	notify(m.wake)
}

func (m *monitor) close() {
	close(m.stop)
	m.stopped.Wait()
}

func (m *monitor) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var tick <-chan time.Time
		if limit := m.limit.Load(); limit > 0 && m.active() {
			timer.Reset(m.inspect(limit))
			tick = timer.C
		}
		select {
		case <-tick:
		case <-m.wake:
		case <-m.stop:
			return
		}
	}
}

// pause waits for d and reports whether the monitor goes on.
func (m *monitor) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-m.stop:
		return false
	}
}
