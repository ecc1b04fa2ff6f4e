package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type forkOptions struct {
	jsonOption
	Count                 int
	Name                  string
	Env, Metadata         pairs
	Lifetime, IdleTimeout seconds
}

func (o *forkOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.IntVarP(&o.Count, "count", "n", 1, fmt.Sprintf("how many children, 1 to %d", sandbox.MaxForks))
	f.StringVar(&o.Name, "name", "", "name of the child; of several, the beginning of their names")
	f.VarP(&o.Env, "env", "e", "environment added to that of the parent, key=value; may be repeated")
	f.VarP(&o.Metadata, "metadata", "m", "metadata added to that of the parent, key=value; may be repeated")
	f.Var(&o.Lifetime, "lifetime", "end them after this time (default as the parent was made); 0 is no bound")
	f.Var(&o.IdleTimeout, "idle-timeout", "end them after this time without use (default as the parent was made); 0 is no bound")
}

func (a *app) forkCommand() *cobra.Command {
	var opts forkOptions
	cmd := &cobra.Command{
		Use:   "fork SANDBOX [flags]",
		Short: "Copy a sandbox with everything that runs in it",
		Long: "Make children that continue from the sandbox's present instant, with its memory, processes and\n" +
			"files, and print their ids, one a line. All children run, or there are none.",
		Example: "  cove fork work\n" +
			"  cove fork work -n 5 --name idea --lifetime 1h",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.Count < 1 {
				return usageError(cmd, fmt.Errorf("fork: -n is 1 to %d", sandbox.MaxForks))
			}
			return a.runFork(cmd.Context(), opts, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runFork(ctx context.Context, opts forkOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	children, err := c.Fork(ctx, args[0], sandbox.ForkRequest{
		Count: opts.Count, Name: opts.Name, Env: opts.Env, Metadata: opts.Metadata,
		LifetimeSeconds: opts.Lifetime.value, IdleTimeoutSeconds: opts.IdleTimeout.value,
	})
	if err != nil {
		return err
	}
	return printIDs(a, opts.jsonOption, children.Items, sandboxID)
}
