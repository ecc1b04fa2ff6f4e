package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) forkCommand() *cobra.Command {
	var req sandbox.ForkRequest
	return a.make(command{
		Use: "fork SANDBOX [flags]", Short: "Fork a running sandbox with its memory and processes",
		Long: "Create children that continue from the sandbox's current state, with its memory, processes and files,\n" +
			"and print their ids, one per line. Either all children start, or none.",
		Example: "  cove fork work\n" +
			"  cove fork work -n 5 --name idea --lifetime 1h",
		Flags: func(f *pflag.FlagSet) {
			f.IntVarP(&req.Count, "count", "n", 1, fmt.Sprintf("Number of children, 1 to %d", sandbox.MaxForks))
			f.StringVar(&req.Name, "name", "", "Name of the child; with several, the prefix of their names")
			f.VarP(pairsFlag(&req.Env), "env", "e", "Environment variable added to those of the parent (repeatable)")
			f.VarP(pairsFlag(&req.Metadata), "metadata", "m", "Metadata added to that of the parent (repeatable)")
			f.Var(optionalSecondsFlag(&req.LifetimeSeconds), "lifetime", "End the children after this time; 0 means no limit (default as the parent)")
			f.Var(optionalSecondsFlag(&req.IdleTimeoutSeconds), "idle-timeout", "End the children after this time without use; 0 means no limit (default as the parent)")
		},
		Do: list(ids(sandboxID), func(ctx context.Context, c *call) ([]sandbox.Sandbox, error) {
			if req.Count < 1 {
				return nil, c.misuse("fork: -n must be 1 to %d", sandbox.MaxForks)
			}
			return itemsOf(c.client.Fork(ctx, c.args[0], req))
		}),
	})
}
