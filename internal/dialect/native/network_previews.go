package native

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func previewProps() []prop {
	return []prop{
		req("id", text("")), req("sandbox_id", text("")), req("port", count("")),
		req("access", oneOf("", string(sandbox.PreviewPrivate), string(sandbox.PreviewPublic))),
		req("url", text("")), req("wake", boolean("")), req("created_at", moment("")), opt("expires_at", moment("")),
	}
}

func portArg() prop { return req("port", integer("Port in the sandbox.", 1, 65535)) }

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
	Sandbox string `json:"sandbox"`
	sandbox.CreatePreviewRequest
}

func previewCreate() dialect.Tool {
	return dialect.New(toolsetPreviews, &mcp.Tool{
		Name:  "preview_create",
		Title: "Make a port a URL",
		Description: "Make a port of a sandbox a URL that people can open in a browser: HTTP, WebSocket, server-sent events. Private unless access is public; for a private one, preview_link makes a link to hand out. " +
			"Start the server in the sandbox with background. A preview that is there for the port is changed.",
		Annotations: annotations("Make a port a URL", false, false, true, true),
		InputSchema: input(
			sandboxArg(), portArg(),
			opt("access", with(oneOf("public is for everybody who can reach the server; private asks for the key or a link.", string(sandbox.PreviewPrivate), string(sandbox.PreviewPublic)), sandbox.PreviewPrivate)),
			opt("wake", with(boolean("Opening it resumes a paused sandbox."), false)),
			opt("expires_in_seconds", with(integer("0 is with the sandbox.", 0, maxLifetimeSeconds), 0)),
			opt("new_key", with(boolean("Make a new key, which ends the old one and all links."), false)),
		),
		OutputSchema: output(concat(previewProps(), []prop{opt("key", text("Opens a private preview as header Cove-Preview-Key; shown this once, when one was made."))})...),
	}, func(ctx context.Context, c *dialect.Call, in previewCreateArgs) (*mcp.CallToolResult, error) {
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
		return dialect.Text(text, p), nil
	})
}

type previewListArgs struct {
	Sandbox string `json:"sandbox"`
}

type previewList struct {
	Previews []sandbox.Preview `json:"previews"`
}

func previewListTool() dialect.Tool {
	return dialect.New(toolsetPreviews, &mcp.Tool{
		Name:         "preview_list",
		Title:        "List previews",
		Description:  "List the previews of one sandbox, or all of yours: port, URL, access.",
		Annotations:  annotations("List previews", true, false, true, false),
		InputSchema:  input(opt("sandbox", bounded("Only those of this sandbox, by id or name.", 0, 128))),
		OutputSchema: output(req("previews", array("", object("", previewProps()...), 0, 0))),
	}, func(ctx context.Context, c *dialect.Call, in previewListArgs) (*mcp.CallToolResult, error) {
		list, err := sandbox.All(ctx, sandbox.Of(in.Sandbox, c.Service.ListPreviews))
		if err != nil {
			return nil, err
		}
		out := previewList{Previews: list}
		if len(out.Previews) == 0 {
			out.Previews = []sandbox.Preview{}
			return dialect.Text("No previews. Make one with preview_create.", out), nil
		}
		var b strings.Builder
		for i := range out.Previews {
			b.WriteString(previewLine(&out.Previews[i]) + "\n")
			if b.Len() > maxResultBytes/2 {
				return nil, sandbox.Errorf(sandbox.CodeTooLarge, "there are %d previews; ask for those of one sandbox", len(out.Previews))
			}
		}
		return dialect.Text(b.String(), out), nil
	})
}

type previewLinkArgs struct {
	Sandbox string `json:"sandbox"`
	Port    int    `json:"port"`
	sandbox.PreviewLinkRequest
}

func previewLink() dialect.Tool {
	return dialect.New(toolsetPreviews, &mcp.Tool{
		Name:        "preview_link",
		Title:       "Sign a link to a preview",
		Description: "Return a link that opens a private preview in any browser until it expires. Make the preview first with preview_create.",
		Annotations: annotations("Sign a link to a preview", false, false, false, true),
		InputSchema: input(
			sandboxArg(), portArg(),
			opt("expires_in_seconds", integer("How long the link is good; an hour if left out.", 0, int64(sandbox.MaxPreviewLink/time.Second))),
			opt("path", bounded("Where it leads, with a query if need be; / if left out.", 0, 2048)),
		),
		OutputSchema: output(req("url", text("")), req("expires_at", moment(""))),
	}, func(ctx context.Context, c *dialect.Call, in previewLinkArgs) (*mcp.CallToolResult, error) {
		l, err := c.Service.LinkPreview(ctx, in.Sandbox, in.Port, in.PreviewLinkRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text(fmt.Sprintf("%s\nGood until %s.", l.URL, stamp(l.ExpiresAt)), l), nil
	})
}

type previewDeleteArgs struct {
	Sandbox string `json:"sandbox"`
	Port    int    `json:"port"`
}

type previewDeleted struct {
	Sandbox string `json:"sandbox"`
	Port    int    `json:"port"`
}

func previewDelete() dialect.Tool {
	return dialect.New(toolsetPreviews, &mcp.Tool{
		Name:         "preview_delete",
		Title:        "End a preview",
		Description:  "End a preview, its key and its links, at once; what is open through it is cut. One that is not there is not an error.",
		Annotations:  annotations("End a preview", false, true, true, false),
		InputSchema:  input(sandboxArg(), portArg()),
		OutputSchema: output(req("sandbox", text("")), req("port", count(""))),
	}, func(ctx context.Context, c *dialect.Call, in previewDeleteArgs) (*mcp.CallToolResult, error) {
		if err := c.Service.DeletePreview(ctx, in.Sandbox, in.Port); err != nil {
			return nil, err
		}
		return dialect.Text(fmt.Sprintf("The preview of port %d of %s is gone.", in.Port, in.Sandbox), previewDeleted(in)), nil
	})
}
