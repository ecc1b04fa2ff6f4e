package service

import (
	"context"
	"maps"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/events"
	"github.com/cove-sh/cove/sandbox"
)

// announceWait is how long the agent lets one question for a job's end wait.
const announceWait = time.Minute

// maxFound bounds the jobs that were found running in a sandbox and are followed, so that
// a sandbox cannot cost the server more by claiming many jobs.
const maxFound = 256

// maxAnnounced bounds the command of a job in an event, in bytes, because the server keeps
// thousands of events.
const maxAnnounced = 1024

// announceJob reports to those who follow events that a job has begun or ended.
func (s *Service) announceJob(in call.Realm, job *sandbox.Job) {
	told := *job
	told.Command = shortCommand(job.Command)
	s.events.Add(events.Entry{Team: in.Team, Namespace: in.Namespace, Event: sandbox.Event{Kind: sandbox.EventJob, SandboxID: job.SandboxID, Job: &told}})
}

// announceAction reports to those who follow events what was done with a computer.
func (s *Service) announceAction(h *handle, done sandbox.ComputerAction) {
	s.events.Add(events.Entry{Team: h.realm.Team, Namespace: h.realm.Namespace, Event: sandbox.Event{Kind: sandbox.EventComputer, SandboxID: h.id, Computer: &done}})
}

// shortCommand returns the beginning of a command, of at most [maxAnnounced] bytes.
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
// has begun and when it has ended.
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

// announceLater waits in the background for the end of a background job, and announces it.
func (s *Service) announceLater(in call.Realm, sandboxID, id string) {
	s.mu.Lock()
	of := s.awaited[sandboxID]
	if of == nil {
		of = map[string]bool{}
		s.awaited[sandboxID] = of
	}
	there := of[id]
	of[id] = true
	s.mu.Unlock()
	if there {
		return
	}
	s.gate.Go(func() {
		defer s.announced(sandboxID, id)
		s.announceEnd(in, sandboxID, id)
	})
}

func (s *Service) announced(sandboxID, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaited[sandboxID], id)
	if len(s.awaited[sandboxID]) == 0 {
		delete(s.awaited, sandboxID)
	}
}

// awaitedIn returns the jobs of a sandbox whose ends will be announced.
func (s *Service) awaitedIn(sandboxID string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.awaited[sandboxID])
}

// announceFound announces, in the background, the ends of jobs that were running in a
// sandbox when it was opened: an earlier daemon started them, or the sandbox was restored
// to a state in which they ran. Few sandboxes are asked at the same time. The caller has
// called [handle.noteJobs].
func (s *Service) announceFound(h *handle) {
	s.gate.Go(func() {
		for s.gate.Context().Err() == nil && !s.askForJobs(h) {
			waitUnless(s.gate.Context(), sandbox.StatsInterval, h.gone)
		}
	})
}

// askForJobs asks a sandbox for its jobs and has their ends announced. It reports false if
// the sandbox does not answer.
func (s *Service) askForJobs(h *handle) bool {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-h.gone:
	case <-s.gate.Context().Done():
	}
	select {
	case <-h.gone:
		return true // whoever opens it next asks again
	default:
	}
	// Jobs that are awaited now are announced even if they end while the sandbox is asked.
	awaited := s.awaitedIn(h.id)
	jobs, err := h.client.ListJobs(s.gate.Context())
	if err != nil {
		return false
	}
	noted, since := h.notedJobs()
	left := max(0, maxFound-len(awaited))
	for i := range jobs {
		job := &jobs[i]
		ended := job.EndedAt != nil
		switch {
		case left == 0:
			return true
		case awaited[job.ID], noted[job.ID], ended && job.EndedAt.Before(since):
			continue
		case ended:
			s.announceJob(h.realm, job)
		default:
			s.announceLater(h.realm, h.id, job.ID)
		}
		left--
	}
	return true
}

// announceEnd waits for the end of a background job, also across pauses of its sandbox,
// and announces it. If the sandbox ends first, only that is announced, elsewhere.
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
		job, err := h.awaitJob(ctx, id)
		switch {
		case err == nil && job.State == sandbox.JobExited:
			s.announceJob(in, job)
			return
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return
		default:
			// The job still runs, or the sandbox does not answer. The pause keeps an agent
			// that answers too early from keeping the server busy.
			waitUnless(ctx, time.Second, h.gone)
		}
	}
}

// awaitJob waits for the end of a job, for at most [announceWait], and returns the job.
func (h *handle) awaitJob(ctx context.Context, id string) (*sandbox.Job, error) {
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
		return h.client.GetJob(ctx, id, announceWait)
	default:
		waitUnless(ctx, sandbox.StatsInterval, h.gone)
		return h.client.GetJob(ctx, id, 0)
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
