package client

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// ListProcesses implements [sandbox.Observe].
func (c *Client) ListProcesses(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Process], error) {
	return get[sandbox.List[sandbox.Process]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/processes", name).page(page), nil)
}

// SignalProcess implements [sandbox.Observe].
func (c *Client) SignalProcess(ctx context.Context, name string, pid int, signal string) error {
	body := struct {
		Signal string `json:"signal"`
	}{signal}
	return c.call(ctx, http.MethodPost, c.path("/v1/sandboxes/%/processes/%/signal", name, strconv.Itoa(pid)), body, nil)
}

// GetEnv implements [sandbox.Observe].
func (c *Client) GetEnv(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	return get[sandbox.List[sandbox.EnvVar]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/env", name).page(page), nil)
}

// SetEnv implements [sandbox.Observe].
func (c *Client) SetEnv(ctx context.Context, name string, req sandbox.SetEnvRequest) (*sandbox.List[sandbox.EnvVar], error) {
	return get[sandbox.List[sandbox.EnvVar]](ctx, c, http.MethodPatch, c.path("/v1/sandboxes/%/env", name), req)
}

// ListStats implements [sandbox.Observe].
func (c *Client) ListStats(ctx context.Context, req sandbox.StatsRequest) (*sandbox.List[sandbox.SandboxStats], error) {
	e := c.path("/v1/stats").page(req.Page).with("namespace", req.Namespace).with("sandbox", req.Sandbox)
	return get[sandbox.List[sandbox.SandboxStats]](ctx, c, http.MethodGet, e, nil)
}

// StatsSeries implements [sandbox.Observe].
func (c *Client) StatsSeries(ctx context.Context, name string, req sandbox.StatsSeriesRequest) (*sandbox.List[sandbox.StatsPoint], error) {
	e := c.path("/v1/sandboxes/%/stats/series", name).with("max_points", number(int64(req.MaxPoints)))
	if req.Since != nil {
		e = e.with("since", req.Since.UTC().Format(time.RFC3339Nano))
	}
	return get[sandbox.List[sandbox.StatsPoint]](ctx, c, http.MethodGet, e, nil)
}

// ListDeliveries implements [sandbox.Observe].
func (c *Client) ListDeliveries(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Delivery], error) {
	return get[sandbox.List[sandbox.Delivery]](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/deliveries", name).page(page), nil)
}
