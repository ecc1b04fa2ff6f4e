package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Create implements [sandbox.Sandboxes].
func (c *Client) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Create, req)
}

// Get implements [sandbox.Sandboxes].
func (c *Client) Get(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Get, nil, name)
}

// List implements [sandbox.Sandboxes].
func (c *Client) List(ctx context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return get(ctx, c, operation.List, req)
}

// Update implements [sandbox.Sandboxes].
func (c *Client) Update(ctx context.Context, name string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Update, req, name)
}

// Kill implements [sandbox.Sandboxes].
func (c *Client) Kill(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.Kill, nil, name)
}

// Stats implements [sandbox.Sandboxes].
func (c *Client) Stats(ctx context.Context, name string) (*sandbox.Stats, error) {
	return get(ctx, c, operation.Stats, nil, name)
}

// Audit implements [sandbox.Sandboxes].
func (c *Client) Audit(ctx context.Context, req sandbox.AuditRequest) (*sandbox.List[sandbox.AuditEvent], error) {
	return get(ctx, c, operation.Audit, req)
}

// ListTemplates implements [sandbox.Templates].
func (c *Client) ListTemplates(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return get(ctx, c, operation.ListTemplates, page)
}

// GetTemplate implements [sandbox.Templates].
func (c *Client) GetTemplate(ctx context.Context, name string) (*sandbox.Template, error) {
	return get(ctx, c, operation.GetTemplate, nil, name)
}

// BuildTemplate implements [sandbox.Templates].
func (c *Client) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	last, err := stream(ctx, c, operation.BuildTemplate.Info, bodyOfBuild(req), func(l operation.BuildLine) error { return tell(sink, l.BuildEvent) })
	if err != nil {
		return nil, err
	}
	return last.Template, nil
}

// CreateKey implements [sandbox.Keys].
func (c *Client) CreateKey(ctx context.Context, req sandbox.CreateKeyRequest) (*sandbox.NewKey, error) {
	return get(ctx, c, operation.CreateKey, req)
}

// ListKeys implements [sandbox.Keys].
func (c *Client) ListKeys(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Key], error) {
	return get(ctx, c, operation.ListKeys, page)
}

// RevokeKey implements [sandbox.Keys].
func (c *Client) RevokeKey(ctx context.Context, id string) (*sandbox.Key, error) {
	return get(ctx, c, operation.RevokeKey, nil, id)
}
