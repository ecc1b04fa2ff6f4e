package miosa

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// patience is how long a call waits for a command without a timeout before the command
	// continues in the background: clients give up a call after 30 s.
	patience = 25 * time.Second
	// exitTimeout is the exit code of a command that timed out.
	exitTimeout = 124
	// killTime bounds the killing of a command whose caller is gone.
	killTime = 10 * time.Second
)

type execArgs struct {
	Sandbox   string            `json:"sandbox_id"`
	Command   string            `json:"command"`
	Dir       string            `json:"cwd"`
	Env       map[string]string `json:"env"`
	Timeout   float64           `json:"timeout"`
	TimeoutMS float64           `json:"timeout_ms"`
	Name      string            `json:"name"`
}

// timeout returns the requested timeout in milliseconds; 0 is none.
func (in *execArgs) timeout(most int64) (int64, error) {
	ms := in.Timeout * 1000
	if ms == 0 {
		ms = math.Ceil(in.TimeoutMS)
	}
	if ms > float64(most*1000) {
		return 0, dialect.Invalid("timeout must be at most %d seconds; run what takes longer with sandbox_exec_background", most)
	}
	return int64(ms), nil
}

func (in *execArgs) request() sandbox.ExecRequest {
	return sandbox.ExecRequest{Shell: in.Command, WorkDir: in.Dir, Env: in.Env}
}

// executed is the result of a command.
type executed struct {
	Events     []event `json:"events,omitempty"`
	Stdout     string  `json:"stdout"`
	Stderr     string  `json:"stderr"`
	ExitCode   *int    `json:"exit_code"`
	DurationMS int64   `json:"duration_ms"`
	TimedOut   bool    `json:"timed_out,omitempty"`
	// Reason says what ended the command, if it did not end by itself.
	Reason string `json:"reason,omitempty"`
	// Truncated is set if part of the output is left out; the numbers are the full sizes.
	Truncated   bool  `json:"truncated,omitempty"`
	StdoutBytes int64 `json:"stdout_bytes,omitempty"`
	StderrBytes int64 `json:"stderr_bytes,omitempty"`
	// Status, JobID and Hint are set for a command that is still running.
	Status string `json:"status,omitempty"`
	JobID  string `json:"job_id,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// collector collects a command's output.
type collector struct {
	mu      sync.Mutex
	streams map[sandbox.Stream]*capture // guarded by mu
	lines   *lines                      // nil if no events are requested; guarded by mu
}

func newCollector(l *lines) *collector {
	return &collector{streams: map[sandbox.Stream]*capture{sandbox.Stdout: {}, sandbox.Stderr: {}}, lines: l}
}

func (o *collector) take(e sandbox.JobEvent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.streams[e.Stream]; s != nil {
		s.write(e.Offset, e.Data)
		if o.lines != nil {
			o.lines.write(e.Stream, e.Data)
		}
	}
	return nil
}

func exec(ctx context.Context, c *call, in execArgs) (*mcp.CallToolResult, error) {
	return c.run(ctx, &in, newCollector(nil))
}

func execStream(ctx context.Context, c *call, in execArgs) (*mcp.CallToolResult, error) {
	t := newTeller(ctx, c.Tell)
	defer t.end()
	return c.run(ctx, &in, newCollector(&lines{tell: t.tell}))
}

// run runs a command to its end or its timeout. Without a timeout, it waits as long as a
// client does.
func (c *call) run(ctx context.Context, in *execArgs, out *collector) (*mcp.CallToolResult, error) {
	ms, err := in.timeout(300)
	if err != nil {
		return nil, err
	}
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.Status("running")
	var job *sandbox.Job
	if ms > 0 {
		req := in.request()
		req.TimeoutMS = ms
		job, err = c.Service.Exec(ctx, id, req, out.take)
	} else {
		job, err = c.follow(ctx, id, in, out)
	}
	if err != nil {
		return nil, c.about(ctx, id, inTheirWords(err))
	}
	return result(c.executed(job, in, out))
}

// follow starts a command without a timeout, and waits for it as long as a client does. If
// the call ends before that, the command is killed.
func (c *call) follow(ctx context.Context, id string, in *execArgs, out *collector) (*sandbox.Job, error) {
	req := in.request()
	req.Background, req.TimeoutMS = true, -1
	job, err := c.Service.Exec(ctx, id, req, nil)
	if err != nil {
		return nil, err
	}
	wait := min(cmp.Or(c.DetachAfter, c.timeout(), patience), sandbox.MaxExecTimeout)
	last, err := c.Service.Attach(ctx, job.SandboxID, job.ID, sandbox.AttachRequest{DetachAfterMS: wait.Milliseconds()}, out.take)
	if err == nil {
		return last, nil
	}
	if ctx.Err() != nil || sandbox.CodeOf(err) == sandbox.CodeCancelled {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		_, killErr := c.Service.SignalJob(kill, job.SandboxID, job.ID, "KILL", 0)
		return nil, errors.Join(err, killErr)
	}
	return nil, err
}

// inTheirWords replaces the names of a command's arguments in an error by those that
// clients know.
func inTheirWords(err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err
	}
	if rest, ours := strings.CutPrefix(e.Message, "shell "); ours {
		return sandbox.Wrap(e.Code, err, "command "+rest)
	}
	return err
}

func (c *call) executed(job *sandbox.Job, in *execArgs, out *collector) executed {
	out.mu.Lock()
	defer out.mu.Unlock()
	res := executed{DurationMS: max(0, job.Duration().Milliseconds()), Reason: reasonOf(job)}
	var cut [2]bool
	res.Stdout, cut[0] = out.streams[sandbox.Stdout].text()
	res.Stderr, cut[1] = out.streams[sandbox.Stderr].text()
	if res.Truncated = cut[0] || cut[1]; res.Truncated {
		res.StdoutBytes, res.StderrBytes = job.StdoutBytes, job.StderrBytes
	}
	if job.State == sandbox.JobExited {
		res.ExitCode, res.TimedOut = new(exitCode(job)), job.EndCause == sandbox.EndTimeout
	} else {
		c.session.started(job.ID, jobRef{sandbox: job.SandboxID, name: in.Name, command: in.Command, started: dialect.Stamp(job.StartedAt)})
		res.Status, res.JobID = "running", job.ID
		res.Hint = "the command goes on in the background; follow it with sandbox_job_status, and give a timeout to have one ended"
	}
	if out.lines != nil {
		res.Events = out.lines.events()
		if res.ExitCode != nil {
			res.Events = append(res.Events, event{Type: "exit", ExitCode: res.ExitCode})
		}
	}
	return res
}

func exitCode(job *sandbox.Job) int {
	if job.EndCause == sandbox.EndTimeout {
		return exitTimeout
	}
	return job.ExitCode
}

// reasonOf says what ended a job that did not end by itself.
func reasonOf(job *sandbox.Job) string {
	switch job.EndCause {
	case sandbox.EndTimeout:
		return "it was killed at its timeout"
	case sandbox.EndOutOfMemory:
		return "it ran out of memory; create a sandbox of a larger size"
	case sandbox.EndProcessLimit:
		return "it was killed because it started ever more processes"
	case sandbox.EndSignal:
		return "it was ended by signal " + job.Signal
	}
	return ""
}

// job is a background command.
type job struct {
	ID        string `json:"job_id"`
	Sandbox   string `json:"sandbox_id"`
	Name      string `json:"name,omitempty"`
	Status    string `json:"status"`
	ExitCode  *int   `json:"exit_code"`
	Command   string `json:"command"`
	StartedAt string `json:"started_at"`
}

func execBackground(ctx context.Context, c *call, in execArgs) (*mcp.CallToolResult, error) {
	ms, err := in.timeout(int64(sandbox.MaxLifetime / time.Second))
	if err != nil {
		return nil, err
	}
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	req := in.request()
	req.Background, req.TimeoutMS = true, cmp.Or(ms, -1)
	j, err := c.Service.Exec(ctx, id, req, nil)
	if err != nil {
		return nil, c.about(ctx, id, inTheirWords(err))
	}
	ref := jobRef{sandbox: j.SandboxID, name: in.Name, command: in.Command, started: dialect.Stamp(j.StartedAt)}
	c.session.started(j.ID, ref)
	return result(jobOf(j, ref))
}

func jobOf(j *sandbox.Job, ref jobRef) job {
	out := job{
		ID: j.ID, Sandbox: j.SandboxID, Name: ref.name, Status: jobState(j),
		Command: cmp.Or(ref.command, commandOf(j.Command)), StartedAt: dialect.Stamp(j.StartedAt),
	}
	if j.State == sandbox.JobExited {
		out.ExitCode = new(exitCode(j))
	}
	return out
}

// commandOf returns the command line of a job that another client, or an earlier session,
// started: the line given to a shell, or the words.
func commandOf(words []string) string {
	if n := len(words); n >= 3 && words[n-2] == "-c" {
		return words[n-1]
	}
	return strings.Join(words, " ")
}

// jobState returns the product's name of a job's state.
func jobState(j *sandbox.Job) string {
	switch {
	case j.State == sandbox.JobRunning:
		return "running"
	case j.EndCause == sandbox.EndSignal:
		return "canceled"
	case exitCode(j) == 0:
		return "succeeded"
	}
	return "failed"
}

type jobArgs struct {
	Job     string  `json:"job_id"`
	Sandbox string  `json:"sandbox_id"`
	Tail    float64 `json:"tail"`
}

// jobReport is a job with the end of its output.
type jobReport struct {
	job
	FinishedAt  string `json:"finished_at,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
}

// maxTail bounds the shown end of a stream, in bytes.
const maxTail = 2 * halfStream

func jobStatus(ctx context.Context, c *call, in jobArgs) (*mcp.CallToolResult, error) {
	ref, known := c.session.job(in.Job)
	id, err := c.sandbox(cmp.Or(in.Sandbox, ref.sandbox))
	if err != nil {
		return nil, err
	}
	j, err := c.Service.GetJob(ctx, id, in.Job)
	if err != nil {
		err = c.about(ctx, id, err)
		if known && id == ref.sandbox && errors.Is(err, errGone) {
			// The product's jobs end with their sandbox, and can still be queried.
			return result(jobReport{job: job{ID: in.Job, Sandbox: id, Name: ref.name, Status: "canceled", Command: ref.command, StartedAt: ref.started}, Reason: "its sandbox is gone"})
		}
		return nil, err
	}
	out := jobReport{job: jobOf(j, ref), FinishedAt: dialect.StampOf(j.EndedAt), Reason: reasonOf(j), StdoutBytes: j.StdoutBytes, StderrBytes: j.StderrBytes}
	for stream, into := range map[sandbox.Stream]*string{sandbox.Stdout: &out.Stdout, sandbox.Stderr: &out.Stderr} {
		total := map[sandbox.Stream]int64{sandbox.Stdout: j.StdoutBytes, sandbox.Stderr: j.StderrBytes}[stream]
		if total == 0 {
			continue
		}
		part, err := c.Service.ReadOutput(ctx, id, in.Job, sandbox.OutputRequest{Stream: stream, Offset: max(0, total-maxTail), Limit: maxTail})
		if err != nil {
			return nil, c.about(ctx, id, err)
		}
		*into = lastLines(part, int(in.Tail))
	}
	return result(out)
}

// lastLines returns the last n lines of an output.
func lastLines(out *sandbox.Output, n int) string {
	data := out.Data
	if out.Offset > 0 {
		data = clip.TrimStart(data)
	}
	s := text(data)
	end := strings.TrimSuffix(s, "\n")
	from := len(end)
	for range n {
		if from = strings.LastIndexByte(end[:from], '\n'); from < 0 {
			return s
		}
	}
	return s[from+1:]
}
