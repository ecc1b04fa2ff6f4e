package cli

import (
	"context"

	"github.com/spf13/cobra"

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
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	killed := []sandbox.Sandbox{}
	var first error
	for _, name := range args {
		sb, err := c.Kill(ctx, name)
		switch {
		case err == nil:
			killed = append(killed, *sb)
		case first == nil:
			first = err
		default:
			a.say("%s", explain(err))
		}
	}
	if opts.JSON {
		if err := a.printJSON(itemList[sandbox.Sandbox]{killed}); err != nil {
			return err
		}
		return first
	}
	for _, sb := range killed {
		if err := a.print(sb.ID + "\n"); err != nil {
			return err
		}
	}
	return first
}
