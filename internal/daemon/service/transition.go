package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

// lock waits until no other transition of these sandboxes is under way (a pause,
// resume, snapshot, fork, restore or merge), and keeps others out until unlock is
// called. A kill does not wait: it changes the record, and a transition that finds the
// record changed undoes its work.
func (s *Service) lock(ctx context.Context, ids ...string) (unlock func(), err error) {
	// Sorted, so that two callers never wait for each other.
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	for i, id := range ids {
		if err := s.lockOne(ctx, id); err != nil {
			s.unlock(ids[:i])
			return nil, err
		}
	}
	return func() { s.unlock(ids) }, nil
}

func (s *Service) lockOne(ctx context.Context, id string) error {
	for {
		s.mu.Lock()
		other := s.moving[id]
		if other == nil {
			s.moving[id] = make(chan struct{})
			makeWay := s.saving[id]
			s.mu.Unlock()
			if makeWay != nil {
				makeWay(errMadeWay)
			}
			return nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) unlock(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		close(s.moving[id])
		delete(s.moving, id)
	}
}

// errMadeWay says that an automatic checkpoint has made way for another transition.
var errMadeWay = errors.New("another change of the sandbox came first")

// weakLock is for an automatic checkpoint: it fails if a transition is under way, and keeps
// none out. One that begins ends the context, and does not wait: whoever holds the weak lock
// changes the record only if the sandbox still runs in the same instance.
func (s *Service) weakLock(ctx context.Context, id string) (_ context.Context, unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moving[id] != nil || s.saving[id] != nil {
		return ctx, nil, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s.saving[id] = cancel
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.saving, id)
	}, true
}

// needCheckpointer returns an error if the engine cannot keep state.
func (s *Service) needCheckpointer() error {
	if s.checkpointer == nil {
		return call.ErrNoCheckpoints
	}
	return nil
}

// insist waits insistFirst before its first attempt, and twice as long before each
// further one, up to insistMost.
const (
	insistFirst = 100 * time.Millisecond
	insistMost  = 10 * time.Second
)

// insist calls f in the background until f succeeds or finds no record, or the service
// is closed. It does nothing if it is already at work for the instance.
func (s *Service) insist(instance string, f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.insisting[instance] {
		return
	}
	// If the service is closed first, the next start compares the record with the
	// engine.
	s.insisting[instance] = s.gate.Go(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.insisting, instance)
		}()
		for delay := insistFirst; ; delay = min(2*delay, insistMost) {
			select {
			case <-s.gate.Context().Done():
				return
			case <-time.After(delay):
			}
			if err := f(s.gate.Context()); err == nil || sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return
			}
		}
	})
}
