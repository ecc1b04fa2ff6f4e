package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) killCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use:     "kill SANDBOX...",
		Aliases: []string{"rm"},
		Short:   "End sandboxes and remove their files",
		Long:    "End sandboxes and remove their files. Ending one that has ended is not an error.",
		Example: "  cove kill work\n  cove kill $(cove ls -q)",
		Args:    argsBetween(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runKill(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// runKill tries all of them, and fails with the first error.
func (a *app) runKill(ctx context.Context, opts jsonOption, args []string) error {
	return each(a, opts, args, sandboxID, func(c *client.Client, name string) (*sandbox.Sandbox, error) {
		return c.Kill(ctx, name)
	})
}
