package miosa

import (
	"context"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// preview is the URL of a port.
type preview struct {
	ID         string `json:"id"`
	Sandbox    string `json:"sandbox_id"`
	Port       int    `json:"port"`
	URL        string `json:"url"`
	PreviewURL string `json:"preview_url"`
	Visibility string `json:"visibility"`
	// ShareURL opens a private preview until it expires.
	ShareURL       string `json:"share_url,omitempty"`
	ShareExpiresAt string `json:"share_expires_at,omitempty"`
	CreatedAt      string `json:"created_at"`
}

func previewOf(p *sandbox.Preview) preview {
	return preview{
		ID: p.ID, Sandbox: p.SandboxID, Port: p.Port, URL: p.URL, PreviewURL: p.URL,
		Visibility: string(p.Access), CreatedAt: dialect.Stamp(p.CreatedAt),
	}
}

type previewArgs struct {
	Sandbox    string                `json:"sandbox_id"`
	Port       float64               `json:"port"`
	Visibility sandbox.PreviewAccess `json:"visibility"`
}

func createPreview(ctx context.Context, c *call, in previewArgs) (*mcp.CallToolResult, error) {
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	p, err := c.publish(ctx, id, int(in.Port), in.Visibility)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	out := previewOf(p)
	if p.Access == sandbox.PreviewPrivate {
		link, err := c.Service.LinkPreview(ctx, p.SandboxID, p.Port, sandbox.PreviewLinkRequest{})
		if err != nil {
			return nil, c.about(ctx, id, err)
		}
		out.ShareURL, out.ShareExpiresAt = link.URL, dialect.Stamp(link.ExpiresAt)
	}
	return result(out)
}

// publish returns the preview of a port. An existing one is unchanged unless the call
// requests the other visibility.
func (c *call) publish(ctx context.Context, id string, port int, access sandbox.PreviewAccess) (*sandbox.Preview, error) {
	there, err := sandbox.All(ctx, sandbox.Of(id, c.Service.ListPreviews))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(there, func(p sandbox.Preview) bool { return p.Port == port })
	if i >= 0 && (access == "" || access == there[i].Access) {
		return &there[i], nil
	}
	if access == "" {
		access = sandbox.PreviewPublic
	}
	made, err := c.Service.CreatePreview(ctx, id, sandbox.CreatePreviewRequest{Port: port, Access: access, Wake: true})
	if err != nil {
		return nil, err
	}
	return &made.Preview, nil
}

// previews are the previews of a sandbox.
type previews struct {
	Previews []preview `json:"previews"`
}

func listPreviews(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	list, err := sandbox.All(ctx, sandbox.Of(id, c.Service.ListPreviews))
	if err == nil {
		err = c.living(ctx, id) // an ended sandbox keeps previews for a while, but they do not work
	}
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	out := previews{Previews: []preview{}}
	for i := range list {
		out.Previews = append(out.Previews, previewOf(&list[i]))
	}
	return result(out)
}

// living refuses a sandbox that has ended.
func (c *call) living(ctx context.Context, id string) error {
	s, err := c.Service.Get(ctx, id)
	if err == nil && s.State.Final() {
		err = sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s has ended", s.ID)
	}
	return err
}

type destroyPreviewArgs struct {
	Sandbox string  `json:"sandbox_id"`
	Preview string  `json:"preview_id"`
	Port    float64 `json:"port"`
}

// previewDeleted reports a preview that was deleted.
type previewDeleted struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

func destroyPreview(ctx context.Context, c *call, in destroyPreviewArgs) (*mcp.CallToolResult, error) {
	id := in.Sandbox
	if in.Preview == "" { // a port alone is ambiguous
		var err error
		if id, err = c.sandbox(id); err != nil {
			return nil, err
		}
	}
	list, err := sandbox.All(ctx, sandbox.Of(id, c.Service.ListPreviews))
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	for i := range list {
		p := &list[i]
		if p.ID != in.Preview && (in.Preview != "" || p.Port != int(in.Port)) {
			continue
		}
		if err := c.Service.DeletePreview(ctx, p.SandboxID, p.Port); err != nil {
			return nil, c.about(ctx, p.SandboxID, err)
		}
		return result(previewDeleted{p.ID, true})
	}
	what := quoted(in.Preview)
	if what == "" {
		what = fmt.Sprintf("of port %d", int(in.Port))
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no preview %s; see preview_list", what)
}
