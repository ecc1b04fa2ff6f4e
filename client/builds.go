package client

import (
	"context"
	"io"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// buildBody is a request with its login in plain text; a RegistryLogin itself encodes
// its password as "[redacted]".
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
	return get(ctx, c, operation.StartBuild, bodyOfBuild(req))
}

// GetBuild implements [sandbox.Templates].
func (c *Client) GetBuild(ctx context.Context, build string) (*sandbox.Build, error) {
	return get(ctx, c, operation.GetBuild, nil, build)
}

// ListBuilds implements [sandbox.Templates].
func (c *Client) ListBuilds(ctx context.Context, req sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return get(ctx, c, operation.ListBuilds, req)
}

// FollowBuild implements [sandbox.Templates].
func (c *Client) FollowBuild(ctx context.Context, build string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	last, err := stream(ctx, c, operation.FollowBuild.Info, nil, func(l operation.BuildLine) error { return tell(sink, l.BuildEvent) }, build)
	if err != nil {
		return nil, err
	}
	return last.Build, nil
}

// CancelBuild implements [sandbox.Templates].
func (c *Client) CancelBuild(ctx context.Context, build string) (*sandbox.Build, error) {
	return get(ctx, c, operation.CancelBuild, nil, build)
}

// LinkUpload implements [sandbox.Templates].
func (c *Client) LinkUpload(ctx context.Context, req sandbox.UploadLinkRequest) (*sandbox.UploadLink, error) {
	return get(ctx, c, operation.LinkUpload, req)
}

// UploadArchive implements [sandbox.Templates].
func (c *Client) UploadArchive(ctx context.Context, archive io.Reader) (*sandbox.ArchiveUpload, error) {
	return upload(ctx, c, operation.UploadArchive, nil, archive)
}

// AliasTemplate implements [sandbox.Templates].
func (c *Client) AliasTemplate(ctx context.Context, alias, name string) error {
	if name == "" {
		return do(ctx, c, operation.DeleteTemplateAlias, nil, alias)
	}
	return do(ctx, c, operation.AliasTemplate, operation.AliasBody{Name: name}, alias)
}

// DeleteTemplate implements [sandbox.Templates].
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return do(ctx, c, operation.DeleteTemplate, nil, name)
}
