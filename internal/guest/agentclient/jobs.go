package agentclient

import (
	"cmp"
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

// Exec starts the job that req describes under jobID, or under an id that the agent
// chooses if that is empty, and passes its events to sink, which may be nil. It returns
// when the job has exited or was detached, or, for a background command, when it has
// started. A TimeoutMS of 0 or less is no timeout.
//
// If it fails after the start, the job continues, and Exec also returns it as last
// known. An error of sink is returned unchanged.
func (c *Client) Exec(ctx context.Context, jobID string, req *sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return c.exec(ctx, jobID, req, sink, req.Background)
}

// ExecFollowed is [Client.Exec], but also waits for the exit of a background command.
func (c *Client) ExecFollowed(ctx context.Context, jobID string, req *sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return c.exec(ctx, jobID, req, sink, false)
}

func (c *Client) exec(ctx context.Context, jobID string, req *sandbox.ExecRequest, sink sandbox.JobSink, untilStarted bool) (*sandbox.Job, error) {
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
	if untilStarted {
		limit = callTimeout
	}
	ctx, cancel := withLimit(ctx, limit)
	defer cancel()
	stream, err := c.rpc.Exec(ctx, connect.NewRequest(msg))
	if err != nil {
		return nil, mapError(ctx, err)
	}
	return c.follow(ctx, cancel, stream, &follower{jobID: jobID, sink: sink, untilStarted: untilStarted})
}

// Attach passes a job's output from the given offsets on to sink, as [Client.Exec] does.
func (c *Client) Attach(ctx context.Context, jobID string, req *sandbox.AttachRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	ctx, cancel := withLimit(ctx, shortest(req.DetachAfterMS))
	defer cancel()
	stream, err := c.rpc.Attach(ctx, connect.NewRequest(&agentv1.AttachRequest{
		JobId: jobID, StdoutOffset: req.StdoutOffset, StderrOffset: req.StderrOffset, DetachAfterMs: req.DetachAfterMS,
		MaxBytes: req.MaxBytes, LastBytes: req.LastBytes,
	}))
	if err != nil {
		return nil, mapError(ctx, err)
	}
	return c.follow(ctx, cancel, stream, &follower{
		jobID: jobID, sink: sink,
		next: [2]int64{req.StdoutOffset, req.StderrOffset},
	})
}

// shortest returns the smallest positive time and the agent's grace, or 0 if there is
// none.
func shortest(ms ...int64) time.Duration {
	ms = slices.DeleteFunc(ms, func(m int64) bool { return m <= 0 })
	if len(ms) == 0 {
		return 0
	}
	return time.Duration(slices.Min(ms))*time.Millisecond + grace
}

// withLimit ends calls to an agent that has not finished after d; 0 is no limit.
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
	next         [2]int64 // lowest offset of the next output on stdout, stderr
	job          *sandbox.Job
}

// errStarted ends the reading of a stream after the start of the job.
var errStarted = errors.New("the job has started")

// follow reads a stream to its end. cancel is that of ctx.
func (c *Client) follow(ctx context.Context, cancel context.CancelFunc, stream *connect.ServerStreamForClient[agentv1.JobEvent], f *follower) (*sandbox.Job, error) {
	err := events(ctx, cancel, stream, func(e *agentv1.JobEvent) (bool, error) {
		last, err := c.event(f, e)
		if err == nil && last && f.untilStarted {
			err = errStarted
		}
		return last, err
	})
	if err == errStarted {
		err = nil
	}
	return f.job, err
}

func (c *Client) event(f *follower, e *agentv1.JobEvent) (last bool, err error) {
	var wire *agentv1.Job
	switch ev := e.GetEvent().(type) {
	case *agentv1.JobEvent_Output:
		return false, f.output(ev.Output)
	case *agentv1.JobEvent_Started:
		if f.job != nil {
			return false, errProtocol("a job started twice")
		}
		wire, last = ev.Started, f.untilStarted
	case *agentv1.JobEvent_Exited:
		wire, last = ev.Exited, true
	case *agentv1.JobEvent_Detached:
		wire, last = ev.Detached, true
	default:
		return false, errProtocol("an unknown event of a job")
	}
	job, err := c.job(wire)
	if err != nil {
		return false, err
	}
	f.jobID = cmp.Or(f.jobID, job.ID)
	if job.ID != f.jobID {
		return false, errProtocol("an event of another job")
	}
	f.job = job
	if f.sink == nil {
		return last, nil
	}
	return last, f.sink(sandbox.JobEvent{Job: job})
}

func (f *follower) output(o *agentv1.Output) error {
	i, name, err := streamOf(o.GetStream())
	if err != nil {
		return err
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

// GetJob returns a job. It waits for the job's exit, for wait at most.
func (c *Client) GetJob(ctx context.Context, jobID string, wait time.Duration) (*sandbox.Job, error) {
	resp, err := call(ctx, callTimeout+wait, c.rpc.GetJob, &agentv1.GetJobRequest{JobId: jobID, WaitMs: wait.Milliseconds()})
	if err != nil {
		return nil, err
	}
	job, err := c.job(resp.GetJob())
	if err == nil && job.ID != jobID {
		return nil, errProtocol("a job other than the requested one")
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
	return translate(resp.GetJobs(), maxJobs, c.job)
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

// WriteInput writes to a job's standard input, and then closes it if closeAfter is set.
func (c *Client) WriteInput(ctx context.Context, jobID string, data []byte, closeAfter bool) error {
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), chunkBytes)
		piece := data[:n]
		data = data[n:]
		// A program that does not read blocks the call.
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

// The agent shortens commands to this; another program in its place may not.
const (
	maxArgs = 65
	maxArg  = 2048 + len("…")
)

// command bounds a command's arguments, which stay in the daemon for as long as others
// may ask for the job.
func command(argv []string) []string {
	short := make([]string, 0, min(len(argv), maxArgs))
	for _, arg := range argv[:min(len(argv), maxArgs)] {
		short = append(short, strings.Clone(clip.Head(arg, maxArg)))
	}
	return short
}

// job checks and translates a job.
func (c *Client) job(w *agentv1.Job) (*sandbox.Job, error) {
	if w == nil || !sandbox.ValidJobID(w.GetJobId()) {
		return nil, errProtocol("a job with an invalid id")
	}
	j := &sandbox.Job{
		ID: w.GetJobId(), SandboxID: c.sandboxID, Command: command(w.GetArgv()), User: clean(w.GetUser(), 256),
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
		return nil, errProtocol("a job in an unknown state")
	}
	ended := time.Unix(0, w.GetEndedUnixNano()).UTC()
	j.State, j.EndedAt = sandbox.JobExited, &ended
	j.ExitCode, j.Signal, j.EndCause = int(w.GetExitCode()), signalName(w.GetSignal()), endCauses[w.GetEndCause()]
	return j, nil
}
