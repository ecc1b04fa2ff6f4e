package image

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// debianMaking is counted up when something else is made of the same packages,
// so that what was kept of before is not used.
const debianMaking = 3

// bootstrapFor is how long a bootstrapped Debian is begun with: after that it is
// made anew, with what Debian has mended since.
const bootstrapFor = 7 * 24 * time.Hour

// debianBase returns a Debian with nothing but the base packages, which all
// templates made of Debian begin with: it is made once. What else they have is
// for steps.
func (p *Provider) debianBase(ctx context.Context, anew bool, report func(string, float64, string)) (*Foundation, error) {
	key := chainKey("debian", suite, basePackages, debianMaking)
	var kept *manifest
	if !anew {
		kept = p.cached(key)
	}
	m := kept
	if kept == nil || time.Since(kept.BuiltAt) > bootstrapFor {
		var err error
		m, err = p.bootstraps.get(ctx, key, report, func(ctx context.Context, report func(string, float64, string)) (*manifest, error) {
			m, err := p.make(ctx, definition{name: "base", source: p.debian, packages: basePackages, env: baseEnv}, report)
			if err == nil {
				p.keep(key, m)
			}
			return m, err
		})
		switch {
		case err == nil:
			err = p.hold(m.Digest) // another build may have had it made
		case kept != nil && sandbox.CodeOf(err) == sandbox.CodeUnavailable:
			report("", -1, "Debian cannot be fetched anew, so that of "+kept.BuiltAt.Format(time.DateOnly)+" is used: "+sandbox.MessageOf(err))
			m, err = kept, nil
		}
		if err != nil {
			return nil, err
		}
	} else {
		report("base", 1, "Debian is kept from an earlier build")
	}
	return p.baseOf(m), nil
}

// bootstraps are those under way. Builds that want the same at the same time
// share one, and each of them is told how it goes.
type bootstraps struct {
	mu      sync.Mutex
	running map[string]*bootstrap // under mu
}

type bootstrap struct {
	cancel context.CancelFunc
	done   chan struct{} // closed after m and err are set
	m      *manifest
	err    error

	mu       sync.Mutex
	told     map[int]func(string, float64, string) // under mu: who waits, by a number of their own
	waiters  int                                   // under mu: how many have come so far
	step     string                                // under mu
	fraction float64                               // under mu
}

// get returns what create makes, or what another caller's makes of the same key
// just now. It is given up when nobody waits for it any more.
func (bs *bootstraps) get(ctx context.Context, key string, report func(string, float64, string), create func(context.Context, func(string, float64, string)) (*manifest, error)) (*manifest, error) {
	for {
		b, leave := bs.join(ctx, key, report, create)
		select {
		case <-b.done:
		case <-ctx.Done():
		}
		leave()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(b.err, errGivenUp) {
			continue // by the others, just before we came
		}
		return b.m, b.err
	}
}

// join returns the bootstrap of a key, which it starts if there is none, and how
// to leave it.
func (bs *bootstraps) join(ctx context.Context, key string, report func(string, float64, string), create func(context.Context, func(string, float64, string)) (*manifest, error)) (b *bootstrap, leave func()) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b = bs.running[key]; b != nil {
		return b, b.watch(report)
	}
	// It outlives whoever began it if others want it too.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b = &bootstrap{cancel: cancel, done: make(chan struct{}), told: map[int]func(string, float64, string){}}
	if bs.running == nil {
		bs.running = map[string]*bootstrap{}
	}
	bs.running[key] = b
	leave = b.watch(report)
	go func() {
		defer cancel()
		m, err := create(ctx, b.report)
		if err != nil && ctx.Err() != nil {
			err = errGivenUp
		}
		bs.mu.Lock()
		b.m, b.err = m, err
		delete(bs.running, key)
		bs.mu.Unlock()
		close(b.done)
	}()
	return b, leave
}

// watch tells somebody how it goes from here on. Who leaves hears no more of it;
// when the last one does before it is done, it ends.
func (b *bootstrap) watch(report func(string, float64, string)) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.waiters
	b.waiters++
	b.told[n] = report
	if b.step != "" {
		report(b.step, b.fraction, "another build makes the same Debian, which this one waits for")
	}
	return func() {
		b.mu.Lock()
		delete(b.told, n)
		last := len(b.told) == 0
		b.mu.Unlock()
		if last {
			b.cancel()
			<-b.done // so that nothing of it is left when the caller returns
		}
	}
}

func (b *bootstrap) report(step string, fraction float64, log string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step, b.fraction = step, max(b.fraction, fraction)
	for _, report := range b.told {
		report(step, fraction, log)
	}
}
