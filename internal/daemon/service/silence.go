package service

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// missed records that the agent did not answer a check that began at the given time.
func (h *handle) missed(began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.silentSince.IsZero() {
		h.silentSince = began
	}
}

// suspect finds out why an agent did not answer. This counts against the agent only if
// the sandbox's kernel answers: an overloaded machine delays both, and a sandbox that
// is being saved is stopped on purpose.
func (s *Service) suspect(ctx context.Context, h *handle, began time.Time) {
	s.mu.Lock()
	_, moving := s.moving[h.id]
	_, saving := s.saving[h.id]
	s.mu.Unlock()
	if moving || saving {
		h.heard()
		return
	}
	prober, ok := h.instance.(engine.Prober)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if prober.Probe(ctx) == nil {
		h.missed(began)
	}
}
