package memory

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

var _ engine.Leaser = (*Engine)(nil)

// began is when the clock of leases was 0.
var began = time.Now()

// LeaseTime implements [engine.Leaser].
func (e *Engine) LeaseTime() (time.Duration, error) { return max(1, time.Since(began)), nil }

// Lease implements [engine.Leaser]. Instances only remember their leases.
func (e *Engine) Lease(_ context.Context, instanceID string, until time.Duration) error {
	e.state.mu.Lock()
	defer e.state.mu.Unlock()
	if e.state.instances[instanceID] == nil {
		return engine.ErrNotFound
	}
	e.state.leases[instanceID] = max(until, e.state.leases[instanceID])
	return nil
}

// LeaseOf returns until when an instance has a lease; 0 is none.
func (s *State) LeaseOf(instanceID string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[instanceID]
}
