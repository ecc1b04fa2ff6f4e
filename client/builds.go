package client

import (
	"context"
	"io"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// buildBody is a request with its login, whose password is not shown otherwise.
type buildBody struct {
	sandbox.BuildTemplateRequest
	Login *loginBody `json:"registry_login,omitempty"`
}

type loginBody struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

func bodyOfBuild(req sandbox.BuildTemplateRequest) buildBody {
	body := buildBody{BuildTemplateRequest: req}
	if l := req.Login; l != nil {
		body.Login = &loginBody{l.Username, l.Password.Reveal()}
	}
	return body
}

// StartBuild implements [sandbox.Templates].
func (c *Client) StartBuild(ctx context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	return create[sandbox.Build](ctx, c, c.path("/v1/builds"), bodyOfBuild(req))
}

// GetBuild implements [sandbox.Templates].
func (c *Client) GetBuild(ctx context.Context, build string) (*sandbox.Build, error) {
	return get[sandbox.Build](ctx, c, http.MethodGet, c.path("/v1/builds/%", build), nil)
}

// ListBuilds implements [sandbox.Templates].
func (c *Client) ListBuilds(ctx context.Context, req sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return get[sandbox.List[sandbox.Build]](ctx, c, http.MethodGet, c.path("/v1/builds").page(req.Page).with("template", req.Template), nil)
}

// FollowBuild implements [sandbox.Templates].
func (c *Client) FollowBuild(ctx context.Context, build string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	var ended *sandbox.Build
	type line struct {
		sandbox.BuildEvent
		Build *sandbox.Build `json:"build"`
		ending
	}
	err := stream(ctx, c, http.MethodGet, c.path("/v1/builds/%/events", build), nil, func(l line) (ending, error) {
		if l.Final {
			ended = l.Build
		} else if l.Error == nil && sink != nil {
			return l.ending, sink(l.BuildEvent)
		}
		return l.ending, nil
	})
	if err != nil {
		return nil, err
	}
	return ended, nil
}

// CancelBuild implements [sandbox.Templates].
func (c *Client) CancelBuild(ctx context.Context, build string) (*sandbox.Build, error) {
	return get[sandbox.Build](ctx, c, http.MethodPost, c.path("/v1/builds/%/cancel", build), nil)
}

// LinkUpload implements [sandbox.Templates].
func (c *Client) LinkUpload(ctx context.Context, req sandbox.UploadLinkRequest) (*sandbox.UploadLink, error) {
	return get[sandbox.UploadLink](ctx, c, http.MethodPost, c.path("/v1/template-upload-links"), req)
}

// UploadArchive implements [sandbox.Templates].
func (c *Client) UploadArchive(ctx context.Context, content io.Reader) (*sandbox.ArchiveUpload, error) {
	hreq, err := c.request(ctx, http.MethodPost, c.path("/v1/template-archives"), &contentReader{r: content})
	if err != nil {
		return nil, err
	}
	// A refusal comes before the content is sent.
	hreq.Header.Set("Expect", "100-continue")
	resp, err := c.send(hreq)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	up := new(sandbox.ArchiveUpload)
	if err := c.decode(ctx, resp, up); err != nil {
		return nil, err
	}
	return up, nil
}

// AliasTemplate implements [sandbox.Templates].
func (c *Client) AliasTemplate(ctx context.Context, alias, name string) error {
	if name == "" {
		return c.call(ctx, http.MethodDelete, c.path("/v1/template-aliases/%", alias), nil, nil)
	}
	body := struct {
		Name string `json:"name"`
	}{name}
	return c.call(ctx, http.MethodPut, c.path("/v1/template-aliases/%", alias), body, nil)
}

// DeleteTemplate implements [sandbox.Templates].
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, c.path("/v1/templates/%", name), nil, nil)
}
