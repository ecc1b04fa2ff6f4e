package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// JobPath is the part of a path that names a job of a sandbox.
type JobPath struct {
	SandboxPath
	Job string `path:"job" doc:"A job's id."`
}

// ExecResult is a command's result in one piece: the first MiB of each stream.
type ExecResult struct {
	Job    sandbox.Job `json:"job"`
	Stdout string      `json:"stdout"`
	Stderr string      `json:"stderr"`
	// Truncated streams are read on from the job's kept output.
	StdoutTruncated bool `json:"stdout_truncated" doc:"More was written; read it at .../jobs/{job}/output."`
	StderrTruncated bool `json:"stderr_truncated"`
	// Encoding is that of Stdout and Stderr.
	Encoding string `json:"encoding" enum:"utf-8,base64" doc:"base64 when one of the streams is not UTF-8."`
}

type execInput struct {
	SandboxPath
	Accept string `header:"Accept" hidden:"true"`
	Body   sandbox.ExecRequest
}

type attachInput struct {
	JobPath
	StdoutOffset int64 `query:"stdout_offset" doc:"The byte of standard output to begin at; absent is the first."`
	StderrOffset int64 `query:"stderr_offset" doc:"The byte of standard error to begin at; absent is the first."`
	DetachMS     int64 `query:"detach_ms" doc:"Stop streaming after this time; absent is when the job exits."`
}

type outputInput struct {
	JobPath
	Stream string `query:"stream" doc:"stdout or stderr."`
	Offset int64  `query:"offset" doc:"The byte to begin at; absent is the first."`
	Limit  int64  `query:"limit" doc:"At most 1 MiB, which is also the default."`
}

type signalInput struct {
	JobPath
	Body struct {
		Signal      string `json:"signal" doc:"A name such as TERM, or a number."`
		KillAfterMS int64  `json:"kill_after_ms,omitempty" doc:"Send KILL this much later if the job still runs."`
	}
}

type stdinInput struct {
	JobPath
	Close   bool `query:"close" doc:"End standard input after these bytes."`
	RawBody []byte
}

type resizeInput struct {
	JobPath
	Body sandbox.TerminalSize
}

func (h *handlers) registerJobs(a huma.API) {
	exec := mayRepeat(op(http.MethodPost, "/v1/sandboxes/{sandbox}/exec", "exec", "jobs", "Run a command"), repeatBackground)
	exec.Description = "With `Accept: application/x-ndjson` the answer is a stream of events, output in base64, that ends with a line " +
		"marked `final` or with an `error`. Otherwise it is one value when the command has ended. A client that disconnects kills the " +
		"command, unless it runs in the background."
	exec.MaxBodyBytes = maxExecBody
	huma.Register(a, streams[JobLine](a, answers[ExecResult](a, exec, contentJSON)), h.exec)

	huma.Register(a, op(http.MethodGet, "/v1/sandboxes/{sandbox}/jobs", "list-jobs", "jobs", "List jobs, oldest first"),
		func(ctx context.Context, in *sandboxPage) (*Reply[sandbox.List[sandbox.Job]], error) {
			v, err := h.svc.ListJobs(ctx, in.Sandbox, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/sandboxes/{sandbox}/jobs/{job}", "get-job", "jobs", "Get a job"),
		func(ctx context.Context, in *JobPath) (*Reply[sandbox.Job], error) {
			v, err := h.svc.GetJob(ctx, in.Sandbox, in.Job)
			return reply(ctx, h, v, err)
		})
	attach := op(http.MethodGet, "/v1/sandboxes/{sandbox}/jobs/{job}/attach", "attach-job", "jobs", "Stream a job's kept and live output")
	attach = says(attach, "The answer is a stream of events, output in base64, that ends with a line marked `final` when the job has ended, or with an `error`. A client that disconnects leaves the job alone.")
	huma.Register(a, streams[JobLine](a, attach), h.attach)
	huma.Register(a, op(http.MethodGet, "/v1/sandboxes/{sandbox}/jobs/{job}/output", "read-output", "jobs", "Read a range of a job's kept output"),
		func(ctx context.Context, in *outputInput) (*Reply[sandbox.Output], error) {
			req := sandbox.OutputRequest{Stream: sandbox.Stream(in.Stream), Offset: in.Offset, Limit: in.Limit}
			v, err := h.svc.ReadOutput(ctx, in.Sandbox, in.Job, req)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, "/v1/sandboxes/{sandbox}/jobs/{job}/signal", "signal-job", "jobs", "Send a signal to a job's process group"),
		func(ctx context.Context, in *signalInput) (*Reply[sandbox.Job], error) {
			v, err := h.svc.SignalJob(ctx, in.Sandbox, in.Job, in.Body.Signal, in.Body.KillAfterMS)
			return reply(ctx, h, v, err)
		})
	stdin := op(http.MethodPost, "/v1/sandboxes/{sandbox}/jobs/{job}/stdin", "write-stdin", "jobs", "Write to a job's standard input")
	stdin.MaxBodyBytes = sandbox.MaxStdinBytes + 1
	stdin.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{}}
	huma.Register(a, stdin, h.writeStdin)
	huma.Register(a, op(http.MethodPost, "/v1/sandboxes/{sandbox}/jobs/{job}/resize", "resize-terminal", "jobs", "Change the size of a job's terminal"),
		func(ctx context.Context, in *resizeInput) (*struct{}, error) {
			return done(ctx, h, h.svc.ResizeTerminal(ctx, in.Sandbox, in.Job, in.Body))
		})
	h.registerTerminal(a)
}

// done answers a verb that returns nothing.
func done(ctx context.Context, h *handlers, err error) (*struct{}, error) {
	if err != nil {
		return nil, h.fail(ctx, err)
	}
	return nil, nil
}

func (h *handlers) exec(_ context.Context, in *execInput) (*huma.StreamResponse, error) {
	if !wantsLines(in.Accept) {
		return h.stream(func(ctx context.Context, out *lines) error { return h.execWhole(ctx, in, out) }, failedJob), nil
	}
	return h.stream(func(ctx context.Context, out *lines) error {
		job, err := h.svc.Exec(ctx, in.Sandbox, in.Body, out.job)
		if err != nil {
			return err
		}
		return out.send(JobLine{JobEvent: sandbox.JobEvent{Job: job}, Final: true})
	}, failedJob), nil
}

func (h *handlers) attach(_ context.Context, in *attachInput) (*huma.StreamResponse, error) {
	req := sandbox.AttachRequest{StdoutOffset: in.StdoutOffset, StderrOffset: in.StderrOffset, DetachMS: in.DetachMS}
	return h.stream(func(ctx context.Context, out *lines) error {
		job, err := h.svc.Attach(ctx, in.Sandbox, in.Job, req, out.job)
		if err != nil {
			return err
		}
		return out.send(JobLine{JobEvent: sandbox.JobEvent{Job: job}, Final: true})
	}, failedJob), nil
}

// job is a [sandbox.JobSink].
func (l *lines) job(ev sandbox.JobEvent) error { return l.send(JobLine{JobEvent: ev}) }

func (h *handlers) writeStdin(ctx context.Context, in *stdinInput) (*struct{}, error) {
	return done(ctx, h, h.svc.WriteInput(ctx, in.Sandbox, in.Job, in.RawBody, in.Close))
}

// execWhole answers with one value when the command has ended.
func (h *handlers) execWhole(ctx context.Context, in *execInput, out *lines) error {
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
	out.w.Header().Set("Content-Type", contentJSON)
	if err := encodeJSON(out.w, result); err != nil {
		panic(http.ErrAbortHandler)
	}
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

// text returns the data as text, if it is UTF-8. Of a character that the end
// cut in two, the half that is there is left out.
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
