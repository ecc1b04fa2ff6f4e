package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// CreateVolume implements [sandbox.Volumes].
func (c *Client) CreateVolume(ctx context.Context, req sandbox.CreateVolumeRequest) (*sandbox.Volume, error) {
	return get(ctx, c, operation.CreateVolume, req)
}

// GetVolume implements [sandbox.Volumes].
func (c *Client) GetVolume(ctx context.Context, volume string) (*sandbox.Volume, error) {
	return get(ctx, c, operation.GetVolume, nil, volume)
}

// ListVolumes implements [sandbox.Volumes].
func (c *Client) ListVolumes(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Volume], error) {
	return get(ctx, c, operation.ListVolumes, page)
}

// DeleteVolume implements [sandbox.Volumes].
func (c *Client) DeleteVolume(ctx context.Context, volume string) error {
	return do(ctx, c, operation.DeleteVolume, nil, volume)
}
