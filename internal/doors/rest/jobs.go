package rest

import (
	"context"
	"encoding/base64"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// ExecResult is a command's result as one value, with the first MiB of each stream.
type ExecResult struct {
	Job    sandbox.Job `json:"job"`
	Stdout string      `json:"stdout"`
	Stderr string      `json:"stderr"`
	// The rest of a truncated stream can be read from the job's kept output.
	StdoutTruncated bool `json:"stdout_truncated" doc:"There is more output; read it at .../jobs/{job}/output."`
	StderrTruncated bool `json:"stderr_truncated"`
	// Encoding is that of Stdout and Stderr.
	Encoding string `json:"encoding" enum:"utf-8,base64" doc:"base64 if one of the streams is not UTF-8."`
}

func (h *handlers) registerExec(a huma.API) {
	o := answers[ExecResult](a, describeRoute(operation.Exec.Info), contentJSON)
	huma.Register(a, answers[operation.JobLine](a, o, contentLines), func(_ context.Context, in *operation.SandboxBody[sandbox.ExecRequest]) (*huma.StreamResponse, error) {
		return stream[operation.JobLine](h, func(ctx context.Context, out *lines) error {
			if !out.wanted {
				return h.execWhole(ctx, in, out)
			}
			return operation.JobLines(func(l operation.JobLine) error { return out.send(l) }, func(sink sandbox.JobSink) (*sandbox.Job, error) {
				return h.svc.Exec(ctx, in.Sandbox, in.Body, sink)
			})
		}), nil
	})
}

// execWhole answers with one value when the command has ended.
func (h *handlers) execWhole(ctx context.Context, in *operation.SandboxBody[sandbox.ExecRequest], out *lines) error {
	var stdout, stderr collected
	job, err := h.svc.Exec(ctx, in.Sandbox, in.Body, func(ev sandbox.JobEvent) error {
		switch ev.Stream {
		case sandbox.Stdout:
			stdout.add(ev)
		case sandbox.Stderr:
			stderr.add(ev)
		}
		return nil
	})
	if err != nil {
		return err
	}
	result := ExecResult{Job: *job, Encoding: "utf-8", StdoutTruncated: stdout.truncated, StderrTruncated: stderr.truncated}
	outText, outOK := stdout.text()
	errText, errOK := stderr.text()
	if outOK && errOK {
		result.Stdout, result.Stderr = outText, errText
	} else {
		result.Encoding = "base64"
		result.Stdout = base64.StdEncoding.EncodeToString(stdout.data)
		result.Stderr = base64.StdEncoding.EncodeToString(stderr.data)
	}
	out.answer(result)
	return nil
}

// collected is the beginning of an output stream, without gaps.
type collected struct {
	data      []byte
	truncated bool
}

func (c *collected) add(ev sandbox.JobEvent) {
	if c.truncated {
		return
	}
	room := sandbox.MaxOutputRead - len(c.data)
	if ev.Offset != int64(len(c.data)) || len(ev.Data) > room {
		c.truncated = true
	}
	if ev.Offset == int64(len(c.data)) {
		c.data = append(c.data, ev.Data[:min(room, len(ev.Data))]...)
	}
}

// text returns the data as text, if it is UTF-8. It leaves out a character that is cut
// off at the end.
func (c *collected) text() (string, bool) {
	data := c.data
	if c.truncated {
		data = clip.TrimEnd(data)
	}
	if !utf8.Valid(data) {
		return "", false
	}
	return string(data), true
}
