package client

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// codeLine is one line of the stream of a run of code.
type codeLine struct {
	sandbox.CodeEvent
	ending
}

// runCode runs code and passes what happens to sink, the result too.
func (c *Client) runCode(ctx context.Context, e endpoint, req any, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	if sink == nil {
		return get[sandbox.CodeResult](ctx, c, http.MethodPost, e, req)
	}
	var result *sandbox.CodeResult
	err := stream(ctx, c, http.MethodPost, e, req, func(l codeLine) (ending, error) {
		if l.Final {
			result = l.Result
		}
		if l.Error != nil {
			return l.ending, nil
		}
		return l.ending, sink(l.CodeEvent)
	})
	if err == nil && result == nil {
		err = sandbox.Errorf(sandbox.CodeUnavailable, "the answer of %s is not Cove's; check the URL", c.where)
	}
	if err != nil {
		return nil, err
	}
	return result, nil
}

// RunCode implements [sandbox.Interpreters].
func (c *Client) RunCode(ctx context.Context, name string, req sandbox.RunCodeRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return c.runCode(ctx, c.path("/v1/sandboxes/%/code", name), codeBody{req, stdinOf(&req)}, sink)
}

// RunIsolated implements [sandbox.Interpreters].
func (c *Client) RunIsolated(ctx context.Context, req sandbox.RunIsolatedRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return c.runCode(ctx, c.path("/v1/code"), isolatedBody{req, stdinOf(&req.RunCodeRequest)}, sink)
}

// codeBody and isolatedBody are requests in which empty standard input, which
// ends at once, is told from none.
type codeBody struct {
	sandbox.RunCodeRequest
	Stdin *[]byte `json:"stdin,omitempty"`
}

type isolatedBody struct {
	sandbox.RunIsolatedRequest
	Stdin *[]byte `json:"stdin,omitempty"`
}

func stdinOf(req *sandbox.RunCodeRequest) *[]byte {
	if req.Stdin == nil {
		return nil
	}
	return &req.Stdin
}

// ListContexts implements [sandbox.Interpreters].
func (c *Client) ListContexts(ctx context.Context, name string) (*sandbox.List[sandbox.CodeContext], error) {
	return get[sandbox.List[sandbox.CodeContext]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/contexts", name), nil)
}

// contextPath is the path of a context, which is the default one if it has no
// name.
func (c *Client) contextPath(pattern, name string, ref sandbox.ContextRef) endpoint {
	if ref.Name == "" {
		ref.Name = "default"
	}
	return c.path("/v1/sandboxes/%/contexts/%/%"+pattern, name, string(ref.Language), ref.Name)
}

// InterruptContext implements [sandbox.Interpreters].
func (c *Client) InterruptContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return get[sandbox.CodeContext](ctx, c, http.MethodPost, c.contextPath("/interrupt", name, ref), nil)
}

// RestartContext implements [sandbox.Interpreters].
func (c *Client) RestartContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return get[sandbox.CodeContext](ctx, c, http.MethodPost, c.contextPath("/restart", name, ref), nil)
}

// DeleteContext implements [sandbox.Interpreters].
func (c *Client) DeleteContext(ctx context.Context, name string, ref sandbox.ContextRef) error {
	return c.call(ctx, http.MethodDelete, c.contextPath("", name, ref), nil, nil)
}
