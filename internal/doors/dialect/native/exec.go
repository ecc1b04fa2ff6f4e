package native

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// detachAfter is when a running command is detached, unless the server is configured
// otherwise: clients give up a call after 60 s.
const detachAfter = 45 * time.Second

type execArgs struct {
	sandboxRef
	sandbox.ExecRequest
	Stdin string `json:"stdin,omitempty"` // text, not base64
}

type execResult struct {
	State       sandbox.JobState `json:"state"`
	JobID       string           `json:"job_id"`
	ExitCode    *int             `json:"exit_code,omitempty"`
	Signal      string           `json:"signal,omitempty"`
	EndCause    sandbox.EndCause `json:"end_cause,omitempty"`
	DurationMS  int64            `json:"duration_ms"`
	Stdout      string           `json:"stdout"`
	Stderr      string           `json:"stderr"`
	StdoutBytes int64            `json:"stdout_bytes"`
	StderrBytes int64            `json:"stderr_bytes"`
	Truncated   bool             `json:"truncated"`
	Binary      bool             `json:"binary,omitempty"`
	Hint        string           `json:"hint,omitempty"`
}

func runCommand(ctx context.Context, c *dialect.Call, in execArgs) (*reply[execResult], error) {
	r := in.ExecRequest
	if (r.Shell == "") == (len(r.Command) == 0) {
		return nil, invalid("sandbox_exec: give either \"shell\" (a line) or \"command\" (a program and its arguments)")
	}
	if len(in.Stdin) > sandbox.MaxStdinBytes {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "stdin is over 8 MiB; write it to a file with file_write and read that")
	}
	r.Stdin = []byte(in.Stdin)
	if !r.Background {
		r.DetachAfterMS = cmp.Or(c.DetachAfter, detachAfter).Milliseconds()
	}
	out := collector{stdout: newCapture(maxStreamBytes), stderr: newCapture(maxStreamBytes), next: make(map[sandbox.Stream]int64)}
	c.Status("running")
	out.progress = func(total int64) { c.Status(fmt.Sprintf("running; %d bytes of output", total)) }
	streamer := newOutputStreamer(ctx, c.Output)
	sink := func(e sandbox.JobEvent) error {
		streamer.write(e.Stream, e.Data)
		return out.take(e)
	}
	job, err := c.Service.Exec(ctx, in.Sandbox, r, sink)
	if err == nil && !r.Background {
		job, err = waitFurther(ctx, c, in.Sandbox, job, time.Duration(r.DetachAfterMS)*time.Millisecond, &out, sink)
	}
	streamer.end()
	if err != nil {
		return nil, explainLine(in.Command, err)
	}
	return execDone(job, time.Duration(r.TimeoutMS)*time.Millisecond, r.Background, &out)
}

// waitFurther waits for a command that was detached while its caller was asked, so that
// no request waited: each waits as long as a call does.
func waitFurther(ctx context.Context, c *dialect.Call, sb string, job *sandbox.Job, limit time.Duration, out *collector, sink sandbox.JobSink) (*sandbox.Job, error) {
	for job.State == sandbox.JobRunning && c.WaitingSince != nil {
		since, err := c.WaitingSince(ctx)
		if err != nil {
			return nil, err
		}
		left := limit - time.Since(since)
		if left < time.Millisecond {
			break
		}
		stdout, stderr := out.offsets()
		job, err = c.Service.Attach(ctx, sb, job.ID, sandbox.AttachRequest{StdoutOffset: stdout, StderrOffset: stderr, DetachAfterMS: left.Milliseconds()}, sink)
		if err != nil {
			return nil, err
		}
	}
	return job, nil
}

// explainLine explains the error of a command that holds a whole shell line.
func explainLine(command []string, err error) error {
	if sandbox.CodeOf(err) != sandbox.CodeNotFound || len(command) != 1 || !strings.Contains(command[0], " ") || !strings.HasPrefix(sandbox.MessageOf(err), "command not found") {
		return err
	}
	return sandbox.Wrap(sandbox.CodeNotFound, err, fmt.Sprintf("no program is called %q; give its arguments as further entries of \"command\", or the line as \"shell\"", clip.Text(command[0], 64)))
}

// collector takes the output of a command.
type collector struct {
	mu             sync.Mutex
	stdout, stderr *capture                 // guarded by mu
	next           map[sandbox.Stream]int64 // the offset after what was taken; guarded by mu
	progress       func(total int64)
}

// offsets are those of the bytes that come next.
func (o *collector) offsets() (stdout, stderr int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next[sandbox.Stdout], o.next[sandbox.Stderr]
}

func (o *collector) take(e sandbox.JobEvent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Stream {
	case sandbox.Stdout:
		o.stdout.write(e.Data)
	case sandbox.Stderr:
		o.stderr.write(e.Data)
	default:
		return nil
	}
	o.next[e.Stream] = e.Offset + int64(len(e.Data))
	o.progress(o.stdout.total + o.stderr.total)
	return nil
}

// endHint says what to do about a command that was killed, or "".
func endHint(job *sandbox.Job) string {
	switch job.EndCause {
	case sandbox.EndTimeout:
		return "it was killed at its timeout; allow more with timeout_ms or set background"
	case sandbox.EndOutOfMemory:
		return "it ran out of memory; give the sandbox more memory_mib"
	case sandbox.EndProcessLimit:
		return "it was killed because it kept the sandbox at its limit of processes by starting ever more; start fewer at once"
	}
	return ""
}

// execDone describes the job of a command. timeout is the limit that the caller
// has set, or 0.
func execDone(job *sandbox.Job, timeout time.Duration, background bool, out *collector) (*reply[execResult], error) {
	out.mu.Lock()
	defer out.mu.Unlock()
	stdout, stderr := out.stdout.result(omission), out.stderr.result(omission)
	res := execResult{
		State: job.State, JobID: job.ID, Signal: job.Signal, EndCause: job.EndCause,
		DurationMS: max(0, job.Duration().Milliseconds()),
		Stdout:     stdout.text, Stderr: stderr.text, StdoutBytes: stdout.bytes, StderrBytes: stderr.bytes,
		Truncated: stdout.truncated || stderr.truncated, Binary: stdout.binary || stderr.binary,
	}
	var hints []string
	switch {
	case job.State == sandbox.JobRunning:
		hints = append(hints, fmt.Sprintf("it goes on as job %s; call job_get with that job_id and wait_ms to follow it, job_stop to end it", job.ID))
		if timeout > 0 {
			hints = append(hints, fmt.Sprintf("it is killed %s after its start, its timeout_ms", seconds(timeout.Milliseconds())))
		} else if !background {
			hints = append(hints, fmt.Sprintf("it is killed %s after its start; set background for work that takes longer", seconds(sandbox.DetachedTimeout.Milliseconds())))
		}
	case endHint(job) != "":
		hints = append(hints, endHint(job))
	}
	if res.Truncated {
		hints = append(hints, fmt.Sprintf("read what is left out with job_get, job_id %s and an offset", job.ID))
	}
	if job.State == sandbox.JobExited {
		res.ExitCode = &job.ExitCode
	}
	res.Hint = strings.Join(hints, "; ")
	return answer(res.text(), res)
}

func (r execResult) text() string {
	var b strings.Builder
	switch {
	case r.State == sandbox.JobRunning:
		fmt.Fprintf(&b, "still running after %s, job_id %s\n", seconds(r.DurationMS), r.JobID)
	case r.Signal != "":
		fmt.Fprintf(&b, "exit code %d (signal %s) after %s\n", *r.ExitCode, r.Signal, seconds(r.DurationMS))
	default:
		fmt.Fprintf(&b, "exit code %d after %s\n", *r.ExitCode, seconds(r.DurationMS))
	}
	section(&b, "stdout", r.Stdout, r.StdoutBytes, "")
	section(&b, "stderr", r.Stderr, r.StderrBytes, "")
	field(&b, "hint: %s\n", r.Hint)
	return b.String()
}

// section writes a stream under its name, or nothing if it is empty.
func section(b *strings.Builder, name, text string, total int64, extra string) {
	if text == "" && extra == "" {
		return
	}
	fmt.Fprintf(b, "%s (%d bytes%s):\n%s", name, total, extra, text)
	if !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
}

// omission marks where bytes of a stream are left out.
func omission(n int64) string { return fmt.Sprintf("\n[… %d bytes left out …]\n", n) }

// field writes a value in a format, or nothing if the value is empty.
func field(b *strings.Builder, format, value string) {
	if value != "" {
		fmt.Fprintf(b, format, value)
	}
}

func seconds(ms int64) string {
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}
