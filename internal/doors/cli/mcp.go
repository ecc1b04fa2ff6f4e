package cli

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/doors/dialect"
	dialects "github.com/cove-sh/cove/internal/doors/dialect/all"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/sandbox"
)

type mcpOptions struct {
	Dialect  string
	Toolsets []string
	Tools    []string
	ReadOnly bool
	Verbose  bool
}

func (o *mcpOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Dialect, "dialect", "", "tools to speak: native, or the name of another product (default native)")
	f.StringSliceVar(&o.Toolsets, "toolsets", nil, "sets of tools to offer, such as core, default or all (default COVE_TOOLSETS, or the dialect's)")
	f.StringSliceVar(&o.Tools, "tools", nil, "single tools to offer, besides the toolsets if any are named (default COVE_TOOLS)")
	f.BoolVar(&o.ReadOnly, "read-only", false, "only tools that change nothing")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log to standard error")
}

func (a *app) mcpCommand() *cobra.Command {
	var opts mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve MCP on standard input and output",
		Long: "Serve the Model Context Protocol on standard input and output, for a client that starts it.\n" +
			"It works on the local daemon, which is started when it is needed, or on the server that --url\n" +
			"names.\n\n" +
			"It works in the namespace that --namespace names, and else in \"default\", where also the command line\n" +
			"makes sandboxes: clients with a namespace of their own neither see nor end what others make. A client of\n" +
			"microsandbox names namespaces itself, and works in all unless one is given.",
		Example: "  cove mcp\n  cove mcp --namespace claude\n  cove mcp --read-only --toolsets core\n  cove mcp --toolsets default,computer --tools network_log\n  COVE_API_KEY=... cove mcp --url https://cove.example.com",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runMCP(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runMCP(ctx context.Context, opts mcpOptions) error {
	d, err := dialects.Find(opts.Dialect)
	if err != nil {
		return err
	}
	if product, ok := d.(dialect.Configured); ok {
		server, key := product.Environment(a.Env)
		a.globals.URL, a.globals.Key = cmp.Or(a.globals.URL, server), cmp.Or(a.globals.Key, key)
	}
	if _, ok := d.(dialect.Toolsetter); ok && len(opts.Toolsets) == 0 && len(opts.Tools) == 0 {
		opts.Toolsets, opts.Tools = dialect.ParseToolsets(a.Env("COVE_TOOLSETS")), dialect.ParseToolsets(a.Env("COVE_TOOLS"))
	}
	a.globals.Namespace = cmp.Or(a.globals.Namespace, dialect.DefaultNamespace(d))
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	// Standard output belongs to the protocol.
	log := slog.New(slog.DiscardHandler)
	if product, ok := d.(dialect.Logged); ok {
		log = slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: product.LogLevel(a.Env)}))
	}
	if opts.Verbose {
		log = slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	svc := sandbox.Service(c)
	if bound, ok := d.(dialect.SessionBound); ok && bound.SessionBound() {
		w := &watchdog{start: a.startWatchdog, log: log}
		defer w.done()
		svc = sessionBound{c, w.made}
	}
	return mcpserver.RunStdio(ctx, mcpserver.Config{
		Service: svc, Version: a.Version, Log: log,
		Dialect: opts.Dialect, Toolsets: opts.Toolsets, Tools: opts.Tools, ReadOnly: opts.ReadOnly, Env: a.Env,
	}, a.Stdin, a.Stdout)
}
