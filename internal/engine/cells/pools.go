package cells

import (
	"slices"
	"time"
)

const (
	// maxBlank bounds the blank standbys that wait at a time, for all specs.
	maxBlank = 8
	// standbyBytes is about what a waiting standby costs in memory.
	standbyBytes = 48 << 20
	// memoryShare is the part of the free memory that standbys may take, as one in
	// so many: where there is little, all of it is for sandboxes.
	memoryShare = 8
	// demandWindow is how far back demand is counted: so many standbys wait as
	// were taken within it.
	demandWindow = 20 * time.Second
	// surplusLife is how long standbys wait that a burst has left behind.
	surplusLife = 2 * time.Minute
	// poolLife is how long a kind of standby waits that nobody takes. When that is
	// over for all kinds, the engine is idle.
	poolLife = 10 * time.Minute
	// shortPause is how long memory is short before anybody looks again.
	shortPause = 10 * time.Second
)

// pool is the standbys of one spec that wait.
type pool struct {
	spec  standbySpec
	ready []*standby // the oldest first
	// max is set for warm pools; the others are blank. Unfit, if not nil, is told
	// why no standby can be made.
	max    int
	unfit  func(error)
	taken  []demand // within surplusLife, the oldest first
	used   time.Time
	faults faults
}

// demand is how many standbys of a pool were wanted in the demandWindow up to a
// moment.
type demand struct {
	at time.Time
	n  int
}

// want notes that a standby is wanted.
func (p *pool) want(now time.Time) {
	p.used = now
	p.taken = slices.DeleteFunc(p.taken, func(d demand) bool { return now.Sub(d.at) > surplusLife })
	p.taken = append(p.taken, demand{now, p.recent(now) + 1})
}

// recent is how many were wanted within the demandWindow.
func (p *pool) recent(now time.Time) int {
	n := 0
	for _, d := range p.taken {
		if now.Sub(d.at) <= demandWindow {
			n++
		}
	}
	return n
}

// peak is the most that were wanted at a time within surplusLife, and until when
// that holds.
func (p *pool) peak(now time.Time) (n int, until time.Time) {
	for _, d := range p.taken {
		if at := d.at.Add(surplusLife); at.After(now) {
			n, until = max(n, d.n), sooner(until, at)
		}
	}
	return n, until
}

// bounded returns how many standbys wait for a demand.
func (p *pool) bounded(demand int) int {
	limit := p.max
	if limit == 0 {
		limit = maxBlank
	}
	return min(max(1, demand), limit)
}

// worked notes that a standby was good for a sandbox.
func (p *pool) worked() { p.faults = faults{} }

// faults counts the standbys in a row that could not be made, or ended while they
// waited, and says when the next may be made.
type faults struct {
	n     int
	again time.Time
}

// failed notes one more. Each doubles the pause, from a second up to a minute.
// Those that end in a pause are no successors of what ended before it: something
// has ended several at once.
func (f *faults) failed(now time.Time) {
	const first, longest = time.Second, time.Minute
	if f.again.After(now) {
		return
	}
	f.again = now.Add(min(first<<min(f.n, 10), longest))
	f.n++
}

// pools are those of an engine by the keys of their specs.
type pools map[string]*pool

// plan is what is to be done about pools.
type plan struct {
	// surplus are standbys that have left their pools, to be ended.
	surplus []*standby
	// missing is the spec of a standby to be made next, or nil.
	missing *standbySpec
	// active is set while any kind of standby was wanted within poolLife.
	active bool
	// again is when there will be something else to do though nothing happens;
	// zero is never.
	again time.Time
}

// plan takes what nobody needs any more out of the pools and says what they
// lack. Headroom is the memory in bytes that is free for sandboxes.
func (all pools) plan(now time.Time, headroom int64) plan {
	var todo plan
	blank, waiting := 0, 0
	var wanted []*pool
	for key, p := range all {
		end := p.used.Add(poolLife)
		if !end.After(now) {
			todo.surplus = append(todo.surplus, p.ready...)
			p.ready = nil
			if p.max == 0 {
				delete(all, key)
			}
			continue
		}
		todo.active, todo.again = true, sooner(todo.again, end)
		n, until := p.peak(now)
		if keep := p.bounded(n); len(p.ready) > keep {
			todo.surplus = append(todo.surplus, p.ready[keep:]...)
			p.ready = slices.Clip(p.ready[:keep])
		}
		if len(p.ready) > 1 {
			todo.again = sooner(todo.again, until)
		}
		if p.max == 0 {
			blank += len(p.ready)
		}
		waiting += len(p.ready)
		wanted = append(wanted, p)
	}
	room := headroom/memoryShare/standbyBytes - int64(waiting)
	// The most recently used first.
	slices.SortFunc(wanted, func(a, b *pool) int { return b.used.Compare(a.used) })
	for i, p := range wanted {
		switch {
		case len(p.ready) >= p.bounded(p.recent(now)):
		case p.max == 0 && i > 0 && blank >= maxBlank:
		case p.faults.again.After(now):
			todo.again = sooner(todo.again, p.faults.again)
		case room <= 0:
			todo.again = sooner(todo.again, now.Add(shortPause))
		case todo.missing == nil:
			todo.missing = &p.spec
		}
	}
	return todo
}

// lose takes the standby of an ended process out of its pool and returns it, or
// nil if none waited there.
func (all pools) lose(ended *process, now time.Time) *standby {
	for _, p := range all {
		for i, sb := range p.ready {
			if sb.process != ended {
				continue
			}
			p.ready = slices.Delete(p.ready, i, i+1)
			if now.Sub(sb.since) >= surplusLife {
				p.worked() // it was sound
			}
			p.faults.failed(now)
			return sb
		}
	}
	return nil
}

// sooner returns the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
