package service

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/sandbox"
)

// announceWait is how long one question for a job's end waits.
const announceWait = time.Minute

// maxAnnounced bounds the command of a job in an event, in bytes: thousands of events
// are remembered.
const maxAnnounced = 1024

// announceJob tells those who follow events of a job that has begun or ended.
func (s *Service) announceJob(in call.Realm, job *sandbox.Job) {
	told := *job
	told.Command = shortCommand(job.Command)
	s.events.Add(events.Entry{Team: in.Team, Namespace: in.Namespace, Event: sandbox.Event{Kind: sandbox.EventJob, SandboxID: job.SandboxID, Job: &told}})
}

// shortCommand is the beginning of a command.
func shortCommand(command []string) (short []string) {
	left := maxAnnounced
	for _, arg := range command {
		if left <= 0 {
			break
		}
		short = append(short, clip.Text(arg, left))
		left -= len(arg)
	}
	return short
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
		s.mu.Lock()
		h := s.handles[sandboxID]
		s.mu.Unlock()
		if h == nil {
			r, err := s.cfg.Store.Sandbox(ctx, sandboxID)
			if err != nil || r.State.Final() {
				return
			}
			waitUnless(ctx, sandbox.StatsInterval, nil)
			continue
		}
		job, err := h.client.GetJob(ctx, id, announceWait)
		switch {
		case err == nil && job.State == sandbox.JobExited:
			s.announceJob(in, job)
			return
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return
		default:
			// The job runs on, or the sandbox does not answer. An agent that answers before
			// the wait is over does not keep the server busy.
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
