package service

import (
	"context"
	"errors"
	"maps"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// noteMachine notes that a build has a sandbox, or has it no more.
func (s *Service) noteMachine(id string, here bool) {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	if !here {
		delete(s.builds.machines, id)
		return
	}
	if s.builds.machines == nil {
		s.builds.machines = map[string]bool{}
	}
	s.builds.machines[id] = true
}

// isMachine reports whether a sandbox is one of a build.
func (s *Service) isMachine(id string) bool {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	return s.builds.machines[id]
}

// keepEnd keeps how a build ended that the store could not take, since the disk
// is full for example. [Service.recordEnds] tries again.
func (s *Service) keepEnd(r store.BuildRecord) {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	if s.builds.ends == nil {
		s.builds.ends = map[string]store.BuildRecord{}
	}
	s.builds.ends[r.ID] = r
}

// endOf returns a build of which the store does not know yet that it has ended,
// or nil.
func (s *Service) endOf(id string) *sandbox.Build {
	s.builds.mu.Lock()
	defer s.builds.mu.Unlock()
	if r, ok := s.builds.ends[id]; ok {
		return &r.Build
	}
	return nil
}

// recordEnds records what [Service.keepEnd] has kept.
func (s *Service) recordEnds(ctx context.Context) error {
	s.builds.mu.Lock()
	ends := maps.Clone(s.builds.ends)
	s.builds.mu.Unlock()
	var errs []error
	for id, r := range ends {
		if err := s.cfg.Store.UpdateBuild(ctx, r); err != nil {
			errs = append(errs, err)
			continue
		}
		s.builds.mu.Lock()
		delete(s.builds.ends, id)
		s.builds.mu.Unlock()
	}
	return errors.Join(errs...)
}
