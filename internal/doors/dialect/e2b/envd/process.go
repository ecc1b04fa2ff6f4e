package envd

import (
	"context"
	"errors"
	"math"
	"path"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb"
	"github.com/cove-sh/cove/sandbox"
)

// endedTime is how long clients can connect to a command that has ended.
const endedTime = 30 * time.Second

// processes implements the service process.Process. The number of a process is that of
// the job's first process.
type processes struct{ *plane }

func (s processes) Start(ctx context.Context, req *connect.Request[pb.StartRequest], out *connect.ServerStream[pb.StartResponse]) error {
	at, err := s.accountOf(ctx, req.Header())
	if err != nil {
		return err
	}
	exec, err := s.command(ctx, at, req.Msg)
	if err != nil {
		return err
	}
	// One call to the sandbox starts the command and follows it, so that a short command
	// costs as little as possible. Nothing is sent before the command has started.
	var f *follower
	job, err := s.cfg.Service.Exec(sandbox.WithFollowed(ctx), at.box.ID, *exec, func(e sandbox.JobEvent) error {
		if f != nil {
			return f.event(e)
		}
		f = newFollower(req.Header(), func(e *pb.ProcessEvent) error { return out.Send(&pb.StartResponse{Event: e}) })
		f.err = f.start(e.Job, sandbox.AttachRequest{})
		return f.err
	})
	if f == nil {
		return s.explainStart(ctx, at, exec, err)
	}
	defer f.close()
	return s.end(ctx, at.box.ID, job, err, f)
}

// command returns the request for a job. The job ends at the call's deadline, not when
// its client goes away.
func (s processes) command(ctx context.Context, at *account, req *pb.StartRequest) (*sandbox.ExecRequest, error) {
	cfg := req.GetProcess()
	if cfg.GetCmd() == "" {
		return nil, fail(connect.CodeInvalidArgument, "the command is empty; name a program in process.cmd")
	}
	exec := &sandbox.ExecRequest{
		Command: append([]string{cfg.GetCmd()}, cfg.GetArgs()...), Env: access.Env(cfg.GetEnvs(), at.box.ID), User: at.user,
		Background: true, OpenStdin: req.Stdin == nil || req.GetStdin(), Tag: req.GetTag(),
	}
	if req.GetPty() != nil {
		size, err := terminalSize(req.GetPty())
		if err != nil {
			return nil, err
		}
		exec.Terminal, exec.OpenStdin = size, true
	}
	if end, ok := ctx.Deadline(); ok {
		exec.TimeoutMS = max(1, time.Until(end).Milliseconds())
	}
	if cfg.GetCwd() != "" {
		var err error
		if exec.WorkDir, err = at.resolve(ctx, cfg.GetCwd()); err != nil {
			return nil, err
		}
	}
	return exec, nil
}

func terminalSize(pty *pb.PTY) (*sandbox.TerminalSize, error) {
	cols, rows := pty.GetSize().GetCols(), pty.GetSize().GetRows()
	if cols == 0 || rows == 0 || cols > math.MaxUint16 || rows > math.MaxUint16 {
		return nil, fail(connect.CodeInvalidArgument, "a terminal of %d columns and %d rows is not possible; give 1 to %d of each", cols, rows, math.MaxUint16)
	}
	return &sandbox.TerminalSize{Cols: uint16(cols), Rows: uint16(rows)}, nil
}

// explainStart describes why a command could not be started.
func (s processes) explainStart(ctx context.Context, at *account, exec *sandbox.ExecRequest, err error) error {
	if s.gone(ctx, at.box.ID, err) {
		return s.explain(ctx, at.box.ID, err)
	}
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid, sandbox.CodeNotFound:
		if exec.WorkDir != "" {
			if _, serr := s.cfg.Service.StatFile(ctx, at.box.ID, exec.WorkDir); notFound(serr) {
				return fail(connect.CodeInvalidArgument, "cwd '%s' does not exist", exec.WorkDir)
			}
		}
		return fail(connect.CodeInvalidArgument, "error starting process '%s': %s", clipName(exec.Command[0]), sandbox.MessageOf(err))
	}
	return failure(err)
}

func clipName(name string) string {
	if base := path.Base(name); len(base) <= 128 {
		return base
	}
	return "the command"
}

func (s processes) Connect(ctx context.Context, req *connect.Request[pb.ConnectRequest], out *connect.ServerStream[pb.ConnectResponse]) error {
	id, job, err := s.find(ctx, req.Msg.GetProcess(), endedTime)
	if err != nil {
		return err
	}
	f := newFollower(req.Header(), func(e *pb.ProcessEvent) error { return out.Send(&pb.ConnectResponse{Event: e}) })
	// Only output from now on: another reader has the rest.
	return s.follow(ctx, id, job, sandbox.AttachRequest{StdoutOffset: job.StdoutBytes, StderrOffset: job.StderrBytes}, f)
}

// follow sends the events of a job until the job ends. The job continues if the reader
// goes away.
func (s processes) follow(ctx context.Context, id string, job *sandbox.Job, from sandbox.AttachRequest, f *follower) error {
	defer f.close()
	if err := f.start(job, from); err != nil {
		return err
	}
	var err error
	if job.State == sandbox.JobRunning || from == (sandbox.AttachRequest{}) {
		job, err = s.cfg.Service.Attach(ctx, id, job.ID, from, f.event)
	}
	return s.end(ctx, id, job, err, f)
}

// end sends the end of a job, or why it is no longer followed.
func (s processes) end(ctx context.Context, id string, job *sandbox.Job, err error, f *follower) error {
	switch {
	case f.err != nil:
		return f.err // the reader is gone, or was too slow
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail(connect.CodeDeadlineExceeded, "the time that the client gave is over")
	case err != nil:
		return s.explain(ctx, id, err)
	case job.EndCause == sandbox.EndTimeout:
		return fail(connect.CodeDeadlineExceeded, "the command was ended: the time that the client gave is over")
	}
	return f.send(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: endOf(job)}})
}

func (s processes) List(ctx context.Context, req *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	box, err := sandboxOf(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListResponse{}
	for job, err := range s.jobs(ctx, box.ID) {
		if err != nil {
			return nil, s.explain(ctx, box.ID, err)
		}
		if job.State == sandbox.JobRunning {
			resp.Processes = append(resp.Processes, processOf(&job))
		}
	}
	return connect.NewResponse(resp), nil
}

// processOf describes a job, without its environment, which may hold secrets and is not
// stored.
func processOf(job *sandbox.Job) *pb.ProcessInfo {
	info := &pb.ProcessInfo{Pid: uint32(job.PID), Config: &pb.ProcessConfig{Cwd: &job.WorkDir}}
	if len(job.Command) > 0 {
		info.Config.Cmd, info.Config.Args = job.Command[0], job.Command[1:]
	}
	if job.Tag != "" {
		info.Tag = &job.Tag
	}
	return info
}

func (s processes) Update(ctx context.Context, req *connect.Request[pb.UpdateRequest]) (*connect.Response[pb.UpdateResponse], error) {
	id, job, err := s.find(ctx, req.Msg.GetProcess(), 0)
	if err != nil {
		return nil, err
	}
	if req.Msg.GetPty() == nil {
		return connect.NewResponse(&pb.UpdateResponse{}), nil
	}
	size, err := terminalSize(req.Msg.GetPty())
	if err != nil {
		return nil, err
	}
	if !job.Terminal {
		return nil, fail(connect.CodeInternal, "tty not assigned to process")
	}
	if err := s.cfg.Service.ResizeTerminal(ctx, id, job.ID, *size); err != nil {
		return nil, s.explain(ctx, id, err)
	}
	return connect.NewResponse(&pb.UpdateResponse{}), nil
}

func (s processes) SendInput(ctx context.Context, req *connect.Request[pb.SendInputRequest]) (*connect.Response[pb.SendInputResponse], error) {
	id, job, err := s.find(ctx, req.Msg.GetProcess(), 0)
	if err != nil {
		return nil, err
	}
	if err := s.write(ctx, id, job, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), nil
}

func (s processes) StreamInput(ctx context.Context, in *connect.ClientStream[pb.StreamInputRequest]) (*connect.Response[pb.StreamInputResponse], error) {
	var id string
	var job *sandbox.Job
	for in.Receive() {
		var err error
		switch e := in.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			if job != nil {
				return nil, fail(connect.CodeInvalidArgument, "the process is named twice; name it in the first message")
			}
			id, job, err = s.find(ctx, e.Start.GetProcess(), 0)
		case *pb.StreamInputRequest_Data:
			if job == nil {
				return nil, fail(connect.CodeInvalidArgument, "there is data before the process is named; name it in the first message")
			}
			err = s.write(ctx, id, job, e.Data.GetInput())
		case *pb.StreamInputRequest_Keepalive:
		default:
			err = fail(connect.CodeUnimplemented, "an event of this kind is not known; send start, data or keepalive")
		}
		if err != nil {
			return nil, err
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), nil
}

// write passes input to a job, which has a terminal or a pipe.
func (s processes) write(ctx context.Context, id string, job *sandbox.Job, input *pb.ProcessInput) error {
	var data []byte
	switch in := input.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		if job.Terminal {
			return fail(connect.CodeInternal, "the process has a terminal; send pty input to it")
		}
		data = in.Stdin
	case *pb.ProcessInput_Pty:
		if !job.Terminal {
			return fail(connect.CodeInternal, "tty not assigned to process")
		}
		data = in.Pty
	default:
		return fail(connect.CodeUnimplemented, "input of this kind is not known; send stdin or pty")
	}
	err := s.cfg.Service.WriteInput(ctx, id, job.ID, data, false)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return fail(connect.CodeInternal, "error writing to stdin: stdin not enabled or closed")
	}
	if err != nil {
		return s.explain(ctx, id, err)
	}
	return nil
}

func (s processes) CloseStdin(ctx context.Context, req *connect.Request[pb.CloseStdinRequest]) (*connect.Response[pb.CloseStdinResponse], error) {
	id, job, err := s.find(ctx, req.Msg.GetProcess(), 0)
	if err != nil {
		return nil, err
	}
	if job.Terminal {
		return nil, fail(connect.CodeUnknown, "cannot close stdin for a process with a terminal; send the end of transmission (^D) in its place")
	}
	// The input of a command without input counts as closed.
	if err := s.cfg.Service.WriteInput(ctx, id, job.ID, nil, true); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		return nil, s.explain(ctx, id, err)
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), nil
}

func (s processes) SendSignal(ctx context.Context, req *connect.Request[pb.SendSignalRequest]) (*connect.Response[pb.SendSignalResponse], error) {
	var signal string
	switch req.Msg.GetSignal() {
	case pb.Signal_SIGNAL_SIGKILL:
		signal = "KILL"
	case pb.Signal_SIGNAL_SIGTERM:
		signal = "TERM"
	default:
		return nil, fail(connect.CodeUnimplemented, "signal %d is not supported; send SIGTERM or SIGKILL", req.Msg.GetSignal())
	}
	id, job, err := s.find(ctx, req.Msg.GetProcess(), 0)
	if err != nil {
		return nil, err
	}
	_, err = s.cfg.Service.SignalJob(ctx, id, job.ID, signal, 0)
	if sandbox.CodeOf(err) == sandbox.CodeConflict { // it has ended meanwhile
		return nil, noProcess(req.Msg.GetProcess())
	}
	if err != nil {
		return nil, s.explain(ctx, id, err)
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), nil
}
