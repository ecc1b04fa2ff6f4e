package cli

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) previewCommand() *cobra.Command {
	cmd := group("preview", "Make ports of sandboxes URLs", a.previewCreateCommand(), a.previewLsCommand(), a.previewLinkCommand(), a.previewRmCommand())
	cmd.Long = "Make ports of sandboxes URLs, such as http://3000-sbx-abc.localhost:7777. A preview is private\n" +
		"unless it is made public: it opens with its key or with a signed link."
	cmd.Example = "  cove preview create work 3000\n  cove preview link work 3000 --expires 24h"
	return cmd
}

// portArg takes a port from the command line.
func portArg(cmd *cobra.Command, s string) (int, error) {
	port, err := parsePort(s, 1)
	if err != nil {
		return 0, usageError(cmd, fmt.Errorf("%s: %w", cmd.Name(), err))
	}
	return port, nil
}

type previewCreateOptions struct {
	jsonOption
	Public  bool
	Wake    bool
	NewKey  bool
	Expires seconds
}

func (o *previewCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVar(&o.Public, "public", false, "open to everybody who can reach the server")
	f.BoolVar(&o.Wake, "wake", false, "resume the sandbox, if it is paused, when somebody opens the preview")
	f.BoolVar(&o.NewKey, "new-key", false, "make a new key, which ends the old one and all links")
	f.Var(&o.Expires, "expires", "end the preview after this time (default with the sandbox)")
}

func (a *app) previewCreateCommand() *cobra.Command {
	var opts previewCreateOptions
	cmd := &cobra.Command{
		Use: "create SANDBOX PORT", Short: "Make a port a URL, and print it",
		Long: "Make a port of a sandbox a URL, and print it; a preview that is there for the port already is\n" +
			"changed. The key of a private one is told on standard error, this once.",
		Example: "  cove preview create work 3000\n  cove preview create work 8080 --public --wake",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := portArg(cmd, args[1])
			if err != nil {
				return err
			}
			return a.runPreviewCreate(cmd.Context(), opts, args[0], port)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runPreviewCreate(ctx context.Context, opts previewCreateOptions, name string, port int) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.CreatePreviewRequest{Port: port, Wake: opts.Wake, NewKey: opts.NewKey, Access: sandbox.PreviewPrivate}
	if opts.Public {
		req.Access = sandbox.PreviewPublic
	}
	if opts.Expires.value != nil {
		req.ExpiresInSeconds = *opts.Expires.value
	}
	made, err := c.CreatePreview(ctx, name, req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(made)
	}
	a.warnUnreachable(made.URL)
	switch {
	case made.Key != "":
		a.say("its key, which is not shown again: %s", clean(made.Key))
	case made.Access == sandbox.PreviewPrivate:
		a.say("it opens with its key, or with a link: cove preview link %s %d", clean(name), port)
	}
	return a.print(clean(made.URL) + "\n")
}

// warnUnreachable tells of URLs of a local daemon that nobody can open, since it
// was started for its socket only. Others have a port.
func (a *app) warnUnreachable(address string) {
	u, err := url.Parse(address)
	if err == nil && a.globals.URL == "" && u.Scheme == "http" && u.Port() == "" && strings.HasSuffix(u.Hostname(), ".localhost") {
		a.say("the daemon has no TCP address yet, so this URL does not open; start it with: cove serve")
	}
}

func (a *app) previewLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls [SANDBOX]", Aliases: []string{"list"}, Short: "List previews",
		Example: "  cove preview ls\n  cove preview ls work --json",
		Args:    argsBetween(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runPreviewLs(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runPreviewLs(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	name := ""
	if len(args) == 1 {
		name = args[0]
	}
	previews, err := sandbox.All(ctx, sandbox.Of(name, c.ListPreviews))
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Preview]{previews})
	}
	rows := make([][]string, 0, len(previews))
	for _, p := range previews {
		wake := ""
		if p.Wake {
			wake = "wakes"
		}
		rows = append(rows, []string{p.SandboxID, strconv.Itoa(p.Port), string(p.Access), wake, age(p.CreatedAt), until(p.ExpiresAt), p.URL})
	}
	return a.printTable([]string{"SANDBOX", "PORT", "ACCESS", "WAKE", "AGE", "EXPIRES", "URL"}, rows)
}

type previewLinkOptions struct {
	jsonOption
	Expires seconds
	Path    string
}

func (o *previewLinkOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.Var(&o.Expires, "expires", "how long the link opens the preview (default "+sandbox.DefaultPreviewLink.String()+")")
	f.StringVar(&o.Path, "path", "", "where the link leads (default /)")
}

func (a *app) previewLinkCommand() *cobra.Command {
	var opts previewLinkOptions
	cmd := &cobra.Command{
		Use: "link SANDBOX PORT", Short: "Print a link that opens a private preview until it expires",
		Example: "  cove preview link work 3000\n  cove preview link work 3000 --expires 24h --path /report",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := portArg(cmd, args[1])
			if err != nil {
				return err
			}
			return a.runPreviewLink(cmd.Context(), opts, args[0], port)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runPreviewLink(ctx context.Context, opts previewLinkOptions, name string, port int) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.PreviewLinkRequest{Path: opts.Path}
	if opts.Expires.value != nil {
		req.ExpiresInSeconds = *opts.Expires.value
	}
	link, err := c.LinkPreview(ctx, name, port, req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(link)
	}
	a.warnUnreachable(link.URL)
	return a.print(clean(link.URL) + "\n")
}

func (a *app) previewRmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm SANDBOX PORT...", Aliases: []string{"delete"}, Short: "End previews, their keys and links, at once",
		Example: "  cove preview rm work 3000",
		Args:    argsBetween(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []int
			for _, arg := range args[1:] {
				port, err := portArg(cmd, arg)
				if err != nil {
					return err
				}
				ports = append(ports, port)
			}
			return a.runPreviewRm(cmd.Context(), args[0], ports)
		},
	}
	return cmd
}

func (a *app) runPreviewRm(ctx context.Context, name string, ports []int) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	for _, port := range ports {
		if err := c.DeletePreview(ctx, name, port); err != nil {
			return err
		}
	}
	return nil
}
