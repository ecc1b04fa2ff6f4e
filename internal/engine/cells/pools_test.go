package cells

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// plenty is memory for any number of standbys.
const plenty = 64 << 30

// kind returns the spec of a pool for tests.
func kind(memoryMiB int64, restore string) standbySpec {
	return standbySpec{Resources: sandbox.Resources{MemoryMiB: memoryMiB}, Restore: restore}
}

// waiting returns waiting standbys without processes.
func waiting(n int) []*standby {
	all := make([]*standby, n)
	for i := range all {
		all[i] = &standby{process: &process{exited: make(chan struct{})}}
	}
	return all
}

// TestPoolsShrink checks that, of the standbys that a burst leaves behind, one remains
// soon after, and none when none is needed.
func TestPoolsShrink(t *testing.T) {
	began := time.Now()
	for name, warm := range map[string]int{"blank": 0, "warm": 4} {
		t.Run(name, func(t *testing.T) {
			p := &pool{max: warm}
			all := pools{"kind": p}
			for range 12 {
				p.want(began)
			}
			limit := p.bounded(12)
			for _, step := range []struct {
				after       time.Duration
				have, again time.Duration // have is a number
				missing     bool
			}{
				{0, 0, poolLife, true},
				{time.Second, time.Duration(limit), surplusLife, false},
				{surplusLife - time.Second, time.Duration(limit), surplusLife, false},
				{surplusLife, 1, poolLife, false},
				{poolLife - time.Second, 1, poolLife, false},
				{poolLife, 0, 0, false},
				{2 * poolLife, 0, 0, false},
			} {
				if step.after == time.Second {
					p.ready = waiting(limit)
				}
				before := len(p.ready)
				todo := all.plan(began.Add(step.after), plenty)
				if len(p.ready) != int(step.have) || len(todo.surplus) != before-len(p.ready) {
					t.Errorf("after %s %d of %d wait and %d go, want that %d wait", step.after, len(p.ready), before, len(todo.surplus), step.have)
				}
				if (todo.missing != nil) != step.missing {
					t.Errorf("after %s missing is %v", step.after, todo.missing)
				}
				if got := todo.again.Sub(began); !todo.again.IsZero() && got != step.again || todo.again.IsZero() && step.again != 0 {
					t.Errorf("after %s it looks again after %s, want %s", step.after, got, step.again)
				}
				if todo.active != (step.after < poolLife) {
					t.Errorf("after %s active is %v", step.after, todo.active)
				}
			}
			if (len(all) == 1) != (warm > 0) {
				t.Errorf("there are %d pools", len(all))
			}
			// When one is wanted again, standbys are made again.
			if warm > 0 {
				p.want(began.Add(3 * poolLife))
				if todo := all.plan(began.Add(3*poolLife), plenty); todo.missing == nil || !todo.active {
					t.Errorf("wanted again, and the plan is %+v", todo)
				}
			}
		})
	}
}

// TestPoolsAfterBurst takes a standby now and then: one stays in stock, not all that a
// burst left behind.
func TestPoolsAfterBurst(t *testing.T) {
	now := time.Now()
	p := &pool{}
	all := pools{"kind": p}
	for range 8 {
		p.want(now)
	}
	p.ready = waiting(8)
	for range 10 {
		now = now.Add(surplusLife / 4)
		p.want(now)
		all.plan(now, plenty)
	}
	if len(p.ready) != 1 {
		t.Errorf("%d wait, of which one was taken every %s", len(p.ready), surplusLife/4)
	}
}

// TestPoolsPlan checks that what is made next depends on demand, on memory and on faults.
func TestPoolsPlan(t *testing.T) {
	now := time.Now()
	wanted := func(ago time.Duration, max, takes, ready int, spec standbySpec) *pool {
		p := &pool{spec: spec, max: max, ready: waiting(ready)}
		for range takes {
			p.want(now.Add(-ago))
		}
		return p
	}
	failing := wanted(0, 0, 1, 0, kind(1, ""))
	failing.faults.failed(now)
	for name, tt := range map[string]struct {
		pools    pools
		headroom int64
		want     int64 // the memory of the spec that is missing, or 0
		again    time.Duration
	}{
		"nothing wanted":        {pools{}, plenty, 0, 0},
		"the latest first":      {pools{"a": wanted(time.Second, 0, 1, 0, kind(1, "")), "b": wanted(0, 2, 1, 0, kind(2, "x"))}, plenty, 2, poolLife - time.Second},
		"enough":                {pools{"a": wanted(0, 0, 1, 1, kind(1, ""))}, plenty, 0, poolLife},
		"more for a demand":     {pools{"a": wanted(0, 0, 3, 2, kind(1, ""))}, plenty, 1, surplusLife},
		"at most so many":       {pools{"a": wanted(0, 2, 9, 2, kind(1, "x"))}, plenty, 0, surplusLife},
		"all blank ones":        {pools{"a": wanted(time.Second, 0, 9, 0, kind(1, "")), "b": wanted(0, 0, 9, 8, kind(2, ""))}, plenty, 0, surplusLife},
		"no memory":             {pools{"a": wanted(0, 0, 1, 0, kind(1, ""))}, memoryShare*standbyBytes - 1, 0, shortPause},
		"memory for one":        {pools{"a": wanted(0, 0, 1, 0, kind(1, ""))}, memoryShare * standbyBytes, 1, poolLife},
		"memory for no second":  {pools{"a": wanted(0, 0, 2, 1, kind(1, ""))}, memoryShare * standbyBytes, 0, shortPause},
		"memory for the second": {pools{"a": wanted(0, 0, 2, 1, kind(1, ""))}, 2 * memoryShare * standbyBytes, 1, poolLife},
		"below the floor":       {pools{"a": wanted(0, 0, 1, 0, kind(1, ""))}, -1 << 30, 0, shortPause},
		"just failed":           {pools{"a": failing}, plenty, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			todo := tt.pools.plan(now, tt.headroom)
			got := int64(0)
			if todo.missing != nil {
				got = todo.missing.Resources.MemoryMiB
			}
			if got != tt.want {
				t.Errorf("missing is %d, want %d", got, tt.want)
			}
			if again := todo.again.Sub(now); tt.again == 0 && !todo.again.IsZero() || tt.again != 0 && again != tt.again {
				t.Errorf("it looks again after %s, want %s", again, tt.again)
			}
		})
	}
}

// TestPoolsRemoveEnded checks that standbys that end while they wait leave their pool, and that
// the next one is made after ever longer pauses, until one becomes a sandbox.
func TestPoolsRemoveEnded(t *testing.T) {
	now := time.Now()
	p := &pool{}
	all := pools{"kind": p}
	p.want(now)
	if all.removeEnded(&process{}, now) != nil {
		t.Error("a process that never waited was found")
	}
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		p.ready = waiting(3)
		dead := p.ready[1]
		dead.since = now
		if all.removeEnded(dead.process, now) != dead || len(p.ready) != 2 {
			t.Fatalf("the dead one is not gone: %d wait", len(p.ready))
		}
		if got := p.faults.again.Sub(now); got != pause {
			t.Errorf("the next after %s, want %s", got, pause)
		}
		// Several standbys may end for the same reason; they count as one fault.
		p.ready[0].since = now
		all.removeEnded(p.ready[0].process, now)
		if got := p.faults.again.Sub(now); got != pause {
			t.Errorf("the next after %s, when two end at once, want %s", got, pause)
		}
		now = p.faults.again
	}
	for range 20 {
		now = now.Add(time.Minute)
		p.faults.failed(now)
	}
	if got := p.faults.again.Sub(now); got != time.Minute {
		t.Errorf("the longest pause is %s", got)
	}
	now = now.Add(time.Minute)
	p.ready = waiting(1)
	p.ready[0].since = now.Add(-surplusLife)
	all.removeEnded(p.ready[0].process, now)
	if got := p.faults.again.Sub(now); got != time.Second {
		t.Errorf("after one that was sound for long the next comes after %s", got)
	}
}

// TestStandbyBlames checks that a standby that is killed while it is made is not blamed
// on its checkpoint.
func TestStandbyBlames(t *testing.T) {
	warm, blank := kind(1, "golden"), kind(1, "")
	for _, tt := range []struct {
		spec standbySpec
		err  error
		want bool
	}{
		{warm, notStarted(errors.New("pages are damaged")), true},
		{warm, notStarted(errCellEnded), false},
		{blank, notStarted(errors.New("no memory")), false},
	} {
		if got := tt.spec.blames(tt.err); got != tt.want {
			t.Errorf("%q of a standby with checkpoint %q blames that: %v", detailed(tt.err), tt.spec.Restore, got)
		}
	}
}

// TestStockLoopShrinks checks that the loop ends standbys by itself, without a call.
func TestStockLoopShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{cfg: Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, admissions: newAdmissions(), pools: pools{}, restock: make(chan struct{}, 1), ctx: t.Context()}
		waits := func(name string) *standby {
			dir := filepath.Join(e.cfg.Dir, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			conn, far := net.Pipe()
			t.Cleanup(func() { far.Close() })
			return &standby{process: &process{conn: conn, exited: make(chan struct{})}, dir: dir}
		}
		e.spare = waits("spare").process
		p := &pool{max: 2, ready: []*standby{waits("one"), waits("two")}}
		p.want(time.Now())
		p.want(time.Now())
		e.pools["kind"] = p
		e.wg.Go(e.stockLoop)
		e.stock()
		left := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(p.ready) != want {
				t.Errorf("after %s %d wait, want %d", after, len(p.ready), want)
			}
		}
		left(time.Second, 2)
		left(surplusLife, 1)
		left(poolLife, 0)
		for _, name := range []string{"one", "two"} {
			if _, err := os.Stat(filepath.Join(e.cfg.Dir, name)); !os.IsNotExist(err) {
				t.Errorf("the directory of standby %s: %v", name, err)
			}
		}
		if e.spare != nil || !e.resting {
			t.Errorf("idle, and there is a spare %v, at rest %v", e.spare, e.resting)
		}
	})
}
