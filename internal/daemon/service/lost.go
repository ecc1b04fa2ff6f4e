package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// reasonUnknown is why a sandbox ended of which the engine knows nothing.
	reasonUnknown = "its supervisor ended unexpectedly"
	// reasonAbandoned is why a sandbox ended whose creation failed when the
	// failure could not be recorded.
	reasonAbandoned = "it could not be created; the server's log has the details"
)

// failLost records the end of sandboxes that are running by their record but
// have no living machine, and of those that are being created by their record
// but by nobody.
func (s *Service) failLost(ctx context.Context) error {
	var living []store.Record
	err := s.held(ctx, []sandbox.State{sandbox.StateCreating, sandbox.StateRunning}, func(r store.Record) { living = append(living, r) })
	if err != nil || len(living) == 0 {
		return err
	}
	// The engine is asked after the store: whoever ends a machine has changed the
	// record before, and fail notices that.
	statuses, err := s.cfg.Engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list the engine's instances: %w", err)
	}
	known := make(map[string]engine.Status, len(statuses))
	for _, st := range statuses {
		known[st.ID] = st
	}
	var errs []error
	for _, r := range living {
		st := known[r.Instance]
		switch {
		case r.State == sandbox.StateCreating:
			errs = append(errs, s.failAbandoned(ctx, r.ID))
		case !st.Running:
			_, err := s.fail(ctx, &r, cmp.Or(st.Reason, reasonUnknown))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// failAbandoned records the end of a sandbox that is being created by its record
// but by nobody.
func (s *Service) failAbandoned(ctx context.Context, id string) error {
	s.mu.Lock()
	_, busy := s.creating[id]
	s.mu.Unlock()
	if busy {
		return nil
	}
	// The creation may have succeeded since the record was read.
	r, err := s.cfg.Store.Sandbox(ctx, id)
	if err != nil || r.State != sandbox.StateCreating {
		return err
	}
	_, err = s.fail(ctx, &r, reasonAbandoned)
	return err
}
