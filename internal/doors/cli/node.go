package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/node"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := group("node", "Run sandboxes on several machines",
		a.nodeRunCommand(),
		a.make(command{
			Use: "token", Short: "Make a token with which one machine can join",
			Long:    "Make a token with which one machine can join the server as a node. The token works once, within an hour.",
			Example: "  cove node token",
			Do: show(printJoinToken, func(ctx context.Context, c *call) (*sandbox.JoinToken, error) {
				return c.client.CreateJoinToken(ctx)
			}),
		}),
		a.make(command{
			Use: "ls", Short: "List nodes",
			Example: "  cove node ls",
			Do: list(nodeTable, func(ctx context.Context, c *call) ([]sandbox.Node, error) {
				all, err := c.client.ListNodes(ctx)
				if err != nil {
					return nil, err
				}
				return all.Items, nil
			}),
		}),
		a.nodeDrainCommand(),
		a.make(command{
			Use: "undrain NODE", Short: "Let a node take new sandboxes again",
			Example: "  cove node undrain big",
			Do:      show(nodeDetails, byName(sandbox.Service.UndrainNode)),
		}),
		a.make(command{
			Use: "rm NODE...", Short: "Remove nodes permanently",
			Long: "Remove nodes permanently. The server refuses their certificates, and paused sandboxes and snapshots that are\n" +
				"only on them are gone. A node on which sandboxes run is not removed.",
			Example: "  cove node rm old",
			Do:      remove(sandbox.Service.RemoveNode),
		}))
	cmd.Long = "Run sandboxes on several machines. The server is started with --nodes; each further machine runs\n" +
		"\"cove node run\", with a token the first time."
	cmd.Example = "  cove serve --nodes 0.0.0.0:7780\n" +
		"  cove node token\n" +
		"  cove node run --server cove.example.com:7780 --token covejoin_…"
	return cmd
}

var nodeTable = table([]string{"NAME", "STATE", "SANDBOXES", "DEDICATED TO", "FREE MEMORY", "FREE DISK", "VERSION", "ADDRESS", "LAST SEEN"}, func(n *sandbox.Node) []any {
	return []any{n.Name, n.State, n.Sandboxes, dedicatedTo(n), bytesText(n.FreeMemoryMiB << 20), bytesText(n.FreeDiskMiB << 20), n.Version, n.Address, seen(n)}
})

var nodeDetails = details(func(n *sandbox.Node) []any {
	return []any{
		"name", n.Name, "state", n.State, "sandboxes", n.Sandboxes, "dedicated to", dedicatedTo(n), "free memory", bytesText(n.FreeMemoryMiB << 20), "free disk", bytesText(n.FreeDiskMiB << 20),
		"version", n.Version, "address", n.Address, "last seen", seen(n), "moving", moving(n),
	}
})

// dedicatedTo says which sandbox a dedicated node was given to.
func dedicatedTo(n *sandbox.Node) string {
	if n.Dedicated && n.DedicatedTo == "" {
		return "free"
	}
	return n.DedicatedTo
}

// moving says how far the sandboxes of a node have moved, if they do.
func moving(n *sandbox.Node) string {
	if n.Move == nil {
		return ""
	}
	return fmt.Sprintf("%d to leave, %d paused for it, %d stay", n.Move.Left, n.Move.Moved, len(n.Move.Stay))
}

func seen(n *sandbox.Node) string {
	if n.LastSeenAt == nil {
		return "never"
	}
	return age(*n.LastSeenAt)
}

func printJoinToken(c *call, t *sandbox.JoinToken) error {
	c.say("one machine can join with this token until %s:", stamp(&t.ExpiresAt))
	return c.print(t.Token + "\n")
}

type nodeOptions struct {
	Server, Name, Token, PodToken, Authority, Health, Config string
	DrainOnExit                                              time.Duration
	Dedicated                                                bool
}

// maxDrainOnExit bounds --drain-on-exit.
const maxDrainOnExit = 24 * time.Hour

func (a *app) nodeRunCommand() *cobra.Command {
	var opts nodeOptions
	return a.make(command{
		Use: "run", Short: "Run sandboxes of a server on this machine",
		Long: "Run sandboxes of a server on this machine. The node connects to the server, and nothing connects to the\n" +
			"node. The first time it needs a token of \"cove node token\". Sandboxes keep running when the node stops,\n" +
			"and the next one takes them over, if it is back within the server's lease. With --drain-on-exit they move\n" +
			"to other nodes when the node is stopped with SIGTERM, SIGINT or SIGHUP; a second signal ends it at once.\n\n" +
			"Settings for the network and the user ids of sandboxes are the node's own, from --config and COVE_*\n" +
			"variables, as for \"cove serve\".",
		Example: "  cove node run --server cove.example.com:7780 --token covejoin_… --name big",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&opts.Server, "server", "", "Address of the server for nodes, as host:port; with servers on standby, the addresses of all, separated by commas (COVE_NODE_SERVER)")
			f.StringVar(&opts.Token, "token", "", "Token of \"cove node token\", needed once (COVE_NODE_TOKEN)")
			f.StringVar(&opts.PodToken, "pod-token", "", "In a Pod of Kubernetes: file with a token of the Pod's ServiceAccount, instead of --token (COVE_NODE_POD_TOKEN)")
			f.StringVar(&opts.Authority, "authority", "", "With --pod-token: PEM file with the authority of the server (COVE_NODE_AUTHORITY)")
			f.StringVar(&opts.Name, "name", "", "Name of the node (default the host name)")
			f.DurationVar(&opts.DrainOnExit, "drain-on-exit", 0, "When stopped, first move the sandboxes to other nodes, for at most this time (COVE_NODE_DRAIN_ON_EXIT)")
			f.StringVar(&opts.Health, "health-listen", "", "Address that answers probes at /healthz, and at /readyz while the server drives the node (COVE_NODE_HEALTH_LISTEN)")
			f.BoolVar(&opts.Dedicated, "dedicated", false, "Join as a node for dedicated sandboxes: one at a time, with its forks (COVE_NODE_DEDICATED)")
			f.StringVar(&opts.Config, "config", "", "YAML file with settings (COVE_CONFIG)")
		},
		Do: action{here: true, run: func(ctx context.Context, c *call) error { return c.runNode(ctx, opts) }},
	})
}

func (a *app) runNode(ctx context.Context, opts nodeOptions) error {
	keepMemory()
	or := func(value *string, env string) {
		if *value == "" {
			*value = a.Env(env)
		}
	}
	or(&opts.Server, "COVE_NODE_SERVER")
	or(&opts.Token, "COVE_NODE_TOKEN")
	or(&opts.PodToken, "COVE_NODE_POD_TOKEN")
	or(&opts.Authority, "COVE_NODE_AUTHORITY")
	or(&opts.Health, "COVE_NODE_HEALTH_LISTEN")
	or(&opts.Config, "COVE_CONFIG")
	if text := a.Env("COVE_NODE_DRAIN_ON_EXIT"); text != "" && opts.DrainOnExit == 0 {
		d, err := time.ParseDuration(text)
		if err != nil {
			return sandbox.Errorf(sandbox.CodeInvalid, "COVE_NODE_DRAIN_ON_EXIT %.80q is not a duration; use one such as 5m", text)
		}
		opts.DrainOnExit = d
	}
	if text := a.Env("COVE_NODE_DEDICATED"); text != "" && !opts.Dedicated {
		dedicated, err := strconv.ParseBool(text)
		if err != nil {
			return sandbox.Errorf(sandbox.CodeInvalid, "COVE_NODE_DEDICATED must be true or false, not %.80q", text)
		}
		opts.Dedicated = dedicated
	}
	if opts.DrainOnExit < 0 || opts.DrainOnExit > maxDrainOnExit {
		return sandbox.Errorf(sandbox.CodeInvalid, "--drain-on-exit must be between 0 and %s", maxDrainOnExit)
	}
	if opts.Server == "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "no server is given; give the address on which it listens for nodes, such as --server cove.example.com:7780")
	}
	if opts.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		opts.Name = strings.ToLower(name)
	}
	given := map[string]string{}
	if a.globals.StateDir != "" {
		dir, err := a.stateDir()
		if err != nil {
			return err
		}
		given["state-dir"] = dir
	}
	cfg, err := config.Load(config.Source{File: opts.Config, Env: a.Env, Flags: given})
	if err != nil {
		return err
	}
	return server.RunNode(ctx, cfg, server.NodeDeps{
		Server: opts.Server, Name: opts.Name, Token: opts.Token, Pod: node.PodFiles{Token: opts.PodToken, Authority: opts.Authority}, Version: a.Version, Log: server.NewLog(cfg.Log, a.Stderr),
		DrainOnExit: opts.DrainOnExit, Draining: heedSignals, Health: opts.Health, Dedicated: opts.Dedicated,
		Ready: func(name string) { a.say("node %s is ready: the server at %s drives it", name, opts.Server) },
	})
}
