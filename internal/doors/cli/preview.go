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
	cmd := group("preview", "Make ports of sandboxes URLs",
		a.previewCreateCommand(),
		a.make(command{
			Use: "ls [SANDBOX]", Short: "List previews",
			Example: "  cove preview ls\n  cove preview ls work --json",
			Do:      list(previewTable, allOf(sandbox.Service.ListPreviews)),
		}),
		a.previewLinkCommand(),
		a.make(command{
			Use: "rm SANDBOX PORT...", Short: "End previews, their keys and links, at once",
			Example: "  cove preview rm work 3000",
			Do:      action{run: removePreviews},
		}))
	cmd.Long = "Make ports of sandboxes URLs, such as http://3000-sbx-abc.localhost:7777. A preview is private\n" +
		"unless it is made public: it opens with its key or with a signed link."
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
		Use: "create SANDBOX PORT", Short: "Make a port a URL, and print it",
		Long: "Make a port of a sandbox a URL, and print it; a preview that is there for the port already is\n" +
			"changed. The key of a private one is told on standard error, this once.",
		Example: "  cove preview create work 3000\n  cove preview create work 8080 --public --wake",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&public, "public", false, "open to everybody who can reach the server")
			f.BoolVar(&req.Wake, "wake", false, "resume the sandbox, if it is paused, when somebody opens the preview")
			f.BoolVar(&req.NewKey, "new-key", false, "make a new key, which ends the old one and all links")
			f.Var(secondsFlag(&req.ExpiresInSeconds), "expires", "end the preview after this time (default with the sandbox)")
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
		c.say("its key, which is not shown again: %s", clean(made.Key))
	case made.Access == sandbox.PreviewPrivate:
		c.say("it opens with its key, or with a link: cove preview link %s %s", clean(c.args[0]), c.args[1])
	}
	return c.print(clean(made.URL) + "\n")
}

// warnUnreachable tells of URLs of a local daemon that nobody can open, since it
// was started for its socket only. Others have a port.
func (a *app) warnUnreachable(address string) {
	u, err := url.Parse(address)
	if err == nil && a.globals.URL == "" && u.Scheme == "http" && u.Port() == "" && strings.HasSuffix(u.Hostname(), ".localhost") {
		a.say("the daemon has no TCP address yet, so this URL does not open; start it with: cove serve")
	}
}

func (a *app) previewLinkCommand() *cobra.Command {
	var req sandbox.PreviewLinkRequest
	return a.make(command{
		Use: "link SANDBOX PORT", Short: "Print a link that opens a private preview until it expires",
		Example: "  cove preview link work 3000\n  cove preview link work 3000 --expires 24h --path /report",
		Flags: func(f *pflag.FlagSet) {
			f.Var(secondsFlag(&req.ExpiresInSeconds), "expires", "how long the link opens the preview (default "+sandbox.DefaultPreviewLink.String()+")")
			f.StringVar(&req.Path, "path", "", "where the link leads (default /)")
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
