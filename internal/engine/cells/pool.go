package cells

import (
	"context"
	"errors"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// standbyTimeout limits the time to make a standby before it is needed.
const standbyTimeout = time.Minute

// take returns a waiting standby of this spec, or nil, and records the demand.
func (e *Engine) take(spec standbySpec) *standby {
	if len(spec.Mounts) > 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := spec.key()
	p := e.pools[key]
	if p == nil {
		if spec.FilesFrom != "" || spec.Restore != "" {
			return nil
		}
		p = &pool{spec: spec}
		e.pools[key] = p
	}
	defer e.stock()
	p.want(time.Now())
	for len(p.ready) > 0 {
		sb := p.ready[0]
		p.ready = p.ready[1:]
		if !sb.hasExited() {
			p.worked()
			return sb
		}
		e.abandonLater(sb)
	}
	return nil
}

// abandonLater abandons standbys in the background.
func (e *Engine) abandonLater(standbys ...*standby) {
	for _, sb := range standbys {
		e.wg.Go(func() { e.abandon(sb) })
	}
}

// stock wakes stockLoop.
func (e *Engine) stock() {
	select {
	case e.restock <- struct{}{}:
	default:
	}
}

// stockLoop makes standbys before they are needed, one at a time, and ends surplus ones,
// until the engine is closed.
func (e *Engine) stockLoop() {
	var later <-chan time.Time
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.restock:
		case <-later:
		}
		later = nil
		if at := e.maintainPools(); !at.IsZero() {
			later = time.After(time.Until(at))
		}
	}
}

// maintainPools makes and ends standbys as needed now. It returns when it must run again even if
// nothing happens; zero means never.
func (e *Engine) maintainPools() time.Time {
	for e.ctx.Err() == nil {
		e.awaitQuiet()
		headroom := e.admissions.room()
		e.mu.Lock()
		todo := e.pools.plan(time.Now(), headroom)
		e.mu.Unlock()
		e.abandonLater(todo.surplus...)
		if todo.missing != nil {
			e.makeOneStandby(*todo.missing)
			continue
		}
		if !todo.active {
			e.rest()
			return todo.again
		}
		return earlier(todo.again, e.refill())
	}
	return time.Time{}
}

// rest releases what only the next creation would need.
func (e *Engine) rest() {
	e.mu.Lock()
	p, rested := e.spare, e.resting
	e.spare, e.resting = nil, true
	e.mu.Unlock()
	if p != nil {
		p.dismiss()
	}
	if !rested {
		debug.FreeOSMemory()
	}
}

// lost removes what is left of a cell that ended before it was taken.
func (e *Engine) lost(p *process) {
	e.mu.Lock()
	if e.spare == p {
		e.spare = nil
		e.spareFaults.failed(time.Now())
		e.stock()
	}
	sb := e.pools.removeEnded(p, time.Now())
	e.mu.Unlock()
	if sb == nil {
		return
	}
	e.cfg.Log.Warn("a waiting standby has ended", "standby", filepath.Base(sb.dir))
	e.abandon(sb)
	e.stock()
}

// awaitQuiet waits until no call has been in progress for a moment: standbys must not
// compete for the processor with sandboxes that are needed now. Under a steady load it
// waits at most patience.
func (e *Engine) awaitQuiet() {
	const pause, patience = 100 * time.Millisecond, 300 * time.Millisecond
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < patience; {
		e.mu.Lock()
		quiet := e.busy == 0 && time.Since(e.lastBusy) > pause
		e.mu.Unlock()
		if quiet {
			return
		}
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return
		}
	}
}

// occupied records that a caller waits for the engine, until the returned function is
// called.
func (e *Engine) occupied() func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.busy--
		e.lastBusy = time.Now()
	}
}

// makeOneStandby makes one standby and adds it to its pool.
func (e *Engine) makeOneStandby(spec standbySpec) {
	ctx, cancel := context.WithTimeout(e.ctx, standbyTimeout)
	defer cancel()
	// Sandboxes for which a caller waits take precedence.
	if err := e.starts.Acquire(ctx, 1); err != nil {
		return
	}
	defer e.starts.Release(1)
	sb, unfit, err := e.makeStandby(ctx, spec)
	if err != nil && e.ctx.Err() == nil {
		e.cfg.Log.Warn("make a standby ahead of need", "error", detailed(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pools[spec.key()]
	switch {
	case err == nil && (p == nil || e.ctx.Err() != nil):
		e.abandonLater(sb)
	case p == nil:
	case err != nil:
		p.faults.failed(time.Now())
		if report := p.unfit; unfit && report != nil && ctx.Err() == nil {
			e.wg.Go(func() { report(err) })
		}
	case sb.hasExited(): // before it was in the pool, where lost looks for it
		p.faults.failed(time.Now())
		e.abandonLater(sb)
	default:
		sb.since, sb.ahead = time.Now(), true
		p.ready = append(p.ready, sb)
	}
}

// makeStandby makes a standby and waits until it is prepared. unfit reports whether the
// checkpoint from which the standby continues is the cause of the error.
func (e *Engine) makeStandby(ctx context.Context, spec standbySpec) (_ *standby, unfit bool, _ error) {
	if spec.Restore != "" {
		m, err := e.restorable(filepath.Base(spec.Restore), false)
		if err == nil {
			err = e.verify(&m, true)
		}
		if err != nil {
			return nil, true, err
		}
	}
	sb, err := e.startStandby(spec)
	if err != nil {
		return nil, false, err
	}
	if err := sb.await(ctx); err != nil {
		e.abandon(sb)
		return nil, spec.blames(err), err
	}
	return sb, false, nil
}

// blames reports whether the standby's checkpoint is the cause of an error of its cell. A
// cell that ended without an error was killed.
func (s *standbySpec) blames(err error) bool {
	return s.Restore != "" && !errors.Is(err, errCellEnded)
}

// dropPool ends the standbys of a pool. The caller must hold e.mu.
func (e *Engine) dropPool(key string) {
	e.abandonLater(e.pools[key].ready...)
	delete(e.pools, key)
}

// Warm implements [engine.Checkpointer].
func (e *Engine) Warm(specs []engine.WarmSpec) {
	keep := pools{}
	for _, w := range specs {
		m, err := e.checkpoints.Manifest(w.Checkpoint)
		if err != nil {
			e.cfg.Log.Warn("keep sandboxes warm", "checkpoint", w.Checkpoint, "error", err)
			continue
		}
		spec := e.standbyFor(&m, w.Root, w.Resources)
		spec.Restore = e.checkpoints.Path(m.ID)
		keep[spec.key()] = &pool{spec: spec, max: max(1, w.Max), unfit: w.Failed, used: time.Now()}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, p := range e.pools {
		if _, ok := keep[key]; p.max > 0 && !ok {
			e.dropPool(key)
		}
	}
	for key, p := range keep {
		if old, ok := e.pools[key]; ok {
			old.max, old.unfit = p.max, p.unfit
			continue
		}
		e.pools[key] = p
	}
	e.stock()
}
