package service

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// noteMoment adds a moment to a record, and drops the oldest beyond
// [sandbox.MaxMoments].
func noteMoment(r *store.Record, m sandbox.Moment) {
	endPause(r, m.At)
	// The slice may be shared with earlier copies of the record.
	r.Moments = append(slices.Clip(r.Moments), m)
	r.Moments = r.Moments[max(0, len(r.Moments)-sandbox.MaxMoments):]
}

// endPause ends the pause of a sandbox in its moments, if it is paused. Everything that
// follows a pause ends it, so only the last moment can be a pause that lasts.
func endPause(r *store.Record, at time.Time) {
	last := len(r.Moments) - 1
	if last < 0 || r.Moments[last].Kind != sandbox.MomentPaused || r.Moments[last].Until != nil {
		return
	}
	r.Moments = slices.Clone(r.Moments)
	r.Moments[last].Until = &at
}

// noteMergedFiles records that files of a winner were merged, even if the caller has gone.
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
