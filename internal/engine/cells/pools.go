package cells

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxBlank limits the waiting blank standbys of all specs.
	maxBlank = 8
	// standbyBytes is approximately how much memory a waiting standby uses.
	standbyBytes = 48 << 20
	// Standbys may use 1/memoryShare of the free memory: if there is little, all of it is
	// for sandboxes.
	memoryShare = 8
	// demandWindow is the time over which demand is counted: as many standbys wait as were
	// taken within it.
	demandWindow = 20 * time.Second
	// surplusLife is how long surplus standbys wait after a burst.
	surplusLife = 2 * time.Minute
	// poolLife is how long standbys of one spec wait without being taken. When it has passed
	// for all specs, the engine is idle.
	poolLife = 10 * time.Minute
	// shortPause is the wait between checks while memory is short.
	shortPause = 10 * time.Second
)

// pool is the waiting standbys of one spec.
type pool struct {
	spec  standbySpec
	ready []*standby // oldest first
	// max is set for warm pools; the others are blank. unfit, if not nil, is called with the
	// reason why no standby can be made.
	max    int
	unfit  func(error)
	taken  []demand // within surplusLife, oldest first
	used   time.Time
	faults faults
}

// demand is how many standbys of a pool were wanted in the demandWindow before a time.
type demand struct {
	at time.Time
	n  int
}

// want records that a standby is wanted.
func (p *pool) want(now time.Time) {
	p.used = now
	p.taken = slices.DeleteFunc(p.taken, func(d demand) bool { return now.Sub(d.at) > surplusLife })
	p.taken = append(p.taken, demand{now, p.recent(now) + 1})
}

// recent returns how many standbys were wanted within the demandWindow.
func (p *pool) recent(now time.Time) int {
	n := 0
	for _, d := range p.taken {
		if now.Sub(d.at) <= demandWindow {
			n++
		}
	}
	return n
}

// peak returns the highest demand within surplusLife, and when it may change.
func (p *pool) peak(now time.Time) (n int, until time.Time) {
	for _, d := range p.taken {
		if at := d.at.Add(surplusLife); at.After(now) {
			n, until = max(n, d.n), earlier(until, at)
		}
	}
	return n, until
}

// bounded returns how many standbys should wait for a demand.
func (p *pool) bounded(demand int) int {
	return min(max(1, demand), cmp.Or(p.max, maxBlank))
}

// worked records that a standby worked.
func (p *pool) worked() { p.faults = faults{} }

// faults counts successive standbys that could not be made, or that ended while they
// waited. The next one may be made at the time again.
type faults struct {
	n     int
	again time.Time
}

// failed records a fault. Each doubles the pause, from a second up to a minute. Faults
// during a pause do not count: several standbys ended at once then.
func (f *faults) failed(now time.Time) {
	const first, longest = time.Second, time.Minute
	if f.again.After(now) {
		return
	}
	f.again = now.Add(min(first<<min(f.n, 10), longest))
	f.n++
}

// pools are the pools of an engine, by the keys of their specs.
type pools map[string]*pool

// plan is what has to be done about the pools.
type plan struct {
	// surplus are standbys that were removed from their pools and must be ended.
	surplus []*standby
	// missing is the spec of the standby to make next, or nil.
	missing *standbySpec
	// active reports whether any standby was wanted within poolLife.
	active bool
	// again is when the plan will change even if nothing happens; zero means never.
	again time.Time
}

// plan removes surplus standbys from the pools and returns what is missing. headroom is
// the memory that is free for sandboxes, in bytes.
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
		todo.active, todo.again = true, earlier(todo.again, end)
		n, until := p.peak(now)
		if keep := p.bounded(n); len(p.ready) > keep {
			todo.surplus = append(todo.surplus, p.ready[keep:]...)
			p.ready = slices.Clip(p.ready[:keep])
		}
		if len(p.ready) > 1 {
			todo.again = earlier(todo.again, until)
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
			todo.again = earlier(todo.again, p.faults.again)
		case room <= 0:
			todo.again = earlier(todo.again, now.Add(shortPause))
		case todo.missing == nil:
			todo.missing = &p.spec
		}
	}
	return todo
}

// removeEnded removes the standby of an ended process from its pool and returns it, or nil if it
// was in no pool.
func (all pools) removeEnded(ended *process, now time.Time) *standby {
	for _, p := range all {
		for i, sb := range p.ready {
			if sb.process != ended {
				continue
			}
			p.ready = slices.Delete(p.ready, i, i+1)
			if now.Sub(sb.since) >= surplusLife {
				p.worked() // a bad spec was not the reason
			}
			p.faults.failed(now)
			return sb
		}
	}
	return nil
}

// earlier returns the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
