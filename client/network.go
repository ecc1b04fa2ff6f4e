package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// GetNetwork implements [sandbox.Network].
func (c *Client) GetNetwork(ctx context.Context, name string) (*sandbox.NetworkPolicy, error) {
	return get(ctx, c, operation.GetNetwork, nil, name)
}

// SetNetwork implements [sandbox.Network].
func (c *Client) SetNetwork(ctx context.Context, name string, policy sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	return get(ctx, c, operation.SetNetwork, policy, name)
}

// NetworkLog implements [sandbox.Network].
func (c *Client) NetworkLog(ctx context.Context, name string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	return get(ctx, c, operation.NetworkLog, req, name)
}

// FollowNetworkLog implements [sandbox.Network].
func (c *Client) FollowNetworkLog(ctx context.Context, name string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	req.Page = sandbox.Page{} // a stream has no parts
	var own error
	_, err := stream(ctx, c, operation.FollowNetworkLog.Info, req, func(l operation.NetworkLine) error {
		if l.Event != nil {
			own = sink(*l.Event)
		}
		return own
	}, name)
	if own == nil && ctx.Err() != nil {
		return nil
	}
	return err
}
