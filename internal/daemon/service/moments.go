package service

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// noteMoment adds a moment to a record, and lets the oldest ones go.
func noteMoment(r *store.Record, m sandbox.Moment) {
	endPause(r, m.At)
	// The slice may be shared with whoever was told of the record before.
	r.Moments = append(slices.Clip(r.Moments), m)
	r.Moments = r.Moments[max(0, len(r.Moments)-sandbox.MaxMoments):]
}

// endPause ends the pause in which a sandbox is, if it is in one: whatever comes after a
// pause ends it, so that only the last moment can be one that lasts.
func endPause(r *store.Record, at time.Time) {
	last := len(r.Moments) - 1
	if last < 0 || r.Moments[last].Kind != sandbox.MomentPaused || r.Moments[last].Until != nil {
		return
	}
	r.Moments = slices.Clone(r.Moments)
	r.Moments[last].Until = &at
}

// noteMergedFiles records that files of a winner were merged, which has happened, whatever
// becomes of the caller.
func (s *Service) noteMergedFiles(ctx context.Context, parent string, m sandbox.Moment) {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	_, err := s.cfg.Store.UpdateSandbox(ctx, parent, store.Change{Apply: func(r *store.Record) error {
		noteMoment(r, m)
		return nil
	}})
	if err != nil {
		s.log.Error("note a merge of files", "sandbox", parent, "winner", m.SandboxID, "error", err)
	}
}
