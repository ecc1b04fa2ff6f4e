package native

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// handover is when a command that still runs becomes a job, unless the server
// says otherwise: clients give up a call after 60 s.
const handover = 45 * time.Second

type execArgs struct {
	Sandbox    string            `json:"sandbox"`
	Command    []string          `json:"command"`
	Shell      string            `json:"shell"`
	WorkDir    string            `json:"workdir"`
	Env        map[string]string `json:"env"`
	User       string            `json:"user"`
	TimeoutMS  *int64            `json:"timeout_ms"`
	Stdin      string            `json:"stdin"`
	Background bool              `json:"background"`
	Webhook    *webhookArgs      `json:"webhook"`
}

func sandboxExec() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:  "sandbox_exec",
		Title: "Run a command",
		Description: "Run a command in a sandbox and return its exit code, stdout and stderr (32 KiB of each: first and last half). " +
			"Give either shell (a line for bash or sh) or command (a program and its arguments, no shell). " +
			"After 45 s a command goes on as a job: state is then running; poll job_get with the job_id. " +
			"For servers and long work set background.",
		Annotations: annotations("Run a command", false, true, false, true),
		InputSchema: input(
			sandboxArg(),
			opt("command", array("Program and arguments, such as [\"python3\", \"main.py\"].", bounded("", 0, 128<<10), 1, 4096)),
			opt("shell", bounded("Shell line, such as \"ls | wc -l\".", 1, 128<<10)),
			opt("workdir", bounded("Directory to run in; the sandbox's if left out.", 0, sandbox.MaxPathBytes)),
			opt("env", envSchema("Environment, on top of the sandbox's.")),
			opt("user", bounded("Run as this user: a name or uid[:gid].", 0, 64)),
			opt("timeout_ms", integer(fmt.Sprintf("Kill the command after this many milliseconds; %d if left out, none for a background command.",
				sandbox.HandedOverTimeout.Milliseconds()), 1, sandbox.HandedOverTimeout.Milliseconds())),
			opt("stdin", bounded("What the command reads from standard input.", 0, sandbox.MaxStdinBytes)),
			opt("background", with(boolean("Return at once with a job_id and leave the command running."), false)),
			opt("webhook", webhookSchema()),
		),
		OutputSchema: execOutput(),
	}, runExec)
}

func execOutput() *jsonschema.Schema {
	return output(
		req("state", oneOf("exited, or running when it goes on as a job.", string(sandbox.JobExited), string(sandbox.JobRunning))),
		req("job_id", text("For job_get and job_stop.")),
		opt("exit_code", &jsonschema.Schema{Type: "integer", Description: "Set when it has exited; 128 plus the signal's number if a signal ended it."}),
		opt("signal", text("The signal that ended it.")),
		opt("end_cause", oneOf("What ended it other than itself.", string(sandbox.EndTimeout), string(sandbox.EndOutOfMemory), string(sandbox.EndSignal), string(sandbox.EndProcessLimit))),
		req("duration_ms", count("")),
		req("stdout", text("")),
		req("stderr", text("")),
		req("stdout_bytes", count("Bytes written in all.")),
		req("stderr_bytes", count("Bytes written in all.")),
		req("truncated", boolean("Part of stdout or stderr is left out of this result.")),
		opt("binary", boolean("Some output is not text; runs of such bytes are shown as U+FFFD.")),
		opt("hint", text("What to do next.")),
	)
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

func runExec(ctx context.Context, c *dialect.Call, in execArgs) (*mcp.CallToolResult, error) {
	if (in.Shell == "") == (len(in.Command) == 0) {
		return nil, invalid("sandbox_exec: give either \"shell\" (a line) or \"command\" (a program and its arguments)")
	}
	if len(in.Stdin) > sandbox.MaxStdinBytes {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "stdin is over 8 MiB; write it to a file with file_write and read that")
	}
	r := sandbox.ExecRequest{
		Command: in.Command, Shell: in.Shell, Env: in.Env, WorkDir: in.WorkDir, User: in.User,
		Stdin: []byte(in.Stdin), Background: in.Background, HandoverMS: cmp.Or(c.Handover, handover).Milliseconds(),
		Webhook: in.Webhook.webhook(),
	}
	if in.TimeoutMS != nil {
		r.TimeoutMS = *in.TimeoutMS
	}
	if in.Background {
		r.HandoverMS = 0
	}
	var out collector
	out.stdout, out.stderr = newCapture(maxStreamBytes), newCapture(maxStreamBytes)
	c.Status("running")
	out.progress = func(total int64) { c.Status(fmt.Sprintf("running; %d bytes of output", total)) }
	tell := newOutputTeller(ctx, c.Output)
	job, err := c.Service.Exec(ctx, in.Sandbox, r, func(e sandbox.JobEvent) error {
		tell.write(e.Stream, e.Data)
		return out.take(e)
	})
	tell.end()
	if err != nil {
		return nil, asLine(in.Command, err)
	}
	return execDone(job, time.Duration(r.TimeoutMS)*time.Millisecond, r.Background, &out), nil
}

// asLine explains the error of a command that is a whole line.
func asLine(command []string, err error) error {
	if sandbox.CodeOf(err) != sandbox.CodeNotFound || len(command) != 1 || !strings.Contains(command[0], " ") || !strings.HasPrefix(sandbox.MessageOf(err), "command not found") {
		return err
	}
	return sandbox.Wrap(sandbox.CodeNotFound, err, fmt.Sprintf("no program is called %q; give its arguments as further entries of \"command\", or the line as \"shell\"", clip.Text(command[0], 64)))
}

// collector takes the output of a command.
type collector struct {
	mu             sync.Mutex
	stdout, stderr *capture // guarded by mu
	progress       func(total int64)
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
	o.progress(o.stdout.total + o.stderr.total)
	return nil
}

// endHint says what to do after an end that a command did not choose, or "".
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
// has named, or 0.
func execDone(job *sandbox.Job, timeout time.Duration, background bool, out *collector) *mcp.CallToolResult {
	out.mu.Lock()
	defer out.mu.Unlock()
	note := func(omitted int64) string { return fmt.Sprintf("\n[… %d bytes left out …]\n", omitted) }
	stdout, stderr := out.stdout.result(note), out.stderr.result(note)
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
			hints = append(hints, fmt.Sprintf("it is killed %s after its start; set background for work that takes longer", seconds(sandbox.HandedOverTimeout.Milliseconds())))
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
	return dialect.Text(res.text(), res)
}

// text is the result as a model reads it best.
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
	if r.Hint != "" {
		fmt.Fprintf(&b, "hint: %s\n", r.Hint)
	}
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

func seconds(ms int64) string {
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}
