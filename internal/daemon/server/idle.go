package server

import (
	"context"
	"time"
)

// idler is what of the service tells whether it is used.
type idler interface {
	// Idle reports whether nothing runs and no verb is under way, and since
	// when no verb was called.
	Idle(ctx context.Context) (bool, time.Time, error)
}

// firstAskWait is how long a daemon that a client has started waits for its
// first request, even if it may not be idle for as long.
const firstAskWait = time.Minute

// exitWhenIdle calls stop when, for the configured time, nothing has run and
// no client has asked for anything. It returns when ctx ends.
func (s *Server) exitWhenIdle(ctx context.Context, stop context.CancelFunc, svc idler, f *front) {
	limit := s.cfg.IdleExit
	if limit == 0 {
		return
	}
	tick := time.NewTicker(max(limit/10, 10*time.Millisecond))
	defer tick.Stop()
	since := time.Now()
	expected := time.Time{}
	if s.deps.OnDemand {
		expected = since.Add(firstAskWait)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		idle, last, err := svc.Idle(ctx)
		if err != nil || !idle || f.active.Load() > 0 || !f.asked.Load() && time.Now().Before(expected) {
			since = time.Now()
			continue
		}
		if last.After(since) {
			since = last
		}
		if time.Since(since) >= limit {
			s.log.Info("ending, as nothing runs and no one asks", "idle", limit)
			stop()
			return
		}
	}
}
