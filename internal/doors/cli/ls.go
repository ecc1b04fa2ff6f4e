package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) lsCommand() *cobra.Command {
	var req sandbox.ListRequest
	var states []string
	ended, quiet := false, false
	return a.make(command{
		Use: "ls [flags]", Short: "List sandboxes, newest first",
		Example: "  cove ls\n  cove ls -a --json | jq -r '.items[].id'\n  cove kill $(cove ls -q -m task=review)",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&ended, "all", "a", false, "Include sandboxes that have ended")
			f.BoolVarP(&quiet, "quiet", "q", false, "Print ids only")
			f.StringSliceVar(&states, "state", nil, "Show only these states, such as running,paused")
			f.StringVarP(&req.Template, "template", "T", "", "Show only sandboxes of this template")
			f.VarP(pairsFlag(&req.Metadata), "metadata", "m", "Show only sandboxes with this metadata (repeatable)")
		},
		Do: list(quietly(&quiet, sandboxID, sandboxTable), func(ctx context.Context, c *call) ([]sandbox.Sandbox, error) {
			for _, s := range states {
				req.States = append(req.States, sandbox.State(s))
			}
			if ended && len(req.States) == 0 {
				req.States = everyState
			}
			return sandbox.All(ctx, paged(&req, &req.Page, c.client.List))
		}),
	})
}

// everyState has the states that --all lists.
var everyState = []sandbox.State{
	sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused,
	sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed,
}

// sandboxTable has a column for the namespace only if a sandbox is not in the default
// one: most users have no other.
func sandboxTable(c *call, items []sandbox.Sandbox) error {
	headings := []string{"ID", "NAME", "STATE", "TEMPLATE", "FROM", "AGE", "EXPIRES", "REASON"}
	row := func(sb *sandbox.Sandbox) []any {
		return []any{sb.ID, sb.Name, sb.State, sb.Template, origin(sb), age(sb.CreatedAt), until(sb.ExpiresAt), sb.Reason}
	}
	if !slices.ContainsFunc(items, func(sb sandbox.Sandbox) bool { return sb.Namespace != sandbox.DefaultNamespace }) {
		return table(headings, row)(c, items)
	}
	const at = 2 // after the name
	return table(slices.Insert(headings, at, "NAMESPACE"), func(sb *sandbox.Sandbox) []any {
		return slices.Insert(row(sb), at, any(sb.Namespace))
	})(c, items)
}

// origin returns the parent of a fork, or else the snapshot that a sandbox was made
// from or restored to.
func origin(sb *sandbox.Sandbox) string { return cmp.Or(sb.ForkedFrom, sb.Snapshot) }
