package native

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// jobView is a job in a result.
type jobView struct {
	JobID       string           `json:"job_id"`
	Command     string           `json:"command"`
	Language    string           `json:"language,omitempty"`
	State       sandbox.JobState `json:"state"`
	ExitCode    *int             `json:"exit_code,omitempty"`
	Signal      string           `json:"signal,omitempty"`
	EndCause    sandbox.EndCause `json:"end_cause,omitempty"`
	StartedAt   time.Time        `json:"started_at"`
	EndedAt     *time.Time       `json:"ended_at,omitempty"`
	StdoutBytes int64            `json:"stdout_bytes"`
	StderrBytes int64            `json:"stderr_bytes"`
}

func viewJob(j *sandbox.Job) jobView {
	v := project[jobView](j)
	v.JobID, v.Command = j.ID, shorten(j.Command)
	if j.State == sandbox.JobExited {
		v.ExitCode = &j.ExitCode
	}
	return v
}

// shorten joins the arguments of a command, up to 200 bytes.
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
	sandboxRef
	State sandbox.JobState `json:"state,omitempty"`
	Limit int              `json:"limit,omitempty"`
}

type jobListResult struct {
	Jobs  []jobView `json:"jobs"`
	Total int       `json:"total"`
}

func listJobs(ctx context.Context, c *dialect.Call, in jobListArgs) (*reply[jobListResult], error) {
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
	return answer(b.String(), out)
}

type jobRef struct {
	sandboxRef
	JobID string `json:"job_id"`
}

type jobGetArgs struct {
	jobRef
	WaitMS       int64 `json:"wait_ms,omitempty"`
	StdoutOffset int64 `json:"stdout_offset,omitempty"`
	StderrOffset int64 `json:"stderr_offset,omitempty"`
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

func followJob(ctx context.Context, c *dialect.Call, in jobGetArgs) (*reply[jobGetResult], error) {
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
	return answer(res.text(), res)
}

func (r jobGetResult) text() string {
	var b strings.Builder
	b.WriteString(r.line() + "\n")
	span := func(from, to, total int64) string {
		if from == 0 && to == total {
			return ""
		}
		return fmt.Sprintf(", shown from %d to %d", from, to)
	}
	section(&b, "stdout", r.Stdout, r.StdoutBytes, span(r.StdoutOffset, r.StdoutNextOffset, r.StdoutBytes))
	section(&b, "stderr", r.Stderr, r.StderrBytes, span(r.StderrOffset, r.StderrNextOffset, r.StderrBytes))
	field(&b, "hint: %s\n", r.Hint)
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
		StdoutOffset: job.StdoutBytes, StderrOffset: job.StderrBytes, DetachAfterMS: waitMS,
	}, func(sandbox.JobEvent) error { return nil })
}

// slice is a piece of a stream as text.
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

// cutSlice converts output to text. While more may follow, it ends with a whole
// character, so that the next slice starts with one.
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
	jobRef
	Signal      string `json:"signal,omitempty"`
	KillAfterMS int64  `json:"kill_after_ms,omitempty"`
}

func stopJob(ctx context.Context, c *dialect.Call, in jobStopArgs) (*reply[jobView], error) {
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
	return answer(v.line(), v)
}

func stop(ctx context.Context, c *dialect.Call, in jobStopArgs) (*sandbox.Job, error) {
	job, err := c.Service.SignalJob(ctx, in.Sandbox, in.JobID, in.Signal, in.KillAfterMS)
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning || sandbox.CodeOf(err) == sandbox.CodeConflict {
		return c.Service.GetJob(ctx, in.Sandbox, in.JobID) // it ended just before
	}
	if err != nil || job.State == sandbox.JobExited {
		return job, err
	}
	return waitJob(ctx, c, in.Sandbox, in.JobID, 1000+max(0, in.KillAfterMS))
}
