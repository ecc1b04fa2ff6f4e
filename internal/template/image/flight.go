package image

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// reporter receives the progress of a build: the step, a fraction of the whole
// or -1, and a line for the log or "".
type reporter = func(step string, fraction float64, log string)

// work computes a value and reports its progress.
type work[V any] func(context.Context, reporter) (V, error)

// flights does work once for all callers that want the same result at the same time, and
// reports its progress to each of them. The work outlives the caller that began it, and is
// cancelled when the last caller stops waiting.
type flights[K comparable, V any] struct {
	// joined is the log line for callers that join work already in progress.
	joined string

	mu      sync.Mutex
	running map[K]*flight[V] // under mu
}

type flight[V any] struct {
	cancel context.CancelFunc
	done   chan struct{} // closed after value and err are set
	value  V
	err    error

	mu       sync.Mutex
	waiting  map[int]reporter // under mu: callers, numbered as they came
	callers  int              // under mu: how many have come so far
	step     string           // under mu
	fraction float64          // under mu
}

var errGivenUp = errors.New("no caller waits for the result any more")

// get returns the result of create, or of another caller's create that is running for the
// same key.
func (fs *flights[K, V]) get(ctx context.Context, key K, report reporter, create work[V]) (V, error) {
	for {
		f, leave := fs.join(ctx, key, report, create)
		select {
		case <-f.done:
		case <-ctx.Done():
		}
		leave()
		if ctx.Err() != nil {
			var none V
			return none, context.Cause(ctx)
		}
		if errors.Is(f.err, errGivenUp) {
			continue // cancelled by the other callers just before this one joined
		}
		return f.value, f.err
	}
}

// join returns the flight of a key, started if there is none, and a function that leaves
// it.
func (fs *flights[K, V]) join(ctx context.Context, key K, report reporter, create work[V]) (f *flight[V], leave func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.running[key]; f != nil {
		return f, f.wait(report, fs.joined)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f = &flight[V]{cancel: cancel, done: make(chan struct{}), waiting: map[int]reporter{}}
	if fs.running == nil {
		fs.running = map[K]*flight[V]{}
	}
	fs.running[key] = f
	leave = f.wait(report, "")
	go func() {
		defer cancel()
		value, err := create(ctx, f.report)
		if err != nil && ctx.Err() != nil {
			err = errGivenUp
		}
		fs.mu.Lock()
		f.value, f.err = value, err
		delete(fs.running, key)
		fs.mu.Unlock()
		close(f.done)
	}()
	return f, leave
}

// keys returns the keys of the work that is running.
func (fs *flights[K, V]) keys() []K {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Collect(maps.Keys(fs.running))
}

// wait adds a caller, which gets reports until leave is called. If the last caller leaves
// before the work is done, the work is cancelled.
func (f *flight[V]) wait(report reporter, joined string) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.callers
	f.callers++
	f.waiting[n] = report
	if f.step != "" {
		report(f.step, f.fraction, joined)
	}
	return func() {
		f.mu.Lock()
		delete(f.waiting, n)
		last := len(f.waiting) == 0
		f.mu.Unlock()
		if last {
			f.cancel()
			<-f.done // so that nothing is running when the caller returns
		}
	}
}

func (f *flight[V]) report(step string, fraction float64, log string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step, f.fraction = step, max(f.fraction, fraction)
	for _, report := range f.waiting {
		report(step, fraction, log)
	}
}
