package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// SandboxPath is the part of a path that names a sandbox.
type SandboxPath struct {
	Sandbox string `path:"sandbox" doc:"A sandbox's id or name."`
}

// PageQuery asks for one part of a listing.
type PageQuery struct {
	Limit  int    `query:"limit" doc:"At most this many items, 1 to 1000; 100 when absent."`
	Cursor string `query:"cursor" doc:"The next_cursor of the part before."`
}

// sandboxPage asks for one part of what a sandbox has.
type sandboxPage struct {
	SandboxPath
	PageQuery
}

func (q PageQuery) page() sandbox.Page { return sandbox.Page{Limit: q.Limit, Cursor: q.Cursor} }

type createInput struct {
	Body sandbox.CreateRequest
}

type createReply struct {
	Location string `header:"Location"`
	Body     *sandbox.Sandbox
}

type listInput struct {
	Namespace string   `query:"namespace" doc:"Only this namespace; absent or * is all."`
	State     []string `query:"state,explode" doc:"Only these states; absent is all that are not final."`
	Metadata  []string `query:"metadata,explode" doc:"Only sandboxes with this pair, key=value; all pairs when repeated. In the key, = is written %3D and % is written %25, besides the encoding of the query."`
	Name      string   `query:"name" doc:"Only the sandbox of this name."`
	Template  string   `query:"template" doc:"Only sandboxes made from this template."`
	PageQuery
}

type updateInput struct {
	SandboxPath
	Body sandbox.UpdateRequest
}

type auditInput struct {
	SandboxID string `query:"sandbox_id" doc:"Only events of this sandbox; needs admin when absent."`
	PageQuery
}

func (h *handlers) registerSandboxes(a huma.API) {
	create := mayRepeat(op(http.MethodPost, "/v1/sandboxes", createSandbox, "sandboxes", "Create a sandbox; answers when it runs"), repeatWhole)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a, create, h.create)
	huma.Register(a, op(http.MethodGet, "/v1/sandboxes", "list-sandboxes", "sandboxes", "List sandboxes, newest first"), h.list)
	huma.Register(a, op(http.MethodGet, "/v1/sandboxes/{sandbox}", "get-sandbox", "sandboxes", "Get a sandbox in any state"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.Get(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPatch, "/v1/sandboxes/{sandbox}", "update-sandbox", "sandboxes", "Change a living sandbox"),
		func(ctx context.Context, in *updateInput) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.Update(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, "/v1/sandboxes/{sandbox}", "kill-sandbox", "sandboxes", "End a sandbox and remove its files"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.Kill(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/sandboxes/{sandbox}/stats", "get-stats", "sandboxes", "Tell what a running sandbox uses"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.Stats], error) {
			v, err := h.svc.Stats(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/audit", "list-audit", "sandboxes", "List what was done, newest first"),
		func(ctx context.Context, in *auditInput) (*Reply[sandbox.List[sandbox.AuditEvent]], error) {
			v, err := h.svc.Audit(ctx, sandbox.AuditRequest{SandboxID: in.SandboxID, Page: in.page()})
			return reply(ctx, h, v, err)
		})
}

func (h *handlers) create(ctx context.Context, in *createInput) (*createReply, error) {
	v, err := h.svc.Create(ctx, in.Body)
	if err != nil {
		return nil, h.fail(ctx, err)
	}
	return &createReply{Location: "/v1/sandboxes/" + v.ID, Body: v}, nil
}

func (h *handlers) list(ctx context.Context, in *listInput) (*Reply[sandbox.List[sandbox.Sandbox]], error) {
	req := sandbox.ListRequest{Namespace: in.Namespace, Name: in.Name, Template: in.Template, Page: in.page()}
	for _, s := range in.State {
		req.States = append(req.States, sandbox.State(s))
	}
	for _, pair := range in.Metadata {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, h.fail(ctx, sandbox.Errorf(sandbox.CodeInvalid, "metadata filter %q is not key=value; add the value", pair))
		}
		key, err := url.PathUnescape(key)
		if err != nil {
			return nil, h.fail(ctx, sandbox.Errorf(sandbox.CodeInvalid, "the key of metadata filter %q is malformed; write %%25 for %% and %%3D for =", pair))
		}
		if _, twice := req.Metadata[key]; twice {
			return nil, h.fail(ctx, sandbox.Errorf(sandbox.CodeInvalid, "metadata key %q is given twice; no sandbox has two values of it", key))
		}
		if req.Metadata == nil {
			req.Metadata = map[string]string{}
		}
		req.Metadata[key] = value
	}
	v, err := h.svc.List(ctx, req)
	return reply(ctx, h, v, err)
}
