package cloud

import (
	"context"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxSignal is the largest number of a signal.
	maxSignal = 64
	// backlog is how many signals and sizes may wait for a command that is starting.
	backlog = 16
	// killedCode is the exit code that the product reports for a command that a signal has
	// ended.
	killedCode = -1
)

// The kinds of failures to start a command.
const (
	failNotFound      = "not_found"
	failNotExecutable = "not_executable"
	failPermission    = "permission_denied"
	failDir           = "bad_cwd"
	failArgs          = "bad_args"
	failUser          = "user_setup_failed"
	failMemory        = "out_of_memory"
	failOther         = "other"
)

// execSession is a command on a connection.
type execSession struct {
	c  *conn
	id uint32
	// ctx ends with the command.
	ctx    context.Context
	cancel context.CancelFunc
	job    string // set before the input and the control of the command are served
	input  *stdin.Queue
	// control holds signals and sizes for the command.
	control chan func(ctx context.Context)
}

// exec begins a command.
func (c *conn) exec(f *wire.Frame) error {
	var m wire.Exec
	if err := f.Decode(&m); err != nil {
		return err
	}
	s := &execSession{c: c, id: f.ID, control: make(chan func(context.Context), backlog)}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	s.input = stdin.NewSized(s.write, maxWaiting)
	c.begin(f.ID, s, func() { s.run(&m) })
	return nil
}

// execRequest returns a command in Cove's terms.
func execRequest(m *wire.Exec) (sandbox.ExecRequest, *wire.ExecFailed) {
	req := sandbox.ExecRequest{
		Command: append([]string{m.Cmd}, m.Args...), Env: map[string]string{},
		Background: true, TimeoutMS: -1, OpenStdin: true,
	}
	switch {
	case m.Cmd == "":
		return req, &wire.ExecFailed{Kind: failArgs, Message: "no program is named"}
	case len(m.Rlimits) > 0:
		return req, &wire.ExecFailed{Kind: "resource_limit", Message: "rlimits: Cove limits a sandbox by its resources, and no single process; leave them out"}
	}
	for _, v := range m.Env {
		name, value, ok := strings.Cut(v, "=")
		if !ok {
			return req, &wire.ExecFailed{Kind: failArgs, Message: "the variable " + strconv.Quote(clip.Text(v, maxShown)) + " has no value"}
		}
		req.Env[name] = value
	}
	if m.Cwd != nil {
		req.WorkDir = *m.Cwd
	}
	if m.User != nil {
		req.User = *m.User
	}
	if m.TTY {
		req.Terminal = &sandbox.TerminalSize{Rows: orDefault(m.Rows, 24), Cols: orDefault(m.Cols, 80)}
	}
	return req, nil
}

func orDefault(n, def uint16) uint16 {
	if n == 0 {
		return def
	}
	return n
}

// run runs a command to its end. It kills the command if its client is gone.
func (s *execSession) run(m *wire.Exec) {
	defer s.cancel()
	c := s.c
	req, failed := execRequest(m)
	if failed != nil {
		c.end(s.id, wire.TypeExecFailed, failed)
		return
	}
	ctx, err := c.alive(s.ctx)
	if err != nil {
		c.end(s.id, wire.TypeExecFailed, failure(err))
		return
	}
	job, err := c.d.cfg.Service.Exec(sandbox.WithFollowed(ctx), c.sandbox, req, nil)
	if err != nil {
		c.end(s.id, wire.TypeExecFailed, failure(err))
		return
	}
	if err := c.send(s.id, 0, wire.TypeStarted, wire.Started{PID: uint32(job.PID)}); err != nil {
		c.d.kill(ctx, c.sandbox, job.ID)
		return
	}
	s.job = job.ID
	c.workers.Go(func() { s.input.Run(ctx) })
	c.workers.Go(func() { s.steer(ctx) })
	ended, err := c.d.cfg.Service.Attach(ctx, c.sandbox, job.ID, sandbox.AttachRequest{}, s.sink())
	if err != nil {
		c.d.kill(ctx, c.sandbox, job.ID)
		c.end(s.id, wire.TypeExecFailed, failure(err))
		return
	}
	code := ended.ExitCode
	if ended.Signal != "" {
		code = killedCode
	}
	c.end(s.id, wire.TypeExited, wire.Exited{Code: int32(code)})
}

// steer passes signals and sizes to a running command.
func (s *execSession) steer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case do := <-s.control:
			do(ctx)
		}
	}
}

// write writes input to the command. Input that the command does not accept is lost, and
// the client is told.
func (s *execSession) write(ctx context.Context, data []byte, end bool) error {
	err := s.c.d.cfg.Service.WriteInput(ctx, s.c.sandbox, s.job, data, end)
	if err != nil && ctx.Err() == nil && len(data) > 0 {
		_ = s.c.send(s.id, 0, wire.TypeStdinError, wire.StdinError{Message: sandbox.MessageOf(err)})
	}
	return err
}

// sink sends the output of a command.
func (s *execSession) sink() sandbox.JobSink {
	next := map[sandbox.Stream]int64{}
	return func(e sandbox.JobEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		if e.Offset > next[e.Stream] {
			return sandbox.Errorf(sandbox.CodeUnavailable, "output of the command was lost: it was read too slowly")
		}
		next[e.Stream] = e.Offset + int64(len(e.Data))
		kind := wire.TypeStdout
		if e.Stream == sandbox.Stderr {
			kind = wire.TypeStderr
		}
		for data := e.Data; len(data) > 0; {
			n := min(len(data), wire.MaxData)
			if err := s.c.send(s.id, 0, kind, wire.Data{Data: data[:n]}); err != nil {
				return err
			}
			data = data[n:]
		}
		return nil
	}
}

// receive implements [session].
func (s *execSession) receive(f *wire.Frame) (known bool, err error) {
	switch f.Type {
	case wire.TypeStdin:
		var m wire.Data
		if err := f.Decode(&m); err != nil {
			return true, err
		}
		if len(m.Data) == 0 {
			s.input.End()
			return true, nil
		}
		s.input.Put(s.ctx, m.Data)
		return true, nil
	case wire.TypeResize:
		var m wire.Resize
		if err := f.Decode(&m); err != nil {
			return true, err
		}
		size := sandbox.TerminalSize{Rows: m.Rows, Cols: m.Cols}
		s.do(func(ctx context.Context) {
			_ = s.c.d.cfg.Service.ResizeTerminal(ctx, s.c.sandbox, s.job, size) // the command may have ended
		})
		return true, nil
	case wire.TypeSignal:
		var m wire.Signal
		if err := f.Decode(&m); err != nil {
			return true, err
		}
		if m.Signal < 1 || m.Signal > maxSignal {
			return true, nil
		}
		s.do(func(ctx context.Context) {
			_, _ = s.c.d.cfg.Service.SignalJob(ctx, s.c.sandbox, s.job, strconv.Itoa(int(m.Signal)), 0) // the command may have ended
		})
		return true, nil
	}
	return false, nil
}

// do queues a function to be run once the command runs, and waits while the queue is full.
func (s *execSession) do(what func(ctx context.Context)) {
	select {
	case s.control <- what:
	case <-s.ctx.Done():
	}
}

// kill kills a command whose client is gone. If the sandbox is not running, the command has
// ended or is paused with it, and a signal would resume the sandbox.
func (d *Door) kill(ctx context.Context, id, job string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	s, err := d.cfg.Service.Get(ctx, id)
	if err == nil && s.State == sandbox.StateRunning {
		_, err = d.cfg.Service.SignalJob(ctx, id, job, "KILL", 0)
	}
	if err != nil {
		d.cfg.Log.DebugContext(ctx, "kill a command whose client is gone", "sandbox", id, "job", job, "error", err)
	}
}

// failure returns why a command did not run, in the product's terms.
func failure(err error) wire.ExecFailed {
	text := sandbox.MessageOf(err)
	f := wire.ExecFailed{Kind: failOther, Message: text}
	switch sandbox.ReasonOf(err) {
	case sandbox.ReasonProgramNotFound:
		f.Kind = failNotFound
		return f
	case sandbox.ReasonProgramNotExecutable:
		f.Kind = failNotExecutable
		return f
	}
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "user"):
		f.Kind = failUser
	case strings.Contains(lower, "working directory"):
		f.Kind = failDir
	case strings.Contains(lower, "out of memory"):
		f.Kind = failMemory
	case sandbox.CodeOf(err) == sandbox.CodeForbidden:
		f.Kind = failPermission
	case sandbox.CodeOf(err) == sandbox.CodeInvalid || sandbox.CodeOf(err) == sandbox.CodeTooLarge:
		f.Kind = failArgs
	}
	return f
}
