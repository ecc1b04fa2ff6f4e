package client

import (
	"context"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

func (e endpoint) page(p sandbox.Page) endpoint {
	return e.with("limit", number(int64(p.Limit))).with("cursor", p.Cursor)
}

// Create implements [sandbox.Sandboxes].
func (c *Client) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return create[sandbox.Sandbox](ctx, c, c.path("/v1/sandboxes"), req)
}

// Get implements [sandbox.Sandboxes].
func (c *Client) Get(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%", name), nil)
}

// metadataKey tells the end of a key from what is in it.
var metadataKey = strings.NewReplacer("%", "%25", "=", "%3D")

// List implements [sandbox.Sandboxes].
func (c *Client) List(ctx context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	e := c.path("/v1/sandboxes").page(req.Page).
		with("namespace", req.Namespace).with("name", req.Name).with("template", req.Template)
	for _, s := range req.States {
		e = e.must("state", string(s))
	}
	for key, value := range req.Metadata {
		e = e.must("metadata", metadataKey.Replace(key)+"="+value)
	}
	return get[sandbox.List[sandbox.Sandbox]](ctx, c, http.MethodGet, e, nil)
}

// updateBody is a [sandbox.UpdateRequest] in which an empty map, which clears,
// is told from one that is not given.
type updateBody struct {
	sandbox.UpdateRequest
	Metadata *map[string]string `json:"metadata,omitempty"`
	Env      *map[string]string `json:"env,omitempty"`
}

// Update implements [sandbox.Sandboxes].
func (c *Client) Update(ctx context.Context, name string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	body := updateBody{UpdateRequest: req}
	if req.Metadata != nil {
		body.Metadata = &req.Metadata
	}
	if req.Env != nil {
		body.Env = &req.Env
	}
	return get[sandbox.Sandbox](ctx, c, http.MethodPatch, c.path("/v1/sandboxes/%", name), body)
}

// Kill implements [sandbox.Sandboxes].
func (c *Client) Kill(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodDelete, c.path("/v1/sandboxes/%", name), nil)
}

// Stats implements [sandbox.Sandboxes].
func (c *Client) Stats(ctx context.Context, name string) (*sandbox.Stats, error) {
	return get[sandbox.Stats](ctx, c, http.MethodGet, c.path("/v1/sandboxes/%/stats", name), nil)
}

// Audit implements [sandbox.Sandboxes].
func (c *Client) Audit(ctx context.Context, req sandbox.AuditRequest) (*sandbox.List[sandbox.AuditEvent], error) {
	e := c.path("/v1/audit").page(req.Page).with("sandbox_id", req.SandboxID)
	return get[sandbox.List[sandbox.AuditEvent]](ctx, c, http.MethodGet, e, nil)
}

// ListTemplates implements [sandbox.Templates].
func (c *Client) ListTemplates(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return get[sandbox.List[sandbox.Template]](ctx, c, http.MethodGet, c.path("/v1/templates").page(page), nil)
}

// GetTemplate implements [sandbox.Templates].
func (c *Client) GetTemplate(ctx context.Context, name string) (*sandbox.Template, error) {
	return get[sandbox.Template](ctx, c, http.MethodGet, c.path("/v1/templates/%", name), nil)
}

// BuildTemplate implements [sandbox.Templates].
func (c *Client) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	var built *sandbox.Template
	type line struct {
		sandbox.BuildEvent
		ending
	}
	err := stream(ctx, c, http.MethodPost, c.path("/v1/templates"), bodyOfBuild(req), func(l line) (ending, error) {
		if l.Final {
			built = l.Template
		} else if l.Error == nil && sink != nil {
			return l.ending, sink(l.BuildEvent)
		}
		return l.ending, nil
	})
	if err != nil {
		return nil, err
	}
	return built, nil
}

// CreateKey implements [sandbox.Keys].
func (c *Client) CreateKey(ctx context.Context, req sandbox.CreateKeyRequest) (*sandbox.NewKey, error) {
	return get[sandbox.NewKey](ctx, c, http.MethodPost, c.path("/v1/keys"), req)
}

// ListKeys implements [sandbox.Keys].
func (c *Client) ListKeys(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Key], error) {
	return get[sandbox.List[sandbox.Key]](ctx, c, http.MethodGet, c.path("/v1/keys").page(page), nil)
}

// RevokeKey implements [sandbox.Keys].
func (c *Client) RevokeKey(ctx context.Context, id string) (*sandbox.Key, error) {
	return get[sandbox.Key](ctx, c, http.MethodDelete, c.path("/v1/keys/%", id), nil)
}
