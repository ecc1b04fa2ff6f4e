package service

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

func (s *Service) collectLoop() {
	for {
		select {
		case <-s.gate.Context().Done():
			return
		case <-s.collect:
		}
		if err := s.collectNow(s.gate.Context()); err != nil && s.gate.Context().Err() == nil {
			s.log.Error("remove checkpoints that nothing refers to", "error", err)
		}
	}
}

// collectNow removes the checkpoints that no record refers to. It reads the checkpoints
// in use between the list of the engine and that of the store, so that a checkpoint
// whose record is being written is in one of them. It reads them again at the end,
// since a checkpoint can be taken into use, by its record, just before that record is
// deleted. A checkpoint that is kept only because it is in use is checked again after
// that use.
func (s *Service) collectNow(ctx context.Context) error {
	if s.checkpointer == nil {
		return nil
	}
	kept, err := s.checkpointer.Checkpoints(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	used := maps.Clone(s.using)
	s.mu.Unlock()
	referred, err := s.cfg.Store.Checkpoints(ctx)
	if err != nil {
		return err
	}
	for _, c := range kept {
		if slices.Contains(referred, c.ID) {
			continue
		}
		golden := strings.HasPrefix(c.ID, ids.Golden)
		if golden && !s.golden.stale(&c) {
			continue
		}
		spared := s.spare(c.ID, used[c.ID] > 0)
		if !spared {
			err = s.discard(ctx, &c)
		}
		if golden {
			s.golden.removed(c.ID, !spared && err == nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// discard removes a checkpoint that nothing refers to. If this daemon has not made it
// and the store has never named it, discard sets it aside instead.
func (s *Service) discard(ctx context.Context, c *engine.Checkpoint) error {
	s.mu.Lock()
	ours := s.ours[c.ID]
	s.mu.Unlock()
	if !ours && s.cfg.Orphans != nil && !strings.HasPrefix(c.ID, ids.Golden) {
		named, err := s.cfg.Store.WasNamed(ctx, c.ID)
		if err != nil {
			return err
		}
		if !named {
			s.Recovery.SetAsideOrLeave(ctx, c, "no record names it")
			return nil
		}
	}
	if err := s.checkpointer.RemoveCheckpoint(ctx, c.ID); err != nil {
		return err
	}
	s.log.Debug("removed a checkpoint", "checkpoint", c.ID)
	s.mu.Lock()
	delete(s.ours, c.ID)
	s.mu.Unlock()
	return s.cfg.Store.ForgetNamed(ctx, c.ID)
}

var (
	everySnapshot = store.SnapshotFilter{}
	everyLiving   = store.SandboxFilter{States: []sandbox.State{
		sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping,
	}}
)

// Roots returns the digests of all root file systems that a sandbox, a snapshot or an
// orphan needs.
func (s *Service) Roots(ctx context.Context) (map[string]bool, error) {
	roots, err := s.Recovery.Roots()
	if err != nil {
		return nil, err
	}
	for snapshot, err := range store.All(ctx, s.cfg.Store.ListSnapshots, everySnapshot) {
		if err != nil {
			return nil, err
		}
		roots[snapshot.Origin] = true
	}
	for r, err := range store.All(ctx, s.cfg.Store.ListSandboxes, everyLiving) {
		if err != nil {
			return nil, err
		}
		roots[r.Origin] = true
	}
	return roots, nil
}
