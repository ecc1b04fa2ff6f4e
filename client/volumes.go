package client

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// CreateVolume implements [sandbox.Volumes].
func (c *Client) CreateVolume(ctx context.Context, req sandbox.CreateVolumeRequest) (*sandbox.Volume, error) {
	return create[sandbox.Volume](ctx, c, c.path("/v1/volumes"), req)
}

// GetVolume implements [sandbox.Volumes].
func (c *Client) GetVolume(ctx context.Context, volume string) (*sandbox.Volume, error) {
	return get[sandbox.Volume](ctx, c, http.MethodGet, c.path("/v1/volumes/%", volume), nil)
}

// ListVolumes implements [sandbox.Volumes].
func (c *Client) ListVolumes(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Volume], error) {
	return get[sandbox.List[sandbox.Volume]](ctx, c, http.MethodGet, c.path("/v1/volumes").page(page), nil)
}

// DeleteVolume implements [sandbox.Volumes].
func (c *Client) DeleteVolume(ctx context.Context, volume string) error {
	return c.call(ctx, http.MethodDelete, c.path("/v1/volumes/%", volume), nil, nil)
}
