package microsandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// running returns the id of a sandbox that was started. If another door has paused it, the
// next call resumes it.
func running(ctx context.Context, c *call, t *target) (string, error) {
	namespace, name, err := t.names(c)
	if err != nil {
		return "", err
	}
	if err := permit(ctx, namespace); err != nil {
		return "", err
	}
	s, err := find(ctx, c, namespace, name)
	if err != nil {
		return "", err
	}
	if s == nil || wasStopped(s) {
		return "", notStarted(namespace, name)
	}
	return s.ID, nil
}

func notStarted(namespace, name string) error {
	return internal("No portal port assigned for sandbox %s/%s: it does not run; start it with sandbox_start", namespace, name)
}

// languages maps the product's and the SDKs' names to languages.
var languages = map[string]sandbox.Language{
	"python": sandbox.Python, "py": sandbox.Python,
	"node": sandbox.JavaScript, "nodejs": sandbox.JavaScript, "javascript": sandbox.JavaScript, "js": sandbox.JavaScript,
}

func runCode(ctx context.Context, c *call, params json.RawMessage) (any, error) {
	var p codeParams
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	id, err := running(ctx, c, &p.target)
	if err != nil {
		return nil, err
	}
	code, err := required("code", p.Code)
	if err != nil {
		return nil, err
	}
	name, err := required("language", p.Language)
	if err != nil {
		return nil, err
	}
	timeout, err := p.Timeout.seconds()
	if err != nil {
		return nil, err
	}
	language, ok := languages[strings.ToLower(name)]
	if !ok {
		return nil, internal("Portal returned error status 400 Bad Request: JSON-RPC error: Unsupported language: %s", clip.Text(name, maxShown))
	}
	limit := sandbox.MaxCodeTimeout
	if timeout > 0 {
		limit = min(timeout, limit)
	}
	c.Status("running code")
	out := newLines()
	res, err := c.Service.RunCode(ctx, id, sandbox.RunCodeRequest{
		Language: language, Code: code, TimeoutMS: limit.Milliseconds(), KeepBytes: maxOutput,
	}, func(e sandbox.CodeEvent) error {
		out.add(e.Stream, e.Data)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.end()
	tellResult(out, res, timeout)
	return map[string]any{"status": "success", "language": name, "output": out.list()}, nil
}

// tellResult adds what an interpreter shows in addition to the code's output.
func tellResult(out *lines, res *sandbox.CodeResult, timeout time.Duration) {
	for _, value := range dialect.Values(res) {
		out.text(sandbox.Stdout, value)
	}
	if e := res.Error; e != nil && !res.TimedOut {
		text := e.Traceback
		if res.Language == sandbox.JavaScript {
			text = "Uncaught " + strings.TrimPrefix(text, "Uncaught ")
		}
		if e.Traceback == "" {
			text = e.Name + ": " + e.Message
		}
		out.text(sandbox.Stderr, text)
	}
	if res.TimedOut {
		if timeout == 0 || timeout > sandbox.MaxCodeTimeout {
			timeout = sandbox.MaxCodeTimeout
		}
		out.dropNote()
		out.text(sandbox.Stderr, fmt.Sprintf("Error: Execution timed out after %.0f seconds", timeout.Seconds()))
	}
	if res.Restarted && res.Reason != "" {
		out.text(sandbox.Stderr, "Error: the interpreter is a new one, variables and imports are gone: "+res.Reason)
	}
}

// attachAfter is when a running command is followed in another way, which has no time
// limit. It is shorter than the longest command that the service waits for.
const attachAfter = 8 * time.Minute

func runCommand(ctx context.Context, c *call, params json.RawMessage) (any, error) {
	var p commandParams
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	id, err := running(ctx, c, &p.target)
	if err != nil {
		return nil, err
	}
	command, err := required("command", p.Command)
	if err != nil {
		return nil, err
	}
	timeout, err := p.Timeout.seconds()
	if err != nil {
		return nil, err
	}
	if command == "" {
		return nil, spawnFailed("the command is empty")
	}
	c.Status("running a command")
	req := sandbox.ExecRequest{Command: append([]string{command}, p.Args...), TimeoutMS: -1}
	if timeout > 0 && timeout <= sandbox.MaxExecTimeout {
		req.TimeoutMS = timeout.Milliseconds()
	} else if timeout > 0 {
		// The service has no such timeout for foreground commands.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTooLong)
		defer cancel()
	}
	job, out, err := exec(ctx, c, id, req)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound && len(p.Args) == 0 && strings.ContainsAny(command, " \t\n") {
		// The guide calls them shell commands.
		req.Command = []string{"/bin/sh", "-c", command}
		job, out, err = exec(ctx, c, id, req)
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errTooLong) {
			return nil, timedOut(timeout)
		}
		if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
			err = spawnFailed(sandbox.MessageOf(err))
		}
		return nil, err
	}
	if job.EndCause == sandbox.EndTimeout {
		return nil, timedOut(timeout)
	}
	exit := job.ExitCode
	if job.Signal != "" {
		exit = 1
	}
	if job.EndCause == sandbox.EndOutOfMemory {
		out.text(sandbox.Stderr, "Killed: the sandbox is out of memory")
	}
	args := p.Args
	if args == nil {
		args = []string{}
	}
	return map[string]any{"command": command, "args": args, "exit_code": exit, "success": exit == 0, "output": out.list()}, nil
}

var errTooLong = errors.New("the command takes too long")

func timedOut(after time.Duration) error {
	return sandbox.Errorf(sandbox.CodeTimeout, "Command execution timed out after %.0f seconds", after.Seconds())
}

func spawnFailed(why string) error {
	return internal("Command execution failed: Failed to spawn command: %s", why)
}

// exec runs a command to its end, however long that takes. It kills the command if the
// caller is gone.
func exec(ctx context.Context, c *call, id string, req sandbox.ExecRequest) (*sandbox.Job, *lines, error) {
	out := newLines()
	next := map[sandbox.Stream]int64{}
	sink := func(e sandbox.JobEvent) error {
		if gap := e.Offset - next[e.Stream]; gap > 0 && len(e.Data) > 0 {
			out.missing(e.Stream, gap)
		}
		next[e.Stream] = max(next[e.Stream], e.Offset+int64(len(e.Data)))
		out.add(e.Stream, e.Data)
		return nil
	}
	req.DetachAfterMS, req.KeepBytes = attachAfter.Milliseconds(), maxOutput
	if c.DetachAfter > 0 {
		req.DetachAfterMS = c.DetachAfter.Milliseconds()
	}
	job, err := c.Service.Exec(ctx, id, req, sink)
	for err == nil && job.State == sandbox.JobRunning {
		var followed *sandbox.Job
		followed, err = c.Service.Attach(ctx, id, job.ID, sandbox.AttachRequest{StdoutOffset: next[sandbox.Stdout], StderrOffset: next[sandbox.Stderr]}, sink)
		if err == nil {
			job = followed
		}
		if err != nil || ctx.Err() != nil {
			kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_, _ = c.Service.SignalJob(kill, id, job.ID, "KILL", 0) // the caller is gone
			return nil, nil, cmp.Or(ctx.Err(), err)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	out.end()
	return job, out, nil
}
