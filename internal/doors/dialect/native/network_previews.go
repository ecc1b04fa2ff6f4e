package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func previewLine(p *sandbox.Preview) string {
	line := fmt.Sprintf("port %d of %s: %s (%s", p.Port, p.SandboxID, p.URL, p.Access)
	if p.Wake {
		line += ", wakes the sandbox"
	}
	if p.ExpiresAt != nil {
		line += ", until " + stamp(*p.ExpiresAt)
	}
	return line + ")"
}

type previewCreateArgs struct {
	sandboxRef
	sandbox.CreatePreviewRequest
}

func createPreview(ctx context.Context, c *dialect.Call, in previewCreateArgs) (*reply[*sandbox.NewPreview], error) {
	p, err := c.Service.CreatePreview(ctx, in.Sandbox, in.CreatePreviewRequest)
	if err != nil {
		return nil, err
	}
	text := "Preview of " + previewLine(&p.Preview) + "."
	if p.Key != "" {
		text += "\nIts key, for programs, is not shown again: " + p.Key
	}
	if p.Access == sandbox.PreviewPrivate {
		text += "\nFor a browser get a link with preview_link."
	}
	return answer(text, p)
}

type previewListArgs struct {
	Sandbox string `json:"sandbox,omitempty"`
}

type previewList struct {
	Previews []sandbox.Preview `json:"previews"`
}

func listPreviews(ctx context.Context, c *dialect.Call, in previewListArgs) (*reply[previewList], error) {
	list, err := sandbox.All(ctx, sandbox.Of(in.Sandbox, c.Service.ListPreviews))
	if err != nil {
		return nil, err
	}
	out := previewList{list}
	if len(list) == 0 {
		return answer("No previews. Make one with preview_create.", out)
	}
	var b strings.Builder
	for i := range list {
		b.WriteString(previewLine(&list[i]) + "\n")
		if b.Len() > maxResultBytes/2 {
			return nil, sandbox.Errorf(sandbox.CodeTooLarge, "there are %d previews; ask for those of one sandbox", len(list))
		}
	}
	return answer(b.String(), out)
}

type previewLinkArgs struct {
	previewRef
	sandbox.PreviewLinkRequest
}

func linkPreview(ctx context.Context, c *dialect.Call, in previewLinkArgs) (*reply[*sandbox.PreviewLink], error) {
	l, err := c.Service.LinkPreview(ctx, in.Sandbox, in.Port, in.PreviewLinkRequest)
	if err != nil {
		return nil, err
	}
	return answer(fmt.Sprintf("%s\nGood until %s.", l.URL, stamp(l.ExpiresAt)), l)
}

type previewRef struct {
	sandboxRef
	Port int `json:"port"`
}

func deletePreview(ctx context.Context, c *dialect.Call, in previewRef) (*reply[previewRef], error) {
	err := c.Service.DeletePreview(ctx, in.Sandbox, in.Port)
	return done(err, fmt.Sprintf("The preview of port %d of %s is gone.", in.Port, in.Sandbox), in)
}
