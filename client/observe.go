package client

import (
	"context"
	"strconv"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// ListProcesses implements [sandbox.Observe].
func (c *Client) ListProcesses(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Process], error) {
	return get(ctx, c, operation.ListProcesses, page, name)
}

// SignalProcess implements [sandbox.Observe].
func (c *Client) SignalProcess(ctx context.Context, name string, pid int, signal string) error {
	return do(ctx, c, operation.SignalProcess, members{"signal": signal}, name, strconv.Itoa(pid))
}

// GetEnv implements [sandbox.Observe].
func (c *Client) GetEnv(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	return get(ctx, c, operation.GetEnv, page, name)
}

// SetEnv implements [sandbox.Observe].
func (c *Client) SetEnv(ctx context.Context, name string, req sandbox.SetEnvRequest) (*sandbox.List[sandbox.EnvVar], error) {
	return get(ctx, c, operation.SetEnv, req, name)
}

// ListStats implements [sandbox.Observe].
func (c *Client) ListStats(ctx context.Context, req sandbox.StatsRequest) (*sandbox.List[sandbox.SandboxStats], error) {
	return get(ctx, c, operation.ListStats, req)
}

// StatsSeries implements [sandbox.Observe].
func (c *Client) StatsSeries(ctx context.Context, name string, req sandbox.StatsSeriesRequest) (*sandbox.List[sandbox.StatsPoint], error) {
	return get(ctx, c, operation.StatsSeries, req, name)
}

// ListDeliveries implements [sandbox.Observe].
func (c *Client) ListDeliveries(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Delivery], error) {
	return get(ctx, c, operation.ListDeliveries, page, name)
}

// FollowEvents implements [sandbox.Events]. It returns an error when the connection
// breaks; call it again with the id of the last event in After to miss nothing.
func (c *Client) FollowEvents(ctx context.Context, req sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	var own error
	_, err := stream(ctx, c, operation.FollowEvents.Info, req, func(l operation.EventLine) error {
		if l.Event != nil {
			own = sink(*l.Event)
		}
		return own
	})
	if own == nil && ctx.Err() != nil {
		return nil
	}
	return err
}
