package client

import (
	"bytes"
	"context"
	"net/http"
	"strconv"

	"github.com/cove-sh/cove/sandbox"
)

// Exec implements [sandbox.Jobs]. For a command that is talked to, see
// [Client.OpenTerminal].
func (c *Client) Exec(ctx context.Context, name string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return c.streamJob(ctx, http.MethodPost, c.path("/v1/sandboxes/%/exec", name), execBodyOf(&req), sink)
}

// execBody is a request whose webhook has its secret, which is not shown
// otherwise.
type execBody struct {
	*sandbox.ExecRequest
	Webhook *webhookBody `json:"webhook,omitempty"`
}

type webhookBody struct {
	*sandbox.Webhook
	Secret string `json:"secret,omitempty"`
}

func execBodyOf(req *sandbox.ExecRequest) execBody {
	body := execBody{ExecRequest: req}
	if req.Webhook != nil {
		body.Webhook = &webhookBody{Webhook: req.Webhook, Secret: req.Webhook.Secret.Reveal()}
	}
	return body
}

// Attach implements [sandbox.Jobs].
func (c *Client) Attach(ctx context.Context, name, job string, req sandbox.AttachRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	e := c.path("/v1/sandboxes/%/jobs/%/attach", name, job).
		with("stdout_offset", number(req.StdoutOffset)).
		with("stderr_offset", number(req.StderrOffset)).
		with("detach_ms", number(req.DetachMS))
	return c.streamJob(ctx, http.MethodGet, e, nil, sink)
}

// GetJob implements [sandbox.Jobs].
func (c *Client) GetJob(ctx context.Context, name, job string) (*sandbox.Job, error) {
	return get[sandbox.Job](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/jobs/%", name, job), nil)
}

// ListJobs implements [sandbox.Jobs].
func (c *Client) ListJobs(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return get[sandbox.List[sandbox.Job]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/jobs", name).page(page), nil)
}

// ReadOutput implements [sandbox.Jobs].
func (c *Client) ReadOutput(ctx context.Context, name, job string, req sandbox.OutputRequest) (*sandbox.Output, error) {
	e := c.path("/v1/sandboxes/%/jobs/%/output", name, job).
		must("stream", string(req.Stream)).
		with("offset", number(req.Offset)).
		with("limit", number(req.Limit))
	return get[sandbox.Output](ctx, c, http.MethodGet, e, nil)
}

// WriteInput implements [sandbox.Jobs].
func (c *Client) WriteInput(ctx context.Context, name, job string, data []byte, closeAfter bool) error {
	e := c.path("/v1/sandboxes/%/jobs/%/stdin", name, job).with("close", flag(closeAfter))
	return c.call(ctx, http.MethodPost, e, bytes.NewReader(data), nil)
}

// ResizeTerminal implements [sandbox.Jobs].
func (c *Client) ResizeTerminal(ctx context.Context, name, job string, size sandbox.TerminalSize) error {
	return c.call(ctx, http.MethodPost, c.path("/v1/sandboxes/%/jobs/%/resize", name, job), size, nil)
}

// SignalJob implements [sandbox.Jobs].
func (c *Client) SignalJob(ctx context.Context, name, job, signal string, killAfterMS int64) (*sandbox.Job, error) {
	body := struct {
		Signal      string `json:"signal"`
		KillAfterMS int64  `json:"kill_after_ms,omitempty"`
	}{signal, killAfterMS}
	return get[sandbox.Job](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/jobs/%/signal", name, job), body)
}

// number writes n for a query, in which 0 is left out.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// flag writes b for a query, in which false is left out.
func flag(b bool) string {
	if !b {
		return ""
	}
	return "true"
}
