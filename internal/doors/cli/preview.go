package cli

import (
	"context"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) previewCommand() *cobra.Command {
	cmd := group("preview", "Serve ports of sandboxes at URLs",
		a.previewCreateCommand(),
		a.make(command{
			Use: "ls [SANDBOX]", Short: "List previews",
			Example: "  cove preview ls\n  cove preview ls work --json",
			Do:      list(previewTable, allOf(sandbox.Service.ListPreviews)),
		}),
		a.previewLinkCommand(),
		a.make(command{
			Use: "rm SANDBOX PORT...", Short: "End previews, with their keys and links",
			Example: "  cove preview rm work 3000",
			Do:      action{run: removePreviews},
		}))
	cmd.Long = "Serve ports of sandboxes at URLs, such as http://3000-sbx-abc.localhost:7777. A preview is private\n" +
		"unless you make it public: it opens only with its key or with a signed link."
	cmd.Example = "  cove preview create work 3000\n  cove preview link work 3000 --expires 24h"
	return cmd
}

var previewTable = table([]string{"SANDBOX", "PORT", "ACCESS", "WAKE", "AGE", "EXPIRES", "URL"}, func(p *sandbox.Preview) []any {
	wake := ""
	if p.Wake {
		wake = "wakes"
	}
	return []any{p.SandboxID, p.Port, p.Access, wake, age(p.CreatedAt), until(p.ExpiresAt), p.URL}
})

// port takes a port from an argument.
func (c *call) port(arg string) (int, error) {
	port, err := parsePort(arg, 1)
	if err != nil {
		return 0, c.misuse("%s: %w", c.cmd.Name(), err)
	}
	return port, nil
}

func (a *app) previewCreateCommand() *cobra.Command {
	req := sandbox.CreatePreviewRequest{Access: sandbox.PreviewPrivate}
	public := false
	return a.make(command{
		Use: "create SANDBOX PORT", Short: "Serve a port at a URL and print the URL",
		Long: "Serve a port of a sandbox at a URL, and print the URL. If the port already has a preview, it is\n" +
			"changed. The key of a private preview is printed once, on standard error.",
		Example: "  cove preview create work 3000\n  cove preview create work 8080 --public --wake",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&public, "public", false, "Let anyone who can reach the server open the preview")
			f.BoolVar(&req.Wake, "wake", false, "Resume the sandbox if it is paused when someone opens the preview")
			f.BoolVar(&req.NewKey, "new-key", false, "Create a new key, which invalidates the old one and all links")
			f.Var(secondsFlag(&req.ExpiresInSeconds), "expires", "End the preview after this time (default when the sandbox ends)")
		},
		Do: show(printNewPreview, func(ctx context.Context, c *call) (_ *sandbox.NewPreview, err error) {
			if req.Port, err = c.port(c.args[1]); err != nil {
				return nil, err
			}
			if public {
				req.Access = sandbox.PreviewPublic
			}
			return c.client.CreatePreview(ctx, c.args[0], req)
		}),
	})
}

func printNewPreview(c *call, made *sandbox.NewPreview) error {
	c.warnUnreachable(made.URL)
	switch {
	case made.Key != "":
		c.say("preview key, shown only once: %s", clean(made.Key))
	case made.Access == sandbox.PreviewPrivate:
		c.say("open the preview with its key, or create a link: cove preview link %s %s", clean(c.args[0]), c.args[1])
	}
	return c.print(clean(made.URL) + "\n")
}

// warnUnreachable warns that nobody can open the URLs of a local daemon that listens
// only on its socket.
func (a *app) warnUnreachable(address string) {
	u, err := url.Parse(address)
	if err == nil && a.globals.URL == "" && u.Scheme == "http" && u.Port() == "" && strings.HasSuffix(u.Hostname(), ".localhost") {
		a.say("this URL does not work yet, because the daemon has no TCP address; start it with: cove serve")
	}
}

func (a *app) previewLinkCommand() *cobra.Command {
	var req sandbox.PreviewLinkRequest
	return a.make(command{
		Use: "link SANDBOX PORT", Short: "Print a link to a private preview",
		Example: "  cove preview link work 3000\n  cove preview link work 3000 --expires 24h --path /report",
		Flags: func(f *pflag.FlagSet) {
			f.Var(secondsFlag(&req.ExpiresInSeconds), "expires", "How long the link is valid (default "+sandbox.DefaultPreviewLink.String()+")")
			f.StringVar(&req.Path, "path", "", "Path that the link opens (default /)")
		},
		Do: show(printLink, func(ctx context.Context, c *call) (*sandbox.PreviewLink, error) {
			port, err := c.port(c.args[1])
			if err != nil {
				return nil, err
			}
			return c.client.LinkPreview(ctx, c.args[0], port, req)
		}),
	})
}

func printLink(c *call, link *sandbox.PreviewLink) error {
	c.warnUnreachable(link.URL)
	return c.print(clean(link.URL) + "\n")
}

func removePreviews(ctx context.Context, c *call) error {
	var ports []int
	for _, arg := range c.args[1:] {
		port, err := c.port(arg)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	for _, port := range ports {
		if err := c.client.DeletePreview(ctx, c.args[0], port); err != nil {
			return err
		}
	}
	return nil
}
