package client

import (
	"context"
	"net/http"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// GetNetwork implements [sandbox.Network].
func (c *Client) GetNetwork(ctx context.Context, name string) (*sandbox.NetworkPolicy, error) {
	return get[sandbox.NetworkPolicy](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/network", name), nil)
}

// SetNetwork implements [sandbox.Network].
func (c *Client) SetNetwork(ctx context.Context, name string, policy sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	return get[sandbox.NetworkPolicy](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/network", name), policy)
}

// events adds what selects events of a network log.
func (e endpoint) events(req *sandbox.NetworkLogRequest) endpoint {
	for name, at := range map[string]*time.Time{"since": req.Since, "until": req.Until} {
		if at != nil {
			e = e.with(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return e.with("kind", string(req.Kind)).with("verdict", string(req.Verdict)).with("host", req.Host)
}

// NetworkLog implements [sandbox.Network].
func (c *Client) NetworkLog(ctx context.Context, name string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	e := c.path("/v1/sandboxes/%/network/log", name).events(&req).page(req.Page)
	return get[sandbox.List[sandbox.NetworkEvent]](ctx, c, http.MethodGet, e, nil)
}

// FollowNetworkLog implements [sandbox.Network].
func (c *Client) FollowNetworkLog(ctx context.Context, name string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	type line struct {
		Event *sandbox.NetworkEvent `json:"event"`
		ending
	}
	var own error
	err := stream(ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/network/log/follow", name).events(&req), nil, func(l line) (ending, error) {
		if l.Event != nil {
			own = sink(*l.Event)
		}
		return l.ending, own
	})
	if own == nil && ctx.Err() != nil {
		return nil
	}
	return err
}
