package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

type orphanInput struct {
	ID string `path:"id" doc:"An orphan's id."`
}

func (h *handlers) registerOrphans(a huma.API) {
	huma.Register(a, op(http.MethodGet, "/v1/orphans", "list-orphans", "orphans", "List what the server has found without a record of it and has set aside, the oldest first; needs the scope admin"),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Orphan]], error) {
			v, err := h.svc.ListOrphans(ctx, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, "/v1/orphans/{id}/recover", "recover-orphan", "orphans", "Make a record of an orphan again: a volume, or a snapshot; needs the scope admin"),
		func(ctx context.Context, in *orphanInput) (*Reply[sandbox.Recovered], error) {
			v, err := h.svc.RecoverOrphan(ctx, in.ID)
			return reply(ctx, h, v, err)
		})
}
