package remote

import (
	"context"
	"sync"
)

// queue holds events until the daemon takes them. Of events with one key only the last is
// kept, so it is bounded by what they are about.
type queue struct {
	mu    sync.Mutex
	keys  []string         // guarded by mu; in order
	items map[string]event // guarded by mu
	wake  chan struct{}    // has room for one
}

func newQueue() *queue { return &queue{items: map[string]event{}, wake: make(chan struct{}, 1)} }

func (q *queue) put(key string, e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.items[key]; !ok {
		q.keys = append(q.keys, key)
	}
	q.items[key] = e
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take waits for the next event.
func (q *queue) take(ctx context.Context) (event, error) {
	for {
		q.mu.Lock()
		if len(q.keys) > 0 {
			key := q.keys[0]
			e := q.items[key]
			q.keys = q.keys[1:]
			delete(q.items, key)
			q.mu.Unlock()
			return e, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}
