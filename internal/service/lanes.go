package service

import (
	"context"
	"sync"
)

// lanes let so many do something at once, of which only some with the same
// key, so that one who is slow at it holds up no others. They are safe for
// concurrent use.
type lanes struct {
	all  chan struct{}
	each int

	mu    sync.Mutex
	byKey map[string]*lane // guarded by mu
}

type lane struct {
	in    chan struct{}
	users int // guarded by the mutex of the lanes
}

func newLanes(all, each int) *lanes {
	return &lanes{all: make(chan struct{}, all), each: each, byKey: map[string]*lane{}}
}

// enter waits for the turn of a key. The result gives it back.
func (l *lanes) enter(ctx context.Context, key string) (release func(), err error) {
	one := l.join(key)
	for i, ch := range []chan struct{}{one.in, l.all} {
		select {
		case ch <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-one.in
			}
			l.leave(key, one)
			return nil, ctx.Err()
		}
	}
	return func() {
		<-l.all
		<-one.in
		l.leave(key, one)
	}, nil
}

func (l *lanes) join(key string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byKey[key]
	if one == nil {
		one = &lane{in: make(chan struct{}, l.each)}
		l.byKey[key] = one
	}
	one.users++
	return one
}

func (l *lanes) leave(key string, one *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(l.byKey, key)
	}
}
