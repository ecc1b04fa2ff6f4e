package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

type templateInput struct {
	Name string `path:"name" doc:"A template's name."`
}

type buildInput struct {
	Body sandbox.BuildTemplateRequest
}

func (h *handlers) registerTemplates(a huma.API) {
	huma.Register(a, op(http.MethodGet, "/v1/templates", "list-templates", "templates", "List templates, built or only defined"),
		func(ctx context.Context, _ *struct{}) (*Reply[sandbox.List[sandbox.Template]], error) {
			v, err := h.svc.ListTemplates(ctx)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/templates/{name}", "get-template", "templates", "Get a template"),
		func(ctx context.Context, in *templateInput) (*Reply[sandbox.Template], error) {
			v, err := h.svc.GetTemplate(ctx, in.Name)
			return reply(ctx, h, v, err)
		})
	build := op(http.MethodPost, "/v1/templates", "build-template", "templates", "Build a template")
	build.Description = "The answer is a stream of events that ends with a line marked `final`, which has the template, or with an `error`. " +
		"A client that disconnects cancels the build; an earlier build stays in use."
	huma.Register(a, streams[BuildLine](a, build), h.buildTemplate)
}

func (h *handlers) buildTemplate(_ context.Context, in *buildInput) (*huma.StreamResponse, error) {
	return h.stream(func(ctx context.Context, out *lines) error {
		built, err := h.svc.BuildTemplate(ctx, in.Body, func(ev sandbox.BuildEvent) error {
			return out.send(BuildLine{BuildEvent: ev})
		})
		if err != nil {
			return err
		}
		return out.send(BuildLine{BuildEvent: sandbox.BuildEvent{Step: "done", Fraction: 1, Template: built}, Final: true})
	}, failedBuild), nil
}
