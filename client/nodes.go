package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// ListNodes implements [sandbox.Nodes].
func (c *Client) ListNodes(ctx context.Context) (*sandbox.List[sandbox.Node], error) {
	return get(ctx, c, operation.ListNodes, nil)
}

// CreateJoinToken implements [sandbox.Nodes].
func (c *Client) CreateJoinToken(ctx context.Context) (*sandbox.JoinToken, error) {
	return get(ctx, c, operation.CreateJoinToken, nil)
}

// DrainNode implements [sandbox.Nodes].
func (c *Client) DrainNode(ctx context.Context, node string, req sandbox.DrainRequest) (*sandbox.Node, error) {
	return get(ctx, c, operation.DrainNode, req, node)
}

// UndrainNode implements [sandbox.Nodes].
func (c *Client) UndrainNode(ctx context.Context, node string) (*sandbox.Node, error) {
	return get(ctx, c, operation.UndrainNode, nil, node)
}

// RemoveNode implements [sandbox.Nodes].
func (c *Client) RemoveNode(ctx context.Context, node string) error {
	return do(ctx, c, operation.RemoveNode, nil, node)
}
