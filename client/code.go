package client

import (
	"cmp"
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// runCode runs code and passes its events to sink, including the result.
func runCode[In any](ctx context.Context, c *Client, op operation.Op[In, sandbox.CodeResult], req any, sink sandbox.CodeSink, names ...string) (*sandbox.CodeResult, error) {
	if sink == nil {
		return get(ctx, c, op, req, names...)
	}
	last, err := stream(ctx, c, op.Info, req, func(l operation.CodeLine) error {
		return sink(sandbox.CodeEvent{Stream: l.Stream, Data: l.Data, Output: l.Output, Result: l.Result})
	}, names...)
	if err != nil {
		return nil, err
	}
	if last.Result == nil {
		return nil, c.foreign(nil)
	}
	if err := sink(sandbox.CodeEvent{Result: last.Result}); err != nil {
		return nil, err
	}
	return last.Result, nil
}

// RunCode implements [sandbox.Interpreters].
func (c *Client) RunCode(ctx context.Context, name string, req sandbox.RunCodeRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return runCode(ctx, c, operation.RunCode, req, sink, name)
}

// RunIsolated implements [sandbox.Interpreters].
func (c *Client) RunIsolated(ctx context.Context, req sandbox.RunIsolatedRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return runCode(ctx, c, operation.RunIsolated, req, sink)
}

// ListContexts implements [sandbox.Interpreters].
func (c *Client) ListContexts(ctx context.Context, name string) (*sandbox.List[sandbox.CodeContext], error) {
	return get(ctx, c, operation.ListContexts, nil, name)
}

// inContext returns the path names of a context; an empty name is "default".
func inContext(name string, ref sandbox.ContextRef) []string {
	return []string{name, string(ref.Language), cmp.Or(ref.Name, "default")}
}

// InterruptContext implements [sandbox.Interpreters].
func (c *Client) InterruptContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return get(ctx, c, operation.InterruptContext, nil, inContext(name, ref)...)
}

// RestartContext implements [sandbox.Interpreters].
func (c *Client) RestartContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return get(ctx, c, operation.RestartContext, nil, inContext(name, ref)...)
}

// DeleteContext implements [sandbox.Interpreters].
func (c *Client) DeleteContext(ctx context.Context, name string, ref sandbox.ContextRef) error {
	return do(ctx, c, operation.DeleteContext, nil, inContext(name, ref)...)
}
