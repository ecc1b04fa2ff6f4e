package client

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"github.com/cove-sh/cove/sandbox"
)

// CreatePreview implements [sandbox.Previews].
func (c *Client) CreatePreview(ctx context.Context, name string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	return get[sandbox.NewPreview](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/previews", name), req)
}

// ListPreviews implements [sandbox.Previews].
func (c *Client) ListPreviews(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	e := c.path("/v1/previews")
	if name != "" {
		e = c.path("/v1/sandboxes/%/previews", name)
	}
	return get[sandbox.List[sandbox.Preview]](ctx, c, http.MethodGet, e.page(page), nil)
}

// LinkPreview implements [sandbox.Previews].
func (c *Client) LinkPreview(ctx context.Context, name string, port int, req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	return get[sandbox.PreviewLink](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/previews/%/link", name, strconv.Itoa(port)), req)
}

// DeletePreview implements [sandbox.Previews].
func (c *Client) DeletePreview(ctx context.Context, name string, port int) error {
	return c.call(ctx, http.MethodDelete, c.path("/v1/sandboxes/%/previews/%", name, strconv.Itoa(port)), nil, nil)
}

var errVisitor = sandbox.Errorf(sandbox.CodeUnsupported, "the server itself admits the visitors of previews; open the preview's URL")

// VisitPreview is unsupported: visitors open the preview's URL.
func (*Client) VisitPreview(_ context.Context, _ sandbox.PreviewVisit) (*sandbox.Preview, error) {
	return nil, errVisitor
}

// DialPreview is unsupported: visitors open the preview's URL.
func (*Client) DialPreview(_ context.Context, _ *sandbox.Preview) (net.Conn, error) {
	return nil, errVisitor
}
