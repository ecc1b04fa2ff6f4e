package hopx

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Output receives a piece of output of code or a command. An error ends the run.
type Output func(stream sandbox.Stream, data []byte) error

// StreamCode runs the code that a client's message describes, passes its output on as it
// arrives, and returns the messages to send at the end. Use [Describe] for an error.
func StreamCode(ctx context.Context, c *dialect.Call, id string, message json.RawMessage, out Output) ([]any, error) {
	in := struct {
		restCode
		Type string `json:"type"`
	}{restCode: restCode{codeArgs: codeArgs{Language: "python", Timeout: restTimeout, WorkingDir: home}}}
	if err := readMessage(id, message, &in, &in.target); err != nil {
		return nil, err
	}
	args := in.normal()
	m, err := args.open(ctx, c)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	done, res, err := m.executeTo(ctx, "/execute/stream", args, func(e sandbox.CodeEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		return out(e.Stream, e.Data)
	})
	if err != nil {
		return nil, err
	}
	done = m.shown(ctx, done, res, args, began)
	if more := strings.TrimPrefix(done.Stderr, res.Stderr); more != "" { // added by the door, not written by the code
		if err := out(sandbox.Stderr, []byte(more)); err != nil {
			return nil, err
		}
	}
	return []any{struct {
		Type          string  `json:"type"`
		Success       bool    `json:"success"`
		ExitCode      int     `json:"exit_code"`
		ExecutionTime float64 `json:"execution_time"`
		Timestamp     string  `json:"timestamp"`
		flat
	}{"result", done.Success, done.ExitCode, done.ExecutionTime, done.Timestamp, done.flat}, completed(done.Success)}, nil
}

// StreamCommand is [StreamCode] for a command.
func StreamCommand(ctx context.Context, c *dialect.Call, id string, message json.RawMessage, out Output) ([]any, error) {
	in := struct {
		restCommand
		Type string `json:"type"`
	}{restCommand: restCommand{commandArgs: commandArgs{Timeout: commandTimeout, WorkingDir: home}}}
	if err := readMessage(id, message, &in, &in.target); err != nil {
		return nil, err
	}
	args := in.normal()
	m, err := args.open(ctx, c)
	if err == nil {
		err = args.check(maxTimeout, "or use run_command_background")
	}
	if err != nil {
		return nil, failed(true, "/commands/stream", err)
	}
	req := sandbox.ExecRequest{Command: args.argv(), Env: args.Env, WorkDir: args.WorkingDir, TimeoutMS: args.Timeout * 1000, KeepBytes: 1}
	var job *sandbox.Job
	err = m.atHome(ctx, args.WorkingDir, func() (err error) {
		job, err = m.Service.Exec(ctx, m.id, req, func(e sandbox.JobEvent) error {
			if len(e.Data) == 0 {
				return nil
			}
			return out(e.Stream, e.Data)
		})
		return err
	})
	if err != nil {
		return nil, m.missing(ctx, "/commands/stream", "DIRECTORY_NOT_FOUND", err)
	}
	code := job.ExitCode
	if job.EndCause == sandbox.EndTimeout {
		code = exitTimeout
		if err := out(sandbox.Stderr, fmt.Appendf(nil, "Command timed out after %d seconds\n", args.Timeout)); err != nil {
			return nil, err
		}
	}
	return []any{object(
		pair{"type", "result"}, pair{"exit_code", code}, pair{"execution_time", seconds(job.Duration().Milliseconds())}, pair{"timestamp", dialect.Stamp(time.Now())},
	), completed(code == 0)}, nil
}

// StreamFailed returns the messages that report an error.
func StreamFailed(err error, requestID string) []any {
	_, body := Describe(err, true, requestID)
	out := []any{body, completed(false)}
	if all, ok := body.(pairs); ok {
		out[0] = append(object(pair{"type", "error"}), all...)
	}
	return out
}

func completed(success bool) any {
	return object(pair{"type", "complete"}, pair{"success", success}, pair{"timestamp", dialect.Stamp(time.Now())})
}

// readMessage decodes a client's message about the sandbox of its connection.
func readMessage(id string, message json.RawMessage, in any, at *target) error {
	a := &apiCall{body: message, exact: true}
	err := a.read(in)
	if err == nil {
		err = at.aim(id)
	}
	if err != nil {
		return failed(true, "", err)
	}
	return nil
}

// Open checks that a sandbox is running, and returns the directory in which programs start,
// which it makes if missing. Use [Describe] for an error.
func Open(ctx context.Context, c *dialect.Call, id string) (dir string, err error) {
	m, err := (&target{SandboxID: id}).open(ctx, c)
	if err != nil {
		return "", err
	}
	err = m.atHome(ctx, home, func() error {
		_, err := m.Service.StatFile(ctx, m.id, home)
		return err
	})
	if err != nil {
		return "", m.missing(ctx, "/", "DIRECTORY_NOT_FOUND", err)
	}
	return home, nil
}

// Watched returns the path that a client's message asks to watch. Use [Describe] for an
// error.
func Watched(ctx context.Context, c *dialect.Call, id string, message json.RawMessage) (string, error) {
	in := struct {
		pathArgs
		Action string `json:"action"`
	}{}
	in.Path = home
	if err := readMessage(id, message, &in, &in.target); err != nil {
		return "", err
	}
	if in.Action != "watch" {
		return "", failed(true, "/files/watch", dialect.Invalid("action is not known; use watch"))
	}
	m, p, at, err := in.file(ctx, c, "/files/watch")
	if err != nil {
		return "", err
	}
	if p == home {
		if _, err := Open(ctx, c, id); err != nil {
			return "", err
		}
	}
	if _, err := m.Service.StatFile(ctx, m.id, p); err != nil {
		return "", m.failedFile(ctx, at, in.Path, err)
	}
	return path.Clean(p), nil
}
