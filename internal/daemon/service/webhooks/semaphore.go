package webhooks

import (
	"context"
	"sync"
)

// semaphore bounds how many users there are at once, in all and per key, so that a slow
// key does not hold up the others. It is safe for concurrent use.
type semaphore struct {
	all  chan struct{}
	each int

	mu    sync.Mutex
	byKey map[string]*turn // guarded by mu
}

// turn is what the users with the same key share.
type turn struct {
	in    chan struct{}
	users int // guarded by the mutex of the semaphore
}

func newSemaphore(all, each int) *semaphore {
	return &semaphore{all: make(chan struct{}, all), each: each, byKey: map[string]*turn{}}
}

// acquire waits for a place for a key; release gives it back.
func (s *semaphore) acquire(ctx context.Context, key string) (release func(), err error) {
	one := s.join(key)
	for i, ch := range []chan struct{}{one.in, s.all} {
		select {
		case ch <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-one.in
			}
			s.leave(key, one)
			return nil, ctx.Err()
		}
	}
	return func() {
		<-s.all
		<-one.in
		s.leave(key, one)
	}, nil
}

func (s *semaphore) join(key string) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byKey[key]
	if one == nil {
		one = &turn{in: make(chan struct{}, s.each)}
		s.byKey[key] = one
	}
	one.users++
	return one
}

func (s *semaphore) leave(key string, one *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(s.byKey, key)
	}
}
