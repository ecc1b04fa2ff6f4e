package agent

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// Exec implements [agentv1connect.AgentHandler].
func (a *Agent) Exec(ctx context.Context, req *connect.Request[agentv1.ExecRequest], s *connect.ServerStream[agentv1.JobEvent]) error {
	p, err := a.planJob(req.Msg)
	if err != nil {
		return err
	}
	j, f, err := a.launch(p)
	if err != nil {
		return err
	}
	defer j.out.unfollow(f)
	started := &agentv1.JobEvent{Event: &agentv1.JobEvent_Started{Started: j.describeStart()}}
	if p.terminal == nil {
		_ = j.await(ctx, quickEnd) // if ctx ends, stream returns its error
	}
	if err := s.Send(started); err != nil {
		return err
	}
	return stream(ctx, j, f, req.Msg.GetDetachAfterMs(), s)
}

// quickEnd is how long the first event of a job is delayed: most commands end in that
// time, and all their events are then sent together. A separate event wakes every
// process between agent and caller while the command needs the processor.
const quickEnd = 8 * time.Millisecond

// await waits until the job has ended, for d at most. It fails if ctx ends first.
func (j *job) await(ctx context.Context, d time.Duration) error {
	select {
	case <-j.done:
	case <-time.After(d):
	case <-ctx.Done():
		return cancelled(ctx)
	}
	return nil
}

// launch starts a job and returns it with a follower that misses no output.
func (a *Agent) launch(p *plan) (*job, *follower, error) {
	id, err := a.jobs.reserve(p.id)
	if err != nil {
		p.clean()
		return nil, nil, err
	}
	p.id = id
	j := newJob(p)
	j.onDone = func() {
		a.jobs.done(j)
		p.clean() // after the end is announced: removing many files takes time
	}
	j.onQuiet = func() { a.jobs.quiet(j) }
	f := j.out.follow(0, 0)
	if err := a.start(j, p); err != nil {
		a.jobs.release(id)
		p.clean()
		return nil, nil, err
	}
	if !a.jobs.add(j) { // the agent closed meanwhile
		j.killAll()
	}
	return j, f, nil
}

// Attach implements [agentv1connect.AgentHandler].
func (a *Agent) Attach(ctx context.Context, req *connect.Request[agentv1.AttachRequest], s *connect.ServerStream[agentv1.JobEvent]) error {
	m := req.Msg
	if m.GetStdoutOffset() < 0 || m.GetStderrOffset() < 0 {
		return invalid("an offset is negative; offsets start at 0")
	}
	if m.GetMaxBytes() < 0 || m.GetLastBytes() < 0 {
		return invalid("max_bytes or last_bytes is negative; 0 is all output")
	}
	if err := checkMillis("detach_after_ms", m.GetDetachAfterMs()); err != nil {
		return err
	}
	j, err := a.jobs.get(m.GetJobId())
	if err != nil {
		return err
	}
	if stdout, stderr, _ := j.out.totals(); m.GetStdoutOffset() > stdout || m.GetStderrOffset() > stderr {
		return invalid("an offset is beyond what job %s has written so far (stdout %d, stderr %d bytes); attach at the end of what was read", j.id, stdout, stderr)
	}
	f := j.out.followBy(m.GetStdoutOffset(), m.GetStderrOffset(), pieces{size: m.GetMaxBytes(), last: m.GetLastBytes()})
	defer j.out.leave(f)
	if err := s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Started{Started: j.describe()}}); err != nil {
		return err
	}
	return stream(ctx, j, f, m.GetDetachAfterMs(), s)
}

// stream sends output as it comes, until the job has ended and all its output is
// sent, the follower has had its piece, the time to detach has come, or the caller is gone.
func stream(ctx context.Context, j *job, f *follower, detachMS int64, s *connect.ServerStream[agentv1.JobEvent]) error {
	var detach <-chan time.Time
	if detachMS > 0 {
		detach = time.After(time.Duration(detachMS) * time.Millisecond)
	}
	for {
		exited := !j.running() // before reading: then no output comes after it
		more, err := sendOutput(j, f, s)
		if err != nil {
			return err
		}
		if exited && j.out.passed(f, j.final) {
			return s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Exited{Exited: j.describe()}})
		}
		if f.full() {
			j.out.expect(f) // before the reader is told and can come back
			return s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Detached{Detached: j.describe()}})
		}
		if more {
			select {
			case <-detach:
				return s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Detached{Detached: j.describe()}})
			case <-ctx.Done():
				return cancelled(ctx)
			default:
				continue
			}
		}
		select {
		case <-f.wake:
		case <-j.done:
		case <-detach:
			return s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Detached{Detached: j.describe()}})
		case <-ctx.Done():
			return cancelled(ctx)
		}
	}
}

// sendOutput sends the result of one read of each stream and reports whether there
// was any.
func sendOutput(j *job, f *follower, s *connect.ServerStream[agentv1.JobEvent]) (more bool, err error) {
	buf := buffers.Get().(*[liveWindow]byte)
	defer buffers.Put(buf)
	for i, name := range []agentv1.Stream{agentv1.Stream_STREAM_STDOUT, agentv1.Stream_STREAM_STDERR} {
		off, n := j.out.next(f, i, f.piece(buf[:]))
		if n == 0 {
			continue
		}
		more = true
		f.left -= int64(n)
		err := s.Send(&agentv1.JobEvent{Event: &agentv1.JobEvent_Output{
			Output: &agentv1.Output{Stream: name, Offset: off, Data: buf[:n]},
		}})
		if err != nil {
			return more, err
		}
	}
	return more, nil
}

// WriteInput implements [agentv1connect.AgentHandler].
func (a *Agent) WriteInput(ctx context.Context, req *connect.Request[agentv1.WriteInputRequest]) (*connect.Response[agentv1.WriteInputResponse], error) {
	j, err := a.jobs.get(req.Msg.GetJobId())
	if err != nil {
		return nil, err
	}
	if !j.running() {
		return nil, fail(connect.CodeFailedPrecondition, "job %s has already ended; start another", j.id)
	}
	if j.in == nil {
		return nil, fail(connect.CodeFailedPrecondition, "standard input is closed; start the command with an open standard input to write to it later")
	}
	if err := j.in.write(ctx, req.Msg.GetData(), req.Msg.GetClose()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.WriteInputResponse{}), nil
}

// ResizeTerminal implements [agentv1connect.AgentHandler].
func (a *Agent) ResizeTerminal(_ context.Context, req *connect.Request[agentv1.ResizeTerminalRequest]) (*connect.Response[agentv1.ResizeTerminalResponse], error) {
	j, err := a.jobs.get(req.Msg.GetJobId())
	if err != nil {
		return nil, err
	}
	if err := checkTerminal(req.Msg.GetSize()); err != nil {
		return nil, err
	}
	if j.tty == nil || !j.running() {
		return nil, fail(connect.CodeFailedPrecondition, "job %s has no terminal or has ended; start it with a terminal", j.id)
	}
	if err := pty.Setsize(j.tty, winsize(req.Msg.GetSize())); err != nil {
		return nil, fail(connect.CodeFailedPrecondition, "the terminal of job %s is closed", j.id)
	}
	return connect.NewResponse(&agentv1.ResizeTerminalResponse{}), nil
}

// Signal implements [agentv1connect.AgentHandler].
func (a *Agent) Signal(_ context.Context, req *connect.Request[agentv1.SignalRequest]) (*connect.Response[agentv1.SignalResponse], error) {
	m := req.Msg
	if m.GetSignal() < 1 || m.GetSignal() > 64 {
		return nil, invalid("%d is not a signal; use 1 to 64, such as 15 to ask the command to end", m.GetSignal())
	}
	if err := checkMillis("kill_after_ms", m.GetKillAfterMs()); err != nil {
		return nil, err
	}
	j, err := a.jobs.get(m.GetJobId())
	if err != nil {
		return nil, err
	}
	if err := j.signal(unix.Signal(m.GetSignal()), time.Duration(m.GetKillAfterMs())*time.Millisecond); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.SignalResponse{}), nil
}

// GetJob implements [agentv1connect.AgentHandler].
func (a *Agent) GetJob(ctx context.Context, req *connect.Request[agentv1.GetJobRequest]) (*connect.Response[agentv1.GetJobResponse], error) {
	if err := checkMillis("wait_ms", req.Msg.GetWaitMs()); err != nil {
		return nil, err
	}
	j, err := a.jobs.get(req.Msg.GetJobId())
	if err != nil {
		return nil, err
	}
	if wait := req.Msg.GetWaitMs(); wait > 0 {
		if err := j.await(ctx, time.Duration(wait)*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&agentv1.GetJobResponse{Job: j.describe()}), nil
}

// ListJobs implements [agentv1connect.AgentHandler].
func (a *Agent) ListJobs(context.Context, *connect.Request[agentv1.ListJobsRequest]) (*connect.Response[agentv1.ListJobsResponse], error) {
	m := &agentv1.ListJobsResponse{}
	for _, j := range a.jobs.list() {
		m.Jobs = append(m.Jobs, j.describe())
	}
	return connect.NewResponse(m), nil
}

// ReadOutput implements [agentv1connect.AgentHandler].
func (a *Agent) ReadOutput(_ context.Context, req *connect.Request[agentv1.ReadOutputRequest]) (*connect.Response[agentv1.ReadOutputResponse], error) {
	m := req.Msg
	s := int(m.GetStream() - agentv1.Stream_STREAM_STDOUT)
	if s < 0 || s > 1 {
		return nil, invalid("name a stream: stdout or stderr")
	}
	if m.GetOffset() < 0 || m.GetLimit() < 0 {
		return nil, invalid("offset and limit cannot be negative; use 0 for the start and the largest piece")
	}
	j, err := a.jobs.get(m.GetJobId())
	if err != nil {
		return nil, err
	}
	limit := m.GetLimit()
	if limit == 0 || limit > sandbox.MaxOutputRead {
		limit = sandbox.MaxOutputRead
	}
	running := j.running() // before reading, so that false means that no output is missing
	off, data, total := j.out.read(s, m.GetOffset(), int(limit))
	return connect.NewResponse(&agentv1.ReadOutputResponse{
		Offset: off, Data: data, TotalBytes: total, Running: running,
	}), nil
}
