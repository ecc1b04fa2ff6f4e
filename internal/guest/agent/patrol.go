package agent

import (
	"sync"
	"sync/atomic"
	"time"
)

// patrol looks again and again at something that has a limit, as long as
// there is one and there are processes that could reach it.
type patrol struct {
	busy func() bool                            // whether there are processes to watch
	look func(limit int64) (next time.Duration) // acts if it must; says when to look again

	limit   atomic.Int64
	wake    chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
}

// init makes p ready for one call of run, which close waits for.
func (p *patrol) init(busy func() bool, look func(limit int64) time.Duration) {
	p.busy, p.look = busy, look
	p.wake = make(chan struct{}, 1)
	p.stop = make(chan struct{})
	p.stopped.Add(1)
}

// setLimit sets the limit; 0 is none.
func (p *patrol) setLimit(limit int64) {
	p.limit.Store(limit)
	p.poke()
}

// poke makes it look at once.
func (p *patrol) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *patrol) close() {
	close(p.stop)
	p.stopped.Wait()
}

func (p *patrol) run() {
	defer p.stopped.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var tick <-chan time.Time
		if limit := p.limit.Load(); limit > 0 && p.busy() {
			timer.Reset(p.look(limit))
			tick = timer.C
		}
		select {
		case <-tick:
		case <-p.wake:
		case <-p.stop:
			return
		}
	}
}

// pause waits for d and reports whether the patrol goes on.
func (p *patrol) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.stop:
		return false
	}
}
