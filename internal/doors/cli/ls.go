package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type lsOptions struct {
	jsonOption
	All      bool
	Quiet    bool
	States   []string
	Template string
	Metadata pairs
}

func (o *lsOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVarP(&o.All, "all", "a", false, "ended sandboxes too")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "ids only")
	f.StringSliceVar(&o.States, "state", nil, "only these states, such as running,paused")
	f.StringVarP(&o.Template, "template", "T", "", "only of this template")
	f.VarP(&o.Metadata, "metadata", "m", "only with this metadata, key=value; may be repeated")
}

func (a *app) lsCommand() *cobra.Command {
	var opts lsOptions
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List sandboxes, newest first",
		Example: "  cove ls\n  cove ls -a --json | jq -r '.items[].id'\n  cove kill $(cove ls -q -m task=review)",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runLs(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// everyState is what --all lists.
var everyState = []sandbox.State{
	sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused,
	sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed,
}

func (a *app) runLs(ctx context.Context, opts lsOptions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.ListRequest{Template: opts.Template, Metadata: opts.Metadata}
	for _, s := range opts.States {
		req.States = append(req.States, sandbox.State(s))
	}
	if opts.All && len(req.States) == 0 {
		req.States = everyState
	}
	items, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		req.Page = p
		return c.List(ctx, req)
	})
	if err != nil {
		return err
	}
	if opts.JSON || opts.Quiet {
		return printIDs(a, opts.jsonOption, items, sandboxID)
	}
	header := []string{"ID", "NAME", "STATE", "TEMPLATE", "FROM", "AGE", "EXPIRES", "REASON"}
	rows := make([][]string, 0, len(items))
	for _, sb := range items {
		rows = append(rows, []string{sb.ID, sb.Name, string(sb.State), sb.Template, origin(&sb), age(sb.CreatedAt), until(sb.ExpiresAt), sb.Reason})
	}
	// Most people have one namespace, and need not be told which.
	if slices.ContainsFunc(items, func(sb sandbox.Sandbox) bool { return sb.Namespace != sandbox.DefaultNamespace }) {
		const at = 2 // after the name
		header = slices.Insert(header, at, "NAMESPACE")
		for i := range rows {
			rows[i] = slices.Insert(rows[i], at, items[i].Namespace)
		}
	}
	return a.printTable(header, rows)
}

// origin is the sandbox that one was forked from, or else the snapshot that it
// was made from or restored to.
func origin(sb *sandbox.Sandbox) string { return cmp.Or(sb.ForkedFrom, sb.Snapshot) }
