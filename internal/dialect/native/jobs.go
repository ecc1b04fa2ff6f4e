package native

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const maxWaitMS = 45_000

// jobView is a job in a result.
type jobView struct {
	JobID       string           `json:"job_id"`
	Command     string           `json:"command"`
	Language    sandbox.Language `json:"language,omitempty"`
	State       sandbox.JobState `json:"state"`
	ExitCode    *int             `json:"exit_code,omitempty"`
	Signal      string           `json:"signal,omitempty"`
	EndCause    sandbox.EndCause `json:"end_cause,omitempty"`
	StartedAt   time.Time        `json:"started_at"`
	EndedAt     *time.Time       `json:"ended_at,omitempty"`
	StdoutBytes int64            `json:"stdout_bytes"`
	StderrBytes int64            `json:"stderr_bytes"`
}

func jobProps() []prop {
	return []prop{
		req("job_id", text("")),
		req("command", text("The command, shortened.")),
		opt("language", text("Of a job that runs code.")),
		req("state", oneOf("", string(sandbox.JobRunning), string(sandbox.JobExited))),
		opt("exit_code", &jsonschema.Schema{Type: "integer", Description: "Set when it has exited."}),
		opt("signal", text("")),
		opt("end_cause", oneOf("", string(sandbox.EndTimeout), string(sandbox.EndOutOfMemory), string(sandbox.EndSignal), string(sandbox.EndProcessLimit))),
		req("started_at", moment("")),
		opt("ended_at", moment("")),
		req("stdout_bytes", count("Bytes written in all.")),
		req("stderr_bytes", count("Bytes written in all.")),
	}
}

func viewJob(j *sandbox.Job) jobView {
	v := jobView{
		JobID: j.ID, Command: shorten(j.Command), Language: j.Language, State: j.State, Signal: j.Signal, EndCause: j.EndCause,
		StartedAt: j.StartedAt, EndedAt: j.EndedAt, StdoutBytes: j.StdoutBytes, StderrBytes: j.StderrBytes,
	}
	if j.State == sandbox.JobExited {
		v.ExitCode = &j.ExitCode
	}
	return v
}

// shorten shows the start of a command in one line.
func shorten(command []string) string {
	const limit = 200
	var b strings.Builder
	for i, arg := range command {
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.Len()+len(arg) > limit {
			b.WriteString(clip.Text(arg, max(0, limit-b.Len())))
			break
		}
		b.WriteString(arg)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

func (v jobView) line() string {
	s := fmt.Sprintf("%s %s", v.JobID, v.State)
	if v.ExitCode != nil {
		s += fmt.Sprintf(" exit_code=%d", *v.ExitCode)
	}
	if v.EndCause != "" {
		s += " end_cause=" + string(v.EndCause)
	}
	return fmt.Sprintf("%s stdout=%dB stderr=%dB: %s", s, v.StdoutBytes, v.StderrBytes, oneLine(v.Command))
}

type jobListArgs struct {
	Sandbox string           `json:"sandbox"`
	State   sandbox.JobState `json:"state"`
	Limit   int              `json:"limit"`
}

type jobListResult struct {
	Jobs  []jobView `json:"jobs"`
	Total int       `json:"total"`
}

func jobList() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:        "job_list",
		Title:       "List jobs",
		Description: "List the commands that run or ran in a sandbox, newest first.",
		Annotations: annotations("List jobs", true, false, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("state", oneOf("Only jobs in this state.", string(sandbox.JobRunning), string(sandbox.JobExited))),
			opt("limit", with(integer("Most jobs to return.", 1, 100), 50)),
		),
		OutputSchema: output(
			req("jobs", array("", object("", jobProps()...), 0, 0)),
			req("total", count("How many there are, returned or not.")),
		),
	}, func(ctx context.Context, c *dialect.Call, in jobListArgs) (*mcp.CallToolResult, error) {
		list, err := sandbox.All(ctx, sandbox.Of(in.Sandbox, c.Service.ListJobs))
		if err != nil {
			return nil, err
		}
		out := jobListResult{Jobs: []jobView{}}
		var b strings.Builder
		for i := len(list) - 1; i >= 0; i-- {
			if in.State != "" && list[i].State != in.State {
				continue
			}
			out.Total++
			if len(out.Jobs) < in.Limit {
				v := viewJob(&list[i])
				out.Jobs = append(out.Jobs, v)
				b.WriteString(v.line() + "\n")
			}
		}
		if out.Total == 0 {
			b.WriteString("No jobs.")
		} else if out.Total > len(out.Jobs) {
			fmt.Fprintf(&b, "%d older jobs are not shown.\n", out.Total-len(out.Jobs))
		}
		return dialect.Text(b.String(), out), nil
	})
}

type jobGetArgs struct {
	Sandbox      string `json:"sandbox"`
	JobID        string `json:"job_id"`
	WaitMS       int64  `json:"wait_ms"`
	StdoutOffset int64  `json:"stdout_offset"`
	StderrOffset int64  `json:"stderr_offset"`
}

type jobGetResult struct {
	jobView
	Stdout           string `json:"stdout"`
	Stderr           string `json:"stderr"`
	StdoutOffset     int64  `json:"stdout_offset"`
	StderrOffset     int64  `json:"stderr_offset"`
	StdoutNextOffset int64  `json:"stdout_next_offset"`
	StderrNextOffset int64  `json:"stderr_next_offset"`
	Truncated        bool   `json:"truncated"`
	Binary           bool   `json:"binary,omitempty"`
	Hint             string `json:"hint,omitempty"`
}

func jobArg() prop {
	return req("job_id", bounded("Id of the job, from sandbox_exec or job_list.", 1, 128))
}

const maxOffset = 1 << 53

func jobGet() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:  "job_get",
		Title: "Follow a job",
		Description: "Return a job's state and up to 32 KiB each of its stdout and stderr from the given offsets on. " +
			"With wait_ms it waits that long for the job to exit. To read on, call again with stdout_next_offset and stderr_next_offset as the offsets.",
		Annotations: annotations("Follow a job", true, false, true, false),
		InputSchema: input(
			sandboxArg(), jobArg(),
			opt("wait_ms", with(integer("Wait up to this many milliseconds for the job to exit.", 0, maxWaitMS), 0)),
			opt("stdout_offset", with(integer("Position in stdout, in bytes.", 0, maxOffset), 0)),
			opt("stderr_offset", with(integer("Position in stderr, in bytes.", 0, maxOffset), 0)),
		),
		OutputSchema: output(concat(jobProps(), []prop{
			req("stdout", text("")),
			req("stderr", text("")),
			req("stdout_offset", count("Where stdout begins: later than asked for when bytes in between were not kept.")),
			req("stderr_offset", count("")),
			req("stdout_next_offset", count("Give it as stdout_offset to read on.")),
			req("stderr_next_offset", count("")),
			req("truncated", boolean("There is more output; read on from the next offsets.")),
			opt("binary", boolean("Some output is not text; runs of such bytes are shown as U+FFFD.")),
			opt("hint", text("What to do next.")),
		})...),
	}, runJobGet)
}

func runJobGet(ctx context.Context, c *dialect.Call, in jobGetArgs) (*mcp.CallToolResult, error) {
	job, err := waitJob(ctx, c, in.Sandbox, in.JobID, in.WaitMS)
	if err != nil {
		return nil, err
	}
	stdout, err := readStream(ctx, c, in, sandbox.Stdout, in.StdoutOffset)
	if err != nil {
		return nil, err
	}
	stderr, err := readStream(ctx, c, in, sandbox.Stderr, in.StderrOffset)
	if err != nil {
		return nil, err
	}
	res := jobGetResult{
		jobView: viewJob(job), Stdout: stdout.text, Stderr: stderr.text,
		StdoutOffset: stdout.offset, StderrOffset: stderr.offset, StdoutNextOffset: stdout.next, StderrNextOffset: stderr.next,
		Truncated: stdout.more || stderr.more, Binary: stdout.binary || stderr.binary,
	}
	res.StdoutBytes, res.StderrBytes = max(res.StdoutBytes, stdout.total), max(res.StderrBytes, stderr.total)
	switch {
	case res.Truncated:
		res.Hint = fmt.Sprintf("there is more output; call again with stdout_offset %d and stderr_offset %d", res.StdoutNextOffset, res.StderrNextOffset)
	case job.State == sandbox.JobRunning:
		res.Hint = fmt.Sprintf("it still runs; call again with wait_ms, stdout_offset %d and stderr_offset %d", res.StdoutNextOffset, res.StderrNextOffset)
	default:
		res.Hint = endHint(job)
	}
	return dialect.Text(res.text(), res), nil
}

func (r jobGetResult) text() string {
	var b strings.Builder
	b.WriteString(r.line() + "\n")
	place := func(from, to, total int64) string {
		if from == 0 && to == total {
			return ""
		}
		return fmt.Sprintf(", shown from %d to %d", from, to)
	}
	section(&b, "stdout", r.Stdout, r.StdoutBytes, place(r.StdoutOffset, r.StdoutNextOffset, r.StdoutBytes))
	section(&b, "stderr", r.Stderr, r.StderrBytes, place(r.StderrOffset, r.StderrNextOffset, r.StderrBytes))
	if r.Hint != "" {
		fmt.Fprintf(&b, "hint: %s\n", r.Hint)
	}
	return b.String()
}

// waitJob returns a job, after waiting for its exit if waitMS is positive.
func waitJob(ctx context.Context, c *dialect.Call, sb, id string, waitMS int64) (*sandbox.Job, error) {
	job, err := c.Service.GetJob(ctx, sb, id)
	if err != nil || job.State == sandbox.JobExited || waitMS == 0 {
		return job, err
	}
	c.Status("waiting for the job to exit")
	// Only the exit matters here, so the stream starts where the output ends.
	return c.Service.Attach(ctx, sb, id, sandbox.AttachRequest{
		StdoutOffset: job.StdoutBytes, StderrOffset: job.StderrBytes, DetachMS: waitMS,
	}, func(sandbox.JobEvent) error { return nil })
}

// slice is a readable piece of a stream.
type slice struct {
	text         string
	offset, next int64
	total        int64
	more, binary bool
}

func readStream(ctx context.Context, c *dialect.Call, in jobGetArgs, stream sandbox.Stream, offset int64) (slice, error) {
	out, err := c.Service.ReadOutput(ctx, in.Sandbox, in.JobID, sandbox.OutputRequest{Stream: stream, Offset: offset, Limit: maxStreamBytes})
	if err != nil {
		return slice{}, err
	}
	return cutSlice(out, offset), nil
}

// cutSlice turns output into text. It ends with a whole character while more
// may follow, so that the next slice starts with one.
func cutSlice(out *sandbox.Output, asked int64) slice {
	data, offset := out.Data, out.Offset
	if offset > asked {
		rest := clip.TrimStart(data)
		offset += int64(len(data) - len(rest))
		data = rest
	}
	end := offset + int64(len(data))
	if end < out.TotalBytes || out.Running {
		if whole := clip.TrimEnd(data); len(whole) > 0 || len(data) < utf8.UTFMax {
			end -= int64(len(data) - len(whole))
			data = whole
		}
	}
	s := slice{offset: offset, next: end, total: out.TotalBytes, more: end < out.TotalBytes && len(data) > 0}
	s.text, s.binary = clean(data)
	return s
}

type jobStopArgs struct {
	Sandbox     string `json:"sandbox"`
	JobID       string `json:"job_id"`
	Signal      string `json:"signal"`
	KillAfterMS int64  `json:"kill_after_ms"`
}

func jobStop() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:        "job_stop",
		Title:       "Stop a job",
		Description: "Send a signal to a job and all its processes, and kill them if they have not ended after kill_after_ms. Returns the job when it has ended. Stopping an ended job is not an error.",
		Annotations: annotations("Stop a job", false, true, true, false),
		InputSchema: input(
			sandboxArg(), jobArg(),
			opt("signal", with(oneOf("Signal to send.", "TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"), "TERM")),
			opt("kill_after_ms", with(integer("Kill the job this many milliseconds later if it still runs; 0 is never.", 0, 30_000), 5000)),
		),
		OutputSchema: output(jobProps()...),
	}, func(ctx context.Context, c *dialect.Call, in jobStopArgs) (*mcp.CallToolResult, error) {
		job, err := c.Service.GetJob(ctx, in.Sandbox, in.JobID)
		if err != nil {
			return nil, err
		}
		if job.State == sandbox.JobRunning {
			if job, err = stop(ctx, c, in); err != nil {
				return nil, err
			}
		}
		v := viewJob(job)
		return dialect.Text(v.line(), v), nil
	})
}

func stop(ctx context.Context, c *dialect.Call, in jobStopArgs) (*sandbox.Job, error) {
	job, err := c.Service.SignalJob(ctx, in.Sandbox, in.JobID, in.Signal, in.KillAfterMS)
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning || sandbox.CodeOf(err) == sandbox.CodeConflict {
		return c.Service.GetJob(ctx, in.Sandbox, in.JobID) // it ended just before
	}
	if err != nil || job.State == sandbox.JobExited {
		return job, err
	}
	wait := int64(1000)
	if in.KillAfterMS > 0 {
		wait += in.KillAfterMS
	}
	return waitJob(ctx, c, in.Sandbox, in.JobID, wait)
}
