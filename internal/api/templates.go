package api

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

type templateInput struct {
	Name string `path:"name" doc:"A template's name, NAME@VERSION or an alias."`
}

type aliasInput struct {
	Alias string `path:"alias" doc:"The further name."`
	Body  AliasBody
}

// AliasBody says what an alias stands for.
type AliasBody struct {
	Name string `json:"name" doc:"A template's name or NAME@VERSION."`
}

type aliasPath struct {
	Alias string `path:"alias" doc:"The further name."`
}

type buildPath struct {
	Build string `path:"build" doc:"A build's id."`
}

type listBuildsInput struct {
	Template string `query:"template" doc:"Only those of this template."`
	PageQuery
}

// maxBuildBody has room for the files of a spec in base64.
const maxBuildBody = 16 << 20

type buildInput struct {
	Body sandbox.BuildTemplateRequest
}

type uploadLinkInput struct {
	Body sandbox.UploadLinkRequest
}

func (h *handlers) registerTemplates(a huma.API) {
	huma.Register(a, op(http.MethodGet, "/v1/templates", "list-templates", "templates", "List templates, built or only defined, by name"),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Template]], error) {
			v, err := h.svc.ListTemplates(ctx, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/templates/{name}", "get-template", "templates", "Get a template"),
		func(ctx context.Context, in *templateInput) (*Reply[sandbox.Template], error) {
			v, err := h.svc.GetTemplate(ctx, in.Name)
			return reply(ctx, h, v, err)
		})
	build := op(http.MethodPost, "/v1/templates", "build-template", "templates", "Build a template")
	build.Description = "The answer is a stream of events that ends with a line marked `final`, which has the template, or with an `error`. " +
		"A client that disconnects cancels the build; an earlier build stays in use. Use `POST /v1/builds` for one that goes on."
	build.MaxBodyBytes = maxBuildBody
	huma.Register(a, streams[BuildLine](a, build), h.buildTemplate)
	huma.Register(a, op(http.MethodDelete, "/v1/templates/{name}", "delete-template", "templates", "Remove a template, or one version; its sandboxes and snapshots live on"),
		func(ctx context.Context, in *templateInput) (*struct{}, error) {
			return done(ctx, h, h.svc.DeleteTemplate(ctx, in.Name))
		})
	huma.Register(a, op(http.MethodPut, "/v1/template-aliases/{alias}", "alias-template", "templates", "Give a template or a version a further name"),
		func(ctx context.Context, in *aliasInput) (*struct{}, error) {
			if in.Body.Name == "" {
				return nil, h.fail(ctx, sandbox.Errorf(sandbox.CodeInvalid, "name is empty; give the template that the alias stands for, or delete the alias"))
			}
			return done(ctx, h, h.svc.AliasTemplate(ctx, in.Alias, in.Body.Name))
		})
	huma.Register(a, says(op(http.MethodDelete, "/v1/template-aliases/{alias}", "delete-template-alias", "templates", "Take an alias away"),
		"The template that it stands for stays."),
		func(ctx context.Context, in *aliasPath) (*struct{}, error) {
			return done(ctx, h, h.svc.AliasTemplate(ctx, in.Alias, ""))
		})
	link := op(http.MethodPost, "/v1/template-upload-links", "link-upload", "templates", "Make a link by which an archive can be sent without a key")
	link.Description = "The archive is sent with PUT to `url`, as the body; of the answer `archive` names it in a copy step of a spec, for an hour."
	huma.Register(a, link, func(ctx context.Context, in *uploadLinkInput) (*Reply[sandbox.UploadLink], error) {
		v, err := h.svc.LinkUpload(ctx, in.Body)
		return reply(ctx, h, v, err)
	})
	up := op(http.MethodPost, archivesPath, "upload-archive", "templates", "Send an archive of an image, for builds from it")
	up.Description = "The body is what docker save or an OCI tool wrote, as tar, perhaps compressed. It is kept for an hour; `archive` of the answer names it in a spec."
	up.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{contentRaw: {}}}
	huma.Register(a, answers[sandbox.ArchiveUpload](a, up, contentJSON), h.uploadArchive)
	h.registerBuilds(a)
}

func (h *handlers) uploadArchive(context.Context, *struct{}) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		receive(h, hctx, func(ctx context.Context, body io.Reader) (*sandbox.ArchiveUpload, error) {
			return h.svc.UploadArchive(ctx, body)
		})
	}}, nil
}

// registerBuilds registers what is done with builds in the background.
func (h *handlers) registerBuilds(a huma.API) {
	start := mayRepeat(op(http.MethodPost, "/v1/builds", "start-build", "templates", "Begin to build a template, in the background"), repeatWhole)
	start.DefaultStatus = http.StatusAccepted
	start.MaxBodyBytes = maxBuildBody
	huma.Register(a, start, func(ctx context.Context, in *buildInput) (*startBuildReply, error) {
		v, err := h.svc.StartBuild(ctx, in.Body)
		if err != nil {
			return nil, h.fail(ctx, err)
		}
		return &startBuildReply{Location: "/v1/builds/" + v.ID, Body: v}, nil
	})
	huma.Register(a, op(http.MethodGet, "/v1/builds", "list-builds", "templates", "List builds, newest first"),
		func(ctx context.Context, in *listBuildsInput) (*Reply[sandbox.List[sandbox.Build]], error) {
			v, err := h.svc.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: in.Template, Page: in.page()})
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/builds/{build}", "get-build", "templates", "Get a build"),
		func(ctx context.Context, in *buildPath) (*Reply[sandbox.Build], error) {
			v, err := h.svc.GetBuild(ctx, in.Build)
			return reply(ctx, h, v, err)
		})
	follow := op(http.MethodGet, "/v1/builds/{build}/events", "follow-build", "templates", "Follow a build from its beginning until it has ended")
	follow.Description = "The answer is a stream of events that ends with a line marked `final`, which has the build, or with an `error`. " +
		"A client that disconnects leaves the build alone."
	huma.Register(a, streams[BuildLine](a, follow), h.followBuild)
	huma.Register(a, op(http.MethodPost, "/v1/builds/{build}/cancel", "cancel-build", "templates", "End a build and leave nothing of it"),
		func(ctx context.Context, in *buildPath) (*Reply[sandbox.Build], error) {
			v, err := h.svc.CancelBuild(ctx, in.Build)
			return reply(ctx, h, v, err)
		})
}

type startBuildReply struct {
	Location string `header:"Location"`
	Body     *sandbox.Build
}

func (h *handlers) followBuild(_ context.Context, in *buildPath) (*huma.StreamResponse, error) {
	return h.stream(func(ctx context.Context, out *lines) error {
		build, err := h.svc.FollowBuild(ctx, in.Build, func(ev sandbox.BuildEvent) error {
			return out.send(BuildLine{BuildEvent: ev})
		})
		if err != nil {
			return err
		}
		return out.send(BuildLine{BuildEvent: sandbox.BuildEvent{Step: build.Step, Fraction: build.Fraction}, Build: build, Final: true})
	}, failedBuild), nil
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
