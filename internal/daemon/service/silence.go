package service

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// silentAfter is how long an agent does not answer until callers are told. It is
// looked for at every [sandbox.StatsInterval], so it has missed three looks.
const silentAfter = 2*sandbox.StatsInterval + lookTimeout

// silent tells since when the agent of a running sandbox has not answered, if
// that is long enough to be told. The sandbox has not failed: its programs run,
// and the agent may answer again.
func (h *handle) silent() (since time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silentSince, !h.silentSince.IsZero() && time.Since(h.silentSince) >= silentAfter
}

// heard notes that the agent has answered, or has a reason not to.
func (h *handle) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silentSince = time.Time{}
}

// missed notes that the agent did not answer a look that began at a time.
func (h *handle) missed(began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.silentSince.IsZero() {
		h.silentSince = began
	}
}

// suspect looks into why an agent did not answer. That counts against the agent
// only where the sandbox's kernel answers: a machine that is overloaded delays
// both, and a sandbox that is being saved stands still on purpose.
func (s *Service) suspect(ctx context.Context, h *handle, began time.Time) {
	s.mu.Lock()
	_, moving := s.moving[h.id]
	s.mu.Unlock()
	if moving {
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

// silentReason says for a sandbox's owner what a silent agent means.
func silentReason(since time.Time) string {
	return "its agent has not answered since " + since.UTC().Format(time.RFC3339) +
		" although its kernel runs: a program in it has stopped or traces process 1, or leaves it no processor time; " +
		"kill the sandbox, restore a snapshot of it, or pause it and resume it from its files"
}

// silentError is the answer to calls that need a silent agent.
func silentError(cause error, id string, since time.Time) error {
	return call.Unavailable(cause, "sandbox %s: %s", id, silentReason(since))
}
