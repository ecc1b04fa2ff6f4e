package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

type createKeyInput struct {
	Body sandbox.CreateKeyRequest
}

type keyInput struct {
	ID string `path:"id" doc:"A key's id, which is not its secret."`
}

func (h *handlers) registerKeys(a huma.API) {
	create := op(http.MethodPost, "/v1/keys", "create-key", "keys", "Create an API key; its secret is shown this once")
	create.DefaultStatus = http.StatusCreated
	huma.Register(a, create, func(ctx context.Context, in *createKeyInput) (*Reply[sandbox.NewKey], error) {
		v, err := h.svc.CreateKey(ctx, in.Body)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodGet, "/v1/keys", "list-keys", "keys", "List API keys, without secrets"),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Key]], error) {
			v, err := h.svc.ListKeys(ctx, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, "/v1/keys/{id}", "revoke-key", "keys", "Revoke an API key"),
		func(ctx context.Context, in *keyInput) (*Reply[sandbox.Key], error) {
			v, err := h.svc.RevokeKey(ctx, in.ID)
			return reply(ctx, h, v, err)
		})
}
