package client

import (
	"bytes"
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Exec implements [sandbox.Jobs]. For a command that needs input while it runs, see
// [Client.OpenTerminal].
func (c *Client) Exec(ctx context.Context, name string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	return c.streamJob(ctx, operation.Exec.Info, execBodyOf(&req), sink, name)
}

// execBody is a request with the webhook's secret in plain text; a Webhook itself
// encodes it as "[redacted]".
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
	return c.streamJob(ctx, operation.Attach.Info, req, sink, name, job)
}

// GetJob implements [sandbox.Jobs].
func (c *Client) GetJob(ctx context.Context, name, job string) (*sandbox.Job, error) {
	return get(ctx, c, operation.GetJob, nil, name, job)
}

// ListJobs implements [sandbox.Jobs].
func (c *Client) ListJobs(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Job], error) {
	return get(ctx, c, operation.ListJobs, page, name)
}

// ReadOutput implements [sandbox.Jobs].
func (c *Client) ReadOutput(ctx context.Context, name, job string, req sandbox.OutputRequest) (*sandbox.Output, error) {
	return get(ctx, c, operation.ReadOutput, req, name, job)
}

// WriteInput implements [sandbox.Jobs].
func (c *Client) WriteInput(ctx context.Context, name, job string, data []byte, closeAfter bool) error {
	return do(ctx, c, operation.WriteStdin, content{operation.StdinQuery{Close: closeAfter}, bytes.NewReader(data)}, name, job)
}

// ResizeTerminal implements [sandbox.Jobs].
func (c *Client) ResizeTerminal(ctx context.Context, name, job string, size sandbox.TerminalSize) error {
	return do(ctx, c, operation.ResizeTerminal, size, name, job)
}

// SignalJob implements [sandbox.Jobs].
func (c *Client) SignalJob(ctx context.Context, name, job, signal string, killAfterMS int64) (*sandbox.Job, error) {
	return get(ctx, c, operation.SignalJob, members{"signal": signal, "kill_after_ms": killAfterMS}, name, job)
}
