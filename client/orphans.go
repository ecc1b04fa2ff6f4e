package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// ListOrphans implements [sandbox.Orphans].
func (c *Client) ListOrphans(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Orphan], error) {
	return get(ctx, c, operation.ListOrphans, page)
}

// RecoverOrphan implements [sandbox.Orphans].
func (c *Client) RecoverOrphan(ctx context.Context, id string) (*sandbox.Recovered, error) {
	return get(ctx, c, operation.RecoverOrphan, nil, id)
}

// CheckMachine implements [sandbox.Machine].
func (c *Client) CheckMachine(ctx context.Context) (*sandbox.MachineReport, error) {
	return get(ctx, c, operation.CheckMachine, nil)
}
