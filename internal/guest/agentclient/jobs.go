package agentclient

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// Exec starts the job that req describes under the given id, or one that the
// agent picks for "", and passes its
// events to sink, which may be nil. It returns when the job has exited or was
// handed over; for a background command, when it has started. The request's
// TimeoutMS is taken as it is: 0 or less is none.
//
// When it fails after the start, it returns the job as last known too; the job
// then goes on. An error of sink is returned as it is.
func (c *Client) Exec(ctx context.Context, jobID string, req *sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	msg := &agentv1.ExecRequest{
		JobId: jobID, Argv: req.Command, Shell: req.Shell, Env: maps.Clone(req.Env), Workdir: req.WorkDir, User: req.User,
		TimeoutMs: max(0, req.TimeoutMS), Stdin: req.Stdin, OpenStdin: req.OpenStdin, KeepBytes: req.KeepBytes, DetachAfterMs: req.DetachAfterMS,
		Tag: req.Tag,
	}
	if req.Code != nil {
		msg.Language, msg.Code = string(req.Code.Language), req.Code.Code
	}
	if t := req.Terminal; t != nil {
		msg.Terminal = &agentv1.TerminalSize{Cols: uint32(t.Cols), Rows: uint32(t.Rows)}
	}
	limit := shortest(msg.GetTimeoutMs(), req.DetachAfterMS)
	if req.Background {
		limit = callTimeout
	}
	ctx, cancel := withLimit(ctx, limit)
	defer cancel()
	stream, err := c.rpc.Exec(ctx, connect.NewRequest(msg))
	if err != nil {
		return nil, mapError(ctx, err)
	}
	return c.follow(ctx, cancel, stream, &follower{jobID: jobID, sink: sink, untilStarted: req.Background})
}

// Attach passes a job's output to sink, as [Client.Exec] does, from the given
// offsets on.
func (c *Client) Attach(ctx context.Context, jobID string, req *sandbox.AttachRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	ctx, cancel := withLimit(ctx, shortest(req.DetachAfterMS))
	defer cancel()
	stream, err := c.rpc.Attach(ctx, connect.NewRequest(&agentv1.AttachRequest{
		JobId: jobID, StdoutOffset: req.StdoutOffset, StderrOffset: req.StderrOffset, DetachAfterMs: req.DetachAfterMS,
	}))
	if err != nil {
		return nil, mapError(ctx, err)
	}
	return c.follow(ctx, cancel, stream, &follower{
		jobID: jobID, sink: sink,
		next: [2]int64{req.StdoutOffset, req.StderrOffset},
	})
}

// shortest returns the smallest positive time, with the agent's grace, or 0.
func shortest(ms ...int64) time.Duration {
	var d time.Duration
	for _, m := range ms {
		if m > 0 && (d == 0 || time.Duration(m)*time.Millisecond+grace < d) {
			d = time.Duration(m)*time.Millisecond + grace
		}
	}
	return d
}

// withLimit gives up on a silent agent after d; 0 is never.
func withLimit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, errSilent)
}

// follower checks one stream of job events and passes it on.
type follower struct {
	jobID        string
	sink         sandbox.JobSink
	untilStarted bool
	next         [2]int64 // least offset of the next output on stdout, stderr
	job          *sandbox.Job
	done         bool
}

// follow reads a stream to its end. cancel is that of ctx.
func (c *Client) follow(ctx context.Context, cancel context.CancelFunc, stream *connect.ServerStreamForClient[agentv1.JobEvent], f *follower) (*sandbox.Job, error) {
	defer func() { _ = stream.Close() }() // what it could say was said by Err
	for stream.Receive() {
		if f.done {
			return f.job, errProtocol("an event after the last one")
		}
		if err := c.event(f, stream.Msg()); err != nil {
			return f.job, err
		}
		if f.done && f.untilStarted {
			return f.job, nil
		}
		if f.done {
			// The stream's own end is next; read, it leaves the connection tidy.
			defer time.AfterFunc(tidy, cancel).Stop()
		}
	}
	if f.done {
		return f.job, nil
	}
	if err := stream.Err(); err != nil {
		return f.job, mapError(ctx, err)
	}
	return f.job, errProtocol("a job's stream ended without its end")
}

func (c *Client) event(f *follower, e *agentv1.JobEvent) error {
	var last bool
	var wire *agentv1.Job
	switch ev := e.GetEvent().(type) {
	case *agentv1.JobEvent_Output:
		return f.output(ev.Output)
	case *agentv1.JobEvent_Started:
		if f.job != nil {
			return errProtocol("a job started twice")
		}
		wire, last = ev.Started, f.untilStarted
	case *agentv1.JobEvent_Exited:
		wire, last = ev.Exited, true
	case *agentv1.JobEvent_Detached:
		wire, last = ev.Detached, true
	default:
		return errProtocol("a job event of no kind")
	}
	job, err := c.job(wire)
	if err != nil {
		return err
	}
	if f.jobID == "" {
		f.jobID = job.ID
	}
	if job.ID != f.jobID {
		return errProtocol("an event of another job")
	}
	f.job, f.done = job, last
	if f.sink == nil {
		return nil
	}
	return f.sink(sandbox.JobEvent{Job: job})
}

func (f *follower) output(o *agentv1.Output) error {
	i, name := 0, sandbox.Stdout
	switch o.GetStream() {
	case agentv1.Stream_STREAM_STDOUT:
	case agentv1.Stream_STREAM_STDERR:
		i, name = 1, sandbox.Stderr
	default:
		return errProtocol("output of no stream")
	}
	if f.job == nil || o.GetOffset() < f.next[i] || o.GetOffset() > 1<<62 {
		return errProtocol("output out of order")
	}
	f.next[i] = o.GetOffset() + int64(len(o.GetData()))
	if f.sink == nil || len(o.GetData()) == 0 {
		return nil
	}
	return f.sink(sandbox.JobEvent{Stream: name, Offset: o.GetOffset(), Data: o.GetData()})
}

// GetJob returns a job, after waiting for its exit for at most wait.
func (c *Client) GetJob(ctx context.Context, jobID string, wait time.Duration) (*sandbox.Job, error) {
	resp, err := call(ctx, callTimeout+wait, c.rpc.GetJob, &agentv1.GetJobRequest{JobId: jobID, WaitMs: wait.Milliseconds()})
	if err != nil {
		return nil, err
	}
	job, err := c.job(resp.GetJob())
	if err == nil && job.ID != jobID {
		return nil, errProtocol("another job than asked for")
	}
	return job, err
}

// maxJobs bounds a list of jobs: the agent keeps 256 that have ended.
const maxJobs = 8192

// ListJobs returns all jobs the agent knows, oldest first.
func (c *Client) ListJobs(ctx context.Context) ([]sandbox.Job, error) {
	resp, err := call(ctx, callTimeout, c.rpc.ListJobs, &agentv1.ListJobsRequest{})
	if err != nil {
		return nil, err
	}
	if len(resp.GetJobs()) > maxJobs {
		return nil, errProtocol("too many jobs")
	}
	jobs := make([]sandbox.Job, 0, len(resp.GetJobs()))
	for _, w := range resp.GetJobs() {
		job, err := c.job(w)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, *job)
	}
	return jobs, nil
}

// ReadOutput returns a range of a job's kept output. The request's Limit is
// positive.
func (c *Client) ReadOutput(ctx context.Context, jobID string, req *sandbox.OutputRequest) (*sandbox.Output, error) {
	stream := agentv1.Stream_STREAM_STDOUT
	if req.Stream == sandbox.Stderr {
		stream = agentv1.Stream_STREAM_STDERR
	}
	resp, err := call(ctx, callTimeout, c.rpc.ReadOutput, &agentv1.ReadOutputRequest{JobId: jobID, Stream: stream, Offset: req.Offset, Limit: req.Limit})
	if err != nil {
		return nil, err
	}
	if resp.GetOffset() < 0 || int64(len(resp.GetData())) > req.Limit || resp.GetTotalBytes() < 0 {
		return nil, errProtocol("output out of range")
	}
	return &sandbox.Output{Offset: resp.GetOffset(), Data: resp.GetData(), TotalBytes: resp.GetTotalBytes(), Running: resp.GetRunning()}, nil
}

// WriteInput writes to a job's standard input, and closes it then if told.
func (c *Client) WriteInput(ctx context.Context, jobID string, data []byte, closeAfter bool) error {
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), chunkBytes)
		piece := data[:n]
		data = data[n:]
		// A program that does not read holds the call up; only ctx ends it.
		_, err := call(ctx, fileTimeout, c.rpc.WriteInput, &agentv1.WriteInputRequest{JobId: jobID, Data: piece, Close: closeAfter && len(data) == 0})
		if err != nil {
			return err
		}
	}
	return nil
}

// ResizeTerminal changes the size of a job's terminal.
func (c *Client) ResizeTerminal(ctx context.Context, jobID string, size sandbox.TerminalSize) error {
	_, err := call(ctx, callTimeout, c.rpc.ResizeTerminal, &agentv1.ResizeTerminalRequest{
		JobId: jobID, Size: &agentv1.TerminalSize{Cols: uint32(size.Cols), Rows: uint32(size.Rows)},
	})
	return err
}

// Signal sends a signal to a job's process group, and KILL after killAfterMS
// if that is positive.
func (c *Client) Signal(ctx context.Context, jobID string, sig syscall.Signal, killAfterMS int64) error {
	_, err := call(ctx, callTimeout, c.rpc.Signal, &agentv1.SignalRequest{JobId: jobID, Signal: int32(sig), KillAfterMs: killAfterMS})
	return err
}

// ParseSignal reads a signal's name ("TERM" or "SIGTERM") or number.
func ParseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n >= 1 && n <= 64 {
			return syscall.Signal(n), nil
		}
		return 0, errors.New("signal numbers are 1 to 64")
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, errors.New("use a name such as TERM, INT, KILL or HUP, or a number")
}

func signalName(n int32) string {
	if n <= 0 || n > 64 {
		return ""
	}
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(n))
}

var endCauses = map[agentv1.EndCause]sandbox.EndCause{
	agentv1.EndCause_END_CAUSE_TIMEOUT:       sandbox.EndTimeout,
	agentv1.EndCause_END_CAUSE_OUT_OF_MEMORY: sandbox.EndOutOfMemory,
	agentv1.EndCause_END_CAUSE_SIGNAL:        sandbox.EndSignal,
	agentv1.EndCause_END_CAUSE_PROCESS_LIMIT: sandbox.EndProcessLimit,
}

// job checks and translates a job.
func (c *Client) job(w *agentv1.Job) (*sandbox.Job, error) {
	if w == nil || !sandbox.ValidJobID(w.GetJobId()) {
		return nil, errProtocol("a job without a proper id")
	}
	j := &sandbox.Job{
		ID: w.GetJobId(), SandboxID: c.sandboxID, Command: slices.Clone(w.GetArgv()), User: clean(w.GetUser(), 256),
		WorkDir: clip.Valid(w.GetWorkdir(), maxPath), PID: int(max(0, w.GetPid())), State: sandbox.JobRunning,
		StartedAt:   time.Unix(0, w.GetStartedUnixNano()).UTC(),
		StdoutBytes: max(0, w.GetStdoutBytes()), StderrBytes: max(0, w.GetStderrBytes()), Terminal: w.GetTerminal(),
		Tag: clip.Valid(w.GetTag(), sandbox.MaxTagBytes),
	}
	if l := sandbox.Language(w.GetLanguage()); slices.Contains(sandbox.Languages(), l) {
		j.Language = l
	}
	switch w.GetState() {
	case agentv1.JobState_JOB_STATE_RUNNING:
		return j, nil
	case agentv1.JobState_JOB_STATE_EXITED:
	default:
		return nil, errProtocol("a job in no state")
	}
	ended := time.Unix(0, w.GetEndedUnixNano()).UTC()
	j.State, j.EndedAt = sandbox.JobExited, &ended
	j.ExitCode, j.Signal, j.EndCause = int(w.GetExitCode()), signalName(w.GetSignal()), endCauses[w.GetEndCause()]
	return j, nil
}
