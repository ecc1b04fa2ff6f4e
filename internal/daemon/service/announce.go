package service

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/sandbox"
)

// announceWait is how long one question for a job's end waits.
const announceWait = time.Minute

// announceJob tells those who follow events of a job that has begun or ended.
func (s *Service) announceJob(in call.Realm, job *sandbox.Job) {
	s.events.Add(events.Entry{Team: in.Team, Namespace: in.Namespace, Event: sandbox.Event{Kind: sandbox.EventJob, SandboxID: job.SandboxID, Job: job}})
}

// announcing passes on the events of a job to its caller, and announces the job when it
// is known and when it has ended.
func (s *Service) announcing(in call.Realm, pass func(sandbox.JobEvent) error) func(sandbox.JobEvent) error {
	begun := false
	return func(e sandbox.JobEvent) error {
		if e.Job != nil && (!begun || e.Job.State == sandbox.JobExited) {
			begun = true
			s.announceJob(in, e.Job)
		}
		return pass(e)
	}
}

// announceEnd waits for the end of a job that runs in the background, also over pauses
// of its sandbox, and announces the end. The end of the sandbox is announced by itself.
func (s *Service) announceEnd(in call.Realm, sandboxID, id string) {
	ctx := s.gate.Context()
	for ctx.Err() == nil {
		changed := s.events.Changed()
		s.mu.Lock()
		h := s.handles[sandboxID]
		s.mu.Unlock()
		if h == nil {
			r, err := s.cfg.Store.Sandbox(ctx, sandboxID)
			if err != nil || r.State.Final() {
				return
			}
			waitUnless(ctx, sandbox.StatsInterval, changed)
			continue
		}
		job, err := h.client.GetJob(ctx, id, announceWait)
		switch {
		case err == nil && job.State == sandbox.JobExited:
			s.announceJob(in, job)
			return
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return
		case err != nil:
			waitUnless(ctx, time.Second, h.gone)
		}
	}
}

// waitUnless waits for d, or until done is closed or ctx cancelled.
func waitUnless(ctx context.Context, d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-done:
	case <-t.C:
	}
}
