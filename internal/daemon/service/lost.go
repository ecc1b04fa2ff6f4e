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
	// reasonUnknown is the reason of a sandbox whose instance the engine does not know.
	reasonUnknown = "its supervisor exited unexpectedly"
	// reasonAbandoned is the reason of a sandbox whose creation failed, where the
	// failure could not be recorded.
	reasonAbandoned = "it could not be created; see the server's log for details"
)

// failLost records the end of sandboxes that the store has as running but that have no
// running instance, and of sandboxes that the store has as being created although
// nobody creates them.
func (s *Service) failLost(ctx context.Context) error {
	var living []store.Record
	err := s.held(ctx, []sandbox.State{sandbox.StateCreating, sandbox.StateRunning}, func(r store.Record) { living = append(living, r) })
	if err != nil || len(living) == 0 {
		return err
	}
	// The engine is asked after the store: whoever ends an instance changes the record
	// first, and fail notices that.
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

// failAbandoned records the end of a sandbox that the store has as being created
// although nobody creates it.
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
