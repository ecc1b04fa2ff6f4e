package client

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// ListOrphans implements [sandbox.Orphans].
func (c *Client) ListOrphans(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Orphan], error) {
	return get[sandbox.List[sandbox.Orphan]](ctx, c, http.MethodGet, c.path("/v1/orphans").page(page), nil)
}

// RecoverOrphan implements [sandbox.Orphans].
func (c *Client) RecoverOrphan(ctx context.Context, id string) (*sandbox.Recovered, error) {
	return get[sandbox.Recovered](ctx, c, http.MethodPost, c.path("/v1/orphans/%/recover", id), nil)
}
