package cells

import (
	"context"
	"sync"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

var _ engine.Expecter = (*Engine)(nil)

// expectation is standbys for instances that will be created soon, which nobody
// else takes.
type expectation struct {
	key string // of their spec
	// open is how many of the instances have not come for theirs. Guarded by the
	// engine's mu.
	open  int
	ready []*standby // some are being prepared; guarded by the engine's mu
}

// Expect implements [engine.Expecter].
func (e *Engine) Expect(ctx context.Context, of string, ids []string, root engine.Root, r sandbox.Resources) func() {
	from, err := readOrigin(e.cellDir(of))
	if err != nil {
		return func() {} // the checkpoint meets the same error and tells it
	}
	spec := standbySpec{Root: root, Resources: r, Program: from.Program, Cell: from.Cell, AgentDir: from.AgentDir}
	x := &expectation{key: spec.key(), open: len(ids)}
	e.mu.Lock()
	for _, id := range ids {
		e.expected[id] = x
	}
	e.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	var making sync.WaitGroup
	making.Go(func() { e.makeExpected(ctx, x, spec) })
	return func() {
		stop()
		cancel()
		making.Wait()
		e.mu.Lock()
		for _, id := range ids {
			delete(e.expected, id)
		}
		e.mu.Unlock()
		var wg sync.WaitGroup
		for _, sb := range x.ready { // nobody finds them any more
			wg.Go(func() { e.abandon(sb) })
		}
		wg.Wait()
	}
}

// makeExpected takes the standbys that wait, and makes the missing ones, one at a
// time: the instance that is being saved meanwhile stands still, and needs a
// processor too. Those that it does not come to, or for which there is no memory,
// the instances make for themselves.
func (e *Engine) makeExpected(ctx context.Context, x *expectation, spec standbySpec) {
	for ctx.Err() == nil {
		e.mu.Lock()
		lacks := len(x.ready) < x.open
		e.mu.Unlock()
		if !lacks {
			return
		}
		sb := e.take(spec)
		if sb == nil {
			if e.admissions.room() < standbyBytes {
				return
			}
			var err error
			if sb, err = e.startStandby(spec); err != nil {
				return // the instances meet the same error and tell it
			}
		}
		sb.ahead = true
		e.mu.Lock()
		x.ready = append(x.ready, sb)
		e.mu.Unlock()
		_ = sb.await(ctx) // whoever takes it hears of an error
	}
}

// takeFor is take for an instance that may be expected.
func (e *Engine) takeFor(id string, spec standbySpec) *standby {
	if sb := e.takeExpected(id, spec.key()); sb != nil {
		return sb
	}
	return e.take(spec)
}

// takeExpected returns a standby that was made for an instance, or nil.
func (e *Engine) takeExpected(id, key string) *standby {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.expected[id]
	if x == nil {
		return nil
	}
	delete(e.expected, id)
	x.open--
	if x.key != key {
		return nil
	}
	for len(x.ready) > 0 {
		sb := x.ready[0]
		x.ready = x.ready[1:]
		if !sb.hasExited() {
			return sb
		}
		e.wg.Go(func() { e.abandon(sb) })
	}
	return nil
}
