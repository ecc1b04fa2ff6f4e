package service

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/sandbox"
)

// lock waits until no other transition of these sandboxes is under way (a
// pause, resume, snapshot, fork, restore or merge) and keeps others out until
// the result is called. A kill does not wait: it changes the record, and the
// transition that finds it changed undoes what it did.
func (s *Service) lock(ctx context.Context, ids ...string) (unlock func(), err error) {
	// In order, so that two callers never wait for each other.
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
			s.mu.Unlock()
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

// needCheckpointer refuses what needs an engine that keeps state.
func (s *Service) needCheckpointer() error {
	if s.checkpointer == nil {
		return call.ErrNoCheckpoints
	}
	return nil
}

// The time between two attempts to record the end of a sandbox begins with
// insistFirst and doubles up to insistMost.
const (
	insistFirst = 100 * time.Millisecond
	insistMost  = 10 * time.Second
)

// insist tries f again in the background until f succeeds, or finds no record,
// or the service is closed. One attempt for an instance is under way at a time:
// if there is one already, insist does nothing.
func (s *Service) insist(instance string, f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.insisting[instance] {
		return
	}
	// When the service is closed, the next start compares the record with the engine.
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
