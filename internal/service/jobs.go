package service

import (
	"context"
	"fmt"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/agentclient"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// killTimeout bounds the end of a command whose caller is gone, and
	// killTries how often it is tried: the command may be just starting.
	killTimeout = 5 * time.Second
	killTries   = 6
)

// sink guards a caller's function, whose errors go back to it as they are.
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
		return &callbackError{err}
	}
	return nil
}

// Exec implements [sandbox.Jobs]. On its path there is one call to the agent,
// and nothing is written, unless the sandbox has a history.
func (s *Service) Exec(ctx context.Context, ref string, req sandbox.ExecRequest, f sandbox.JobSink) (job *sandbox.Job, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesWrite, "job.start")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkExec(&req); err != nil {
		return nil, err
	}
	if err := s.checkWebhook(&req); err != nil {
		return nil, err
	}
	h, err := v.open(ref)
	if err != nil {
		return nil, err
	}
	id := newID("job-")
	v.detail = id + " " + program(&req)
	if !req.Background || sandbox.Followed(ctx) {
		if err := s.takeStep(v.ctx, h, "before "+program(&req)); err != nil {
			return nil, err
		}
	}
	if err := v.ctx.Err(); err != nil {
		return nil, err
	}
	if req.Webhook != nil {
		delivery, err := s.recordWebhook(v, h, id, req.Webhook)
		if err != nil {
			return nil, err
		}
		defer func() {
			if job == nil {
				s.dropWebhook(v.ctx, delivery)
				return
			}
			s.goDeliver(delivery)
		}()
	}
	events := &sink{f: f}
	job, err = h.client.Exec(v.ctx, id, &req, events.event)
	if err == nil {
		return job, nil
	}
	if s.ctx.Err() != nil && ctx.Err() == nil && !events.failed {
		return job, unavailable(err, "the server is shutting down while job %s runs; it runs on, get the job when the server is back", id)
	}
	// The agent knows the caller's deadline too, and may be the first to say so.
	code := sandbox.CodeOf(err)
	if events.failed || v.ctx.Err() != nil || code == sandbox.CodeTimeout || code == sandbox.CodeCancelled {
		if last := h.kill(v.ctx, id); last != nil {
			job = last
		}
		return job, err
	}
	if err = h.explain(v.ctx, err); job != nil && sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		err = unavailable(err, "the connection to the sandbox broke while job %s ran; it may run on, get the job to see", id)
	}
	return job, err
}

// program names what is run, for the audit record and for a step of the history:
// arguments may hold secrets.
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

// kill ends a job whose caller is gone, and returns it as it is then, or nil.
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
func (s *Service) Attach(ctx context.Context, ref, job string, req sandbox.AttachRequest, f sandbox.JobSink) (_ *sandbox.Job, err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesRead, "", ref, job)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if req.StdoutOffset < 0 || req.StderrOffset < 0 {
		return nil, invalid("an offset is negative; offsets start at 0")
	}
	if err := checkRange("detach_ms", req.DetachMS, 0, maxMillis); err != nil {
		return nil, err
	}
	j, err := h.client.Attach(v.ctx, job, &req, (&sink{f: f}).event)
	return j, h.explain(v.ctx, err)
}

// job enters a verb on a job of a running sandbox.
func (s *Service) job(ctx context.Context, scope sandbox.Scope, action, ref, job string) (*visit, *handle, error) {
	v, err := s.enter(ctx, scope, action)
	if err != nil {
		return v, nil, err
	}
	h, err := v.open(ref)
	if err != nil {
		return v, nil, err
	}
	if err := checkJobID(job); err != nil {
		return v, nil, err
	}
	v.detail = job
	return v, h, nil
}

// GetJob implements [sandbox.Jobs].
func (s *Service) GetJob(ctx context.Context, ref, job string) (_ *sandbox.Job, err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesRead, "", ref, job)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	j, err := h.client.GetJob(v.ctx, job, 0)
	return j, h.explain(v.ctx, err)
}

// ListJobs implements [sandbox.Jobs].
func (s *Service) ListJobs(ctx context.Context, ref string, page sandbox.Page) (_ *sandbox.List[sandbox.Job], err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	h, err := v.open(ref)
	if err != nil {
		return nil, err
	}
	jobs, err := h.client.ListJobs(v.ctx)
	if err != nil {
		return nil, h.explain(v.ctx, err)
	}
	return pageOf("jobs", jobs, page, placeOfJob)
}

func placeOfJob(j *sandbox.Job) store.Place { return store.PlaceAt(j.StartedAt, j.ID) }

// ReadOutput implements [sandbox.Jobs].
func (s *Service) ReadOutput(ctx context.Context, ref, job string, req sandbox.OutputRequest) (_ *sandbox.Output, err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesRead, "", ref, job)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if req.Stream != sandbox.Stdout && req.Stream != sandbox.Stderr {
		return nil, invalid("stream %s is not known; use %q or %q", quote(string(req.Stream)), sandbox.Stdout, sandbox.Stderr)
	}
	if req.Offset < 0 {
		return nil, invalid("offset is negative; offsets start at 0")
	}
	if err := checkRange("limit", req.Limit, 0, sandbox.MaxOutputRead); err != nil {
		return nil, err
	}
	if req.Limit == 0 {
		req.Limit = sandbox.MaxOutputRead
	}
	out, err := h.client.ReadOutput(v.ctx, job, &req)
	return out, h.explain(v.ctx, err)
}

// WriteInput implements [sandbox.Jobs].
func (s *Service) WriteInput(ctx context.Context, ref, job string, data []byte, closeAfter bool) (err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesWrite, "job.input", ref, job)
	defer v.leave(&err)
	if err != nil {
		return err
	}
	v.detail = fmt.Sprintf("%s %d bytes", job, len(data))
	if len(data) > sandbox.MaxStdinBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the input has %d bytes; send at most %d at a time", len(data), sandbox.MaxStdinBytes)
	}
	if len(data) == 0 && !closeAfter {
		return nil
	}
	return h.explain(v.ctx, h.client.WriteInput(v.ctx, job, data, closeAfter))
}

// ResizeTerminal implements [sandbox.Jobs].
func (s *Service) ResizeTerminal(ctx context.Context, ref, job string, size sandbox.TerminalSize) (err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesWrite, "job.resize", ref, job)
	defer v.leave(&err)
	if err != nil {
		return err
	}
	if size.Cols == 0 || size.Rows == 0 {
		return invalid("the terminal is %d by %d; give at least 1 column and 1 row", size.Cols, size.Rows)
	}
	return h.explain(v.ctx, h.client.ResizeTerminal(v.ctx, job, size))
}

// SignalJob implements [sandbox.Jobs].
func (s *Service) SignalJob(ctx context.Context, ref, job, signal string, killAfterMS int64) (_ *sandbox.Job, err error) {
	v, h, err := s.job(ctx, sandbox.ScopeSandboxesWrite, "job.signal", ref, job)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	sig, err := agentclient.ParseSignal(signal)
	if err != nil {
		return nil, invalid("signal %s is not known; %w", quote(signal), err)
	}
	v.detail = fmt.Sprintf("%s signal %d", job, sig)
	if err := checkRange("kill_after_ms", killAfterMS, 0, maxMillis); err != nil {
		return nil, err
	}
	if err := h.client.Signal(v.ctx, job, sig, killAfterMS); err != nil {
		return nil, h.explain(v.ctx, err)
	}
	j, err := h.client.GetJob(v.ctx, job, 0)
	return j, h.explain(v.ctx, err)
}
