package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// PortPath is the part of a path that names a port of a sandbox.
type PortPath struct {
	SandboxPath
	Port int `path:"port" doc:"A port of the sandbox."`
}

type createPreviewInput struct {
	SandboxPath
	Body sandbox.CreatePreviewRequest
}

type linkPreviewInput struct {
	PortPath
	Body sandbox.PreviewLinkRequest
}

func (h *handlers) registerPreviews(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}/previews"
	create := op(http.MethodPost, base, "create-preview", "previews", "Make a port of a sandbox a URL; the key of a private one is shown this once")
	create.DefaultStatus = http.StatusCreated
	create.Description = "A preview that is there for the port already is changed. A visitor shows the key as header `" + sandbox.PreviewKeyHeader +
		"` or as query parameter `" + sandbox.PreviewKeyParam + "`."
	huma.Register(a, create, func(ctx context.Context, in *createPreviewInput) (*Reply[sandbox.NewPreview], error) {
		v, err := h.svc.CreatePreview(ctx, in.Sandbox, in.Body)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodGet, base, "list-sandbox-previews", "previews", "List the previews of a sandbox by port"),
		func(ctx context.Context, in *sandboxPage) (*Reply[sandbox.List[sandbox.Preview]], error) {
			v, err := h.svc.ListPreviews(ctx, in.Sandbox, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, says(op(http.MethodGet, "/v1/previews", "list-previews", "previews", "List the previews of all living sandboxes, by sandbox and port"),
		"Those that have expired are left out."),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Preview]], error) {
			v, err := h.svc.ListPreviews(ctx, "", in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/{port}/link", "link-preview", "previews", "Sign a link that opens a private preview"),
		func(ctx context.Context, in *linkPreviewInput) (*Reply[sandbox.PreviewLink], error) {
			v, err := h.svc.LinkPreview(ctx, in.Sandbox, in.Port, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, base+"/{port}", "delete-preview", "previews", "End a preview, its key and its links, at once"),
		func(ctx context.Context, in *PortPath) (*struct{}, error) {
			return done(ctx, h, h.svc.DeletePreview(ctx, in.Sandbox, in.Port))
		})
	h.registerTunnel(a)
}
