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
		Use: "fork SANDBOX [flags]", Short: "Copy a sandbox with everything that runs in it",
		Long: "Make children that continue from the sandbox's present instant, with its memory, processes and\n" +
			"files, and print their ids, one a line. All children run, or there are none.",
		Example: "  cove fork work\n" +
			"  cove fork work -n 5 --name idea --lifetime 1h",
		Flags: func(f *pflag.FlagSet) {
			f.IntVarP(&req.Count, "count", "n", 1, fmt.Sprintf("how many children, 1 to %d", sandbox.MaxForks))
			f.StringVar(&req.Name, "name", "", "name of the child; of several, the beginning of their names")
			f.VarP(pairsFlag(&req.Env), "env", "e", "environment added to that of the parent, key=value; may be repeated")
			f.VarP(pairsFlag(&req.Metadata), "metadata", "m", "metadata added to that of the parent, key=value; may be repeated")
			f.Var(optionalSecondsFlag(&req.LifetimeSeconds), "lifetime", "end them after this time (default as the parent was made); 0 is no bound")
			f.Var(optionalSecondsFlag(&req.IdleTimeoutSeconds), "idle-timeout", "end them after this time without use (default as the parent was made); 0 is no bound")
		},
		Do: list(ids(sandboxID), func(ctx context.Context, c *call) ([]sandbox.Sandbox, error) {
			if req.Count < 1 {
				return nil, c.misuse("fork: -n is 1 to %d", sandbox.MaxForks)
			}
			return itemsOf(c.client.Fork(ctx, c.args[0], req))
		}),
	})
}
