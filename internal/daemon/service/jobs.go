package service

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// killTimeout bounds killing a command whose caller is gone, and killTries the
	// attempts: the command may be just starting.
	killTimeout = 5 * time.Second
	killTries   = 6
)

// sink calls a caller's function and keeps its error, which is returned unchanged.
type sink struct {
	f      sandbox.JobSink
	failed bool
}

func (s *sink) event(e sandbox.JobEvent) error {
	if s.f == nil {
		return nil
	}
	if err := s.f(e); err != nil {
		s.failed = true
		return &call.CallbackError{Err: err}
	}
	return nil
}

// Exec implements [sandbox.Jobs]. On its path there is one call to the agent,
// and nothing is written, unless the sandbox has a history.
func (s *Service) Exec(ctx context.Context, ref string, req sandbox.ExecRequest, f sandbox.JobSink) (*sandbox.Job, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "job.start"), func(c *call.Call) (job *sandbox.Job, err error) {
		if err := validate.Exec(&req); err != nil {
			return nil, err
		}
		if err := s.webhooks.Check(&req); err != nil {
			return nil, err
		}
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		id := ids.New(ids.Job)
		c.Detail = id + " " + program(&req)
		if !req.Background || sandbox.Followed(ctx) {
			if err := s.takeStep(c.Ctx, h, "before "+program(&req)); err != nil {
				return nil, err
			}
		}
		if err := c.Ctx.Err(); err != nil {
			return nil, err
		}
		if req.Webhook != nil {
			delivery, err := s.webhooks.Record(c, id, req.Webhook)
			if err != nil {
				return nil, err
			}
			defer func() {
				if job == nil {
					s.webhooks.Forget(c.Ctx, delivery)
					return
				}
				s.webhooks.Deliver(delivery)
			}()
		}
		h.noteJob(id)
		events := &sink{f: f}
		exec, followed := h.client.Exec, req.Background && f != nil && sandbox.Followed(ctx)
		if followed {
			exec = h.client.ExecFollowed
		}
		job, err = exec(c.Ctx, id, &req, s.announcing(h.realm, events.event))
		if err == nil {
			if job.State == sandbox.JobRunning {
				s.announceLater(h.realm, h.id, job.ID)
			}
			return job, nil
		}
		if s.gate.Context().Err() != nil && ctx.Err() == nil && !events.failed {
			return job, call.Unavailable(err, "the server is shutting down; job %s keeps running, so get the job when the server is back", id)
		}
		// The agent also knows the caller's deadline, and may report it first.
		code := sandbox.CodeOf(err)
		if events.failed || c.Ctx.Err() != nil || code == sandbox.CodeTimeout || code == sandbox.CodeCancelled {
			if followed && job != nil { // only the follower has gone
				s.announceLater(h.realm, h.id, job.ID)
				return job, err
			}
			if last := h.kill(c.Ctx, id); last != nil {
				job = last
				s.announceJob(h.realm, job)
			}
			return job, err
		}
		if job != nil && job.State == sandbox.JobRunning {
			s.announceLater(h.realm, h.id, job.ID)
		}
		if err = h.explain(c.Ctx, err); job != nil && sandbox.CodeOf(err) == sandbox.CodeUnavailable {
			err = call.Unavailable(err, "the connection to the sandbox was lost while job %s was running; it may still be running, so get the job to check", id)
		}
		return job, err
	})
}

// program returns the program of a command, for the audit record and for a step of the
// history. It leaves out arguments, which may contain secrets.
func program(req *sandbox.ExecRequest) string {
	if req.Code != nil {
		return string(req.Code.Language) + " code"
	}
	if req.Shell != "" {
		return "shell"
	}
	name := path.Base(req.Command[0])
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "")
	}
	return name
}

// kill ends a job whose caller is gone, and returns the job afterwards, or nil.
func (h *handle) kill(ctx context.Context, id string) *sandbox.Job {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	for i := range killTries {
		err := h.client.Signal(ctx, id, syscall.SIGKILL, 0)
		if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound && code != sandbox.CodeUnavailable {
			break
		}
		t := time.NewTimer(20 * time.Millisecond << i)
		select {
		case <-t.C:
		case <-h.gone:
			t.Stop()
			return nil
		}
	}
	job, err := h.client.GetJob(ctx, id, killTimeout/2)
	if err != nil {
		return nil
	}
	return job
}

// Attach implements [sandbox.Jobs].
func (s *Service) Attach(ctx context.Context, ref, job string, req sandbox.AttachRequest, f sandbox.JobSink) (*sandbox.Job, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Job, error) {
		h, err := s.job(c, ref, job)
		if err != nil {
			return nil, err
		}
		if req.StdoutOffset < 0 || req.StderrOffset < 0 {
			return nil, validate.Errorf("an offset must not be negative; offsets start at 0")
		}
		if err := cmp.Or(
			validate.Range("detach_after_ms", req.DetachAfterMS, 0, validate.MaxMillis),
			validate.Range("max_bytes", req.MaxBytes, 0, sandbox.MaxJobOutputBytes),
			validate.Range("last_bytes", req.LastBytes, 0, sandbox.MaxJobOutputBytes),
		); err != nil {
			return nil, err
		}
		j, err := h.client.Attach(c.Ctx, job, &req, (&sink{f: f}).event)
		return j, h.explain(c.Ctx, err)
	})
}

// job opens the caller's sandbox for a verb on one of its jobs.
func (s *Service) job(c *call.Call, ref, job string) (*handle, error) {
	h, err := s.openFor(c, ref)
	if err != nil {
		return nil, err
	}
	if err := validate.JobID(job); err != nil {
		return nil, err
	}
	c.Detail = job
	return h, nil
}

// GetJob implements [sandbox.Jobs].
func (s *Service) GetJob(ctx context.Context, ref, job string) (*sandbox.Job, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Job, error) {
		h, err := s.job(c, ref, job)
		if err != nil {
			return nil, err
		}
		j, err := h.client.GetJob(c.Ctx, job, 0)
		return j, h.explain(c.Ctx, err)
	})
}

// ListJobs implements [sandbox.Jobs].
func (s *Service) ListJobs(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Job], error) {
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		jobs, err := h.client.ListJobs(c.Ctx)
		if err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		return call.PageOf("jobs", jobs, page, placeOfJob)
	})
}

func placeOfJob(j *sandbox.Job) store.Place { return store.PlaceAt(j.StartedAt, j.ID) }

// ReadOutput implements [sandbox.Jobs].
func (s *Service) ReadOutput(ctx context.Context, ref, job string, req sandbox.OutputRequest) (*sandbox.Output, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Output, error) {
		h, err := s.job(c, ref, job)
		if err != nil {
			return nil, err
		}
		if req.Stream != sandbox.Stdout && req.Stream != sandbox.Stderr {
			return nil, validate.Errorf("stream %s is not valid; use %q or %q", validate.Quote(string(req.Stream)), sandbox.Stdout, sandbox.Stderr)
		}
		if req.Offset < 0 {
			return nil, validate.Errorf("offset must not be negative; offsets start at 0")
		}
		if err := validate.Range("limit", req.Limit, 0, sandbox.MaxOutputRead); err != nil {
			return nil, err
		}
		if req.Limit == 0 {
			req.Limit = sandbox.MaxOutputRead
		}
		out, err := h.client.ReadOutput(c.Ctx, job, &req)
		return out, h.explain(c.Ctx, err)
	})
}

// WriteInput implements [sandbox.Jobs].
func (s *Service) WriteInput(ctx context.Context, ref, job string, data []byte, closeAfter bool) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "job.input"), func(c *call.Call) error {
		h, err := s.job(c, ref, job)
		if err != nil {
			return err
		}
		c.Detail = fmt.Sprintf("%s %d bytes", job, len(data))
		if len(data) > sandbox.MaxStdinBytes {
			return sandbox.Errorf(sandbox.CodeTooLarge, "the input has %d bytes; send at most %d at a time", len(data), sandbox.MaxStdinBytes)
		}
		if len(data) == 0 && !closeAfter {
			return nil
		}
		return h.explain(c.Ctx, h.client.WriteInput(c.Ctx, job, data, closeAfter))
	})
}

// ResizeTerminal implements [sandbox.Jobs].
func (s *Service) ResizeTerminal(ctx context.Context, ref, job string, size sandbox.TerminalSize) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "job.resize"), func(c *call.Call) error {
		h, err := s.job(c, ref, job)
		if err != nil {
			return err
		}
		if size.Cols == 0 || size.Rows == 0 {
			return validate.Errorf("the terminal is %d by %d; use at least 1 column and 1 row", size.Cols, size.Rows)
		}
		return h.explain(c.Ctx, h.client.ResizeTerminal(c.Ctx, job, size))
	})
}

// SignalJob implements [sandbox.Jobs].
func (s *Service) SignalJob(ctx context.Context, ref, job, signal string, killAfterMS int64) (*sandbox.Job, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "job.signal"), func(c *call.Call) (*sandbox.Job, error) {
		h, err := s.job(c, ref, job)
		if err != nil {
			return nil, err
		}
		sig, err := agentclient.ParseSignal(signal)
		if err != nil {
			return nil, validate.Errorf("signal %s is not valid; %w", validate.Quote(signal), err)
		}
		c.Detail = fmt.Sprintf("%s signal %d", job, sig)
		if err := validate.Range("kill_after_ms", killAfterMS, 0, validate.MaxMillis); err != nil {
			return nil, err
		}
		if err := h.client.Signal(c.Ctx, job, sig, killAfterMS); err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		j, err := h.client.GetJob(c.Ctx, job, 0)
		return j, h.explain(c.Ctx, err)
	})
}
