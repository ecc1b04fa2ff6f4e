package service

import (
	"cmp"
	"context"
	"slices"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// steps returns the automatic snapshots of a sandbox, newest first.
func (s *Service) steps(ctx context.Context, id string) ([]store.SnapshotRecord, error) {
	automatic := true
	all, _, err := s.cfg.Store.ListSnapshots(ctx, store.SnapshotFilter{SandboxID: id, Automatic: &automatic}, sandbox.Page{Limit: sandbox.MaxPageSize})
	if err != nil {
		return nil, err
	}
	// By step and not by time, since the clock may have been set.
	slices.SortFunc(all, func(a, b store.SnapshotRecord) int { return cmp.Compare(b.Step, a.Step) })
	return all, nil
}

// nextStep returns the number of a sandbox's next step.
//
// Preconditions: the caller holds the lock of the sandbox.
func (s *Service) nextStep(ctx context.Context, id string) (int64, error) {
	steps, err := s.steps(ctx, id)
	if err != nil || len(steps) == 0 {
		return 1, err
	}
	return steps[0].Step + 1, nil
}

// takeStep keeps the state of a sandbox before a command, if the sandbox has a history.
// If that fails, the command does not run, because it could not be undone.
func (s *Service) takeStep(ctx context.Context, h *handle, label string) error {
	keep := int(h.history.Load())
	if keep == 0 {
		return nil
	}
	_, err := s.snapshot(ctx, h.id, store.SnapshotRecord{
		Snapshot: sandbox.Snapshot{Kind: sandbox.SnapshotMemory, Automatic: true, Label: label},
	})
	if err != nil {
		return err
	}
	return s.forgetSteps(ctx, h.id, keep)
}

// forgetSteps removes all but the newest keep steps of a sandbox, and of these the
// oldest if together they exceed [sandbox.MaxHistoryBytes].
func (s *Service) forgetSteps(ctx context.Context, id string, keep int) error {
	steps, err := s.steps(ctx, id)
	if err != nil {
		return err
	}
	size := int64(0)
	for i := range steps[:min(keep, len(steps))] {
		// The newest is always kept.
		if size += steps[i].SizeBytes; size > sandbox.MaxHistoryBytes && i > 0 {
			keep = i
			break
		}
	}
	if len(steps) <= keep {
		return nil
	}
	for _, old := range steps[keep:] {
		if err := s.cfg.Store.DeleteSnapshot(ctx, old.ID); err != nil {
			return err
		}
	}
	s.collectSoon()
	return nil
}
