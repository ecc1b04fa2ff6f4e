package client

import (
	"context"
	"net"
	"strconv"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// CreatePreview implements [sandbox.Previews].
func (c *Client) CreatePreview(ctx context.Context, name string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	return get(ctx, c, operation.CreatePreview, req, name)
}

// ListPreviews implements [sandbox.Previews].
func (c *Client) ListPreviews(ctx context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	if name == "" {
		return get(ctx, c, operation.ListPreviews, page)
	}
	return get(ctx, c, operation.ListSandboxPreviews, page, name)
}

// LinkPreview implements [sandbox.Previews].
func (c *Client) LinkPreview(ctx context.Context, name string, port int, req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	return get(ctx, c, operation.LinkPreview, req, name, strconv.Itoa(port))
}

// DeletePreview implements [sandbox.Previews].
func (c *Client) DeletePreview(ctx context.Context, name string, port int) error {
	return do(ctx, c, operation.DeletePreview, nil, name, strconv.Itoa(port))
}

var errVisitor = sandbox.Errorf(sandbox.CodeUnsupported, "the server itself admits visitors of previews; open the preview's URL instead")

// VisitPreview is unsupported: visitors open the preview's URL.
func (*Client) VisitPreview(_ context.Context, _ sandbox.PreviewVisit) (*sandbox.Preview, error) {
	return nil, errVisitor
}

// DialPreview is unsupported: visitors open the preview's URL.
func (*Client) DialPreview(_ context.Context, _ *sandbox.Preview) (net.Conn, error) {
	return nil, errVisitor
}
