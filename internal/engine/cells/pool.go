package cells

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

const (
	// maxBlank bounds the blank shells that wait at a time, for all specs.
	maxBlank = 8
	// shellBytes is about what a waiting shell costs in memory.
	shellBytes = 48 << 20
	// memoryShare is the part of the free memory that shells may take.
	memoryShare = 8
	// demandWindow is how far back demand is looked at, and poolLife how long a
	// pool of blank shells that nobody needs is kept.
	demandWindow = 20 * time.Second
	poolLife     = 10 * time.Minute
	// shellTimeout bounds the making of a shell ahead of need.
	shellTimeout = time.Minute
)

// pool is the shells of one spec that wait.
type pool struct {
	spec  shellSpec
	ready []*shell
	// max is set for warm pools; the others are blank.
	max   int
	taken []time.Time // within demandWindow
	used  time.Time
	// failed stops a pool whose shells cannot be made.
	failed bool
}

// take returns a waiting shell of this spec, or nil, and notes the demand.
func (e *Engine) take(spec shellSpec) *shell {
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
	now := time.Now()
	p.used = now
	p.taken = append(slices.DeleteFunc(p.taken, func(t time.Time) bool { return now.Sub(t) > demandWindow }), now)
	defer e.stock()
	for len(p.ready) > 0 {
		sh := p.ready[0]
		p.ready = p.ready[1:]
		if !sh.hasExited() {
			return sh
		}
		e.wg.Go(func() { e.abandon(sh) })
	}
	return nil
}

// stock wakes the maker of shells.
func (e *Engine) stock() {
	select {
	case e.restock <- struct{}{}:
	default:
	}
}

// stockLoop makes shells ahead of need, one at a time, until the engine is
// closed.
func (e *Engine) stockLoop() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.restock:
		}
		for e.ctx.Err() == nil {
			e.awaitQuiet()
			spec, ok := e.wanted()
			if !ok {
				break
			}
			e.makeAhead(spec)
		}
		e.refill()
	}
}

// awaitQuiet waits until nobody has waited for a sandbox for a moment: what is
// made ahead must not take the processor from what is needed now. Under a
// steady load it waits no longer than patience.
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

// occupied says that somebody waits for the engine, until the result is called.
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

// makeAhead makes one shell and puts it into its pool.
func (e *Engine) makeAhead(spec shellSpec) {
	ctx, cancel := context.WithTimeout(e.ctx, shellTimeout)
	defer cancel()
	// Sandboxes that somebody waits for come first.
	if err := e.starts.Acquire(ctx, 1); err != nil {
		return
	}
	defer e.starts.Release(1)
	sh, err := e.startShell(spec)
	if err == nil {
		if err = sh.awaitShell(ctx); err != nil {
			e.abandon(sh)
		} else {
			sh.made = true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pools[spec.key()]
	switch {
	case err != nil:
		if e.ctx.Err() == nil {
			e.cfg.Log.Warn("make a shell ahead of need", "err", err)
		}
		if p != nil {
			p.failed = true
		}
	case p == nil || e.ctx.Err() != nil:
		e.wg.Go(func() { e.abandon(sh) })
	default:
		p.ready = append(p.ready, sh)
	}
}

// wanted returns the spec of a shell that is missing, and drops pools that
// nobody needs any more.
func (e *Engine) wanted() (shellSpec, bool) {
	room := freeMemory()/memoryShare/shellBytes - int64(e.waiting())
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	blank := 0
	for key, p := range e.pools {
		if p.max == 0 && now.Sub(p.used) > poolLife {
			e.dropPool(key)
			continue
		}
		if p.max == 0 {
			blank += len(p.ready)
		}
	}
	// The most recently used first; one shell is kept even where memory is short.
	pools := make([]*pool, 0, len(e.pools))
	for _, p := range e.pools {
		pools = append(pools, p)
	}
	slices.SortFunc(pools, func(a, b *pool) int { return b.used.Compare(a.used) })
	for i, p := range pools {
		limit := p.max
		if limit == 0 {
			limit = maxBlank
			if i > 0 && p.max == 0 && blank >= maxBlank {
				continue
			}
		}
		want := min(max(1, p.demand(now)), limit)
		if p.failed || len(p.ready) >= want || room <= 0 && len(p.ready) > 0 {
			continue
		}
		return p.spec, true
	}
	return shellSpec{}, false
}

// demand is how many were taken lately.
func (p *pool) demand(now time.Time) int {
	n := 0
	for _, t := range p.taken {
		if now.Sub(t) <= demandWindow {
			n++
		}
	}
	return n
}

func (e *Engine) waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, p := range e.pools {
		n += len(p.ready)
	}
	return n
}

// dropPool ends the shells of a pool.
//
// Preconditions: e.mu is held.
func (e *Engine) dropPool(key string) {
	p := e.pools[key]
	delete(e.pools, key)
	for _, sh := range p.ready {
		e.wg.Go(func() { e.abandon(sh) })
	}
}

// Warm implements [engine.Checkpointer].
func (e *Engine) Warm(specs []engine.WarmSpec) {
	keep := map[string]*pool{}
	for _, w := range specs {
		m, err := e.checkpoints.Manifest(w.Checkpoint)
		if err != nil {
			e.cfg.Log.Warn("keep sandboxes warm", "checkpoint", w.Checkpoint, "err", err)
			continue
		}
		spec := e.shellOf(&m, w.Root, w.Resources)
		spec.Restore = e.checkpoints.Path(m.ID)
		keep[spec.key()] = &pool{spec: spec, max: max(1, w.Max), used: time.Now()}
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
			old.max = p.max
			continue
		}
		e.pools[key] = p
	}
	e.stock()
}

// freeMemory returns the bytes of memory that are available, or a small number
// if the kernel does not say.
func freeMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 30
	}
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 1 << 30
}
