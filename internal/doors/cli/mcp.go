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

func (a *app) mcpCommand() *cobra.Command {
	var cfg mcpserver.Config
	verbose := false
	return a.make(command{
		Use: "mcp [flags]", Short: "Run an MCP server on standard input and output",
		Long: "Run a Model Context Protocol server on standard input and output, for an MCP client to start. It uses\n" +
			"the local daemon, which is started if necessary, or the server of --url.\n\n" +
			"It works in the namespace of --namespace, by default in \"default\", where the command line also creates\n" +
			"sandboxes. Clients with different namespaces cannot see or end each other's sandboxes. A microsandbox\n" +
			"client names namespaces itself and can use all of them, unless --namespace limits it to one.",
		Example: "  cove mcp\n  cove mcp --namespace claude\n  cove mcp --read-only --toolsets core\n  cove mcp --toolsets default,computer --tools network_log\n  COVE_API_KEY=... cove mcp --url https://cove.example.com",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&cfg.Dialect, "dialect", "", "Tools to offer: native, or those of another product, by its name (default native)")
			f.StringSliceVar(&cfg.Toolsets, "toolsets", nil, "Toolsets to offer, such as core, default or all (default COVE_TOOLSETS, or the dialect's)")
			f.StringSliceVar(&cfg.Tools, "tools", nil, "Single tools to offer, in addition to the toolsets named (default COVE_TOOLS)")
			f.BoolVar(&cfg.ReadOnly, "read-only", false, "Offer only tools that change nothing")
			f.BoolVarP(&verbose, "verbose", "v", false, "Log to standard error")
		},
		// The dialect may choose the server, so the client is made later.
		Do: action{here: true, run: func(ctx context.Context, c *call) error { return c.runMCP(ctx, cfg, verbose) }},
	})
}

func (a *app) runMCP(ctx context.Context, cfg mcpserver.Config, verbose bool) error {
	d, err := dialects.Find(cfg.Dialect)
	if err != nil {
		return err
	}
	if product, ok := d.(dialect.Configured); ok {
		server, key := product.Environment(a.Env)
		a.globals.URL, a.globals.Key = cmp.Or(a.globals.URL, server), cmp.Or(a.globals.Key, key)
	}
	if _, ok := d.(dialect.Toolsetter); ok && len(cfg.Toolsets) == 0 && len(cfg.Tools) == 0 {
		cfg.Toolsets, cfg.Tools = dialect.ParseToolsets(a.Env("COVE_TOOLSETS")), dialect.ParseToolsets(a.Env("COVE_TOOLS"))
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
	if verbose {
		log = slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	svc := sandbox.Service(c)
	if bound, ok := d.(dialect.SessionBound); ok && bound.SessionBound() {
		w := &watchdog{start: a.startWatchdog, log: log}
		defer w.done()
		svc = sessionBound{c, w.made}
	}
	cfg.Service, cfg.Version, cfg.Log, cfg.Env = svc, a.Version, log, a.Env
	return mcpserver.RunStdio(ctx, cfg, a.Stdin, a.Stdout)
}
