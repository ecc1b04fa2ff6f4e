package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) recoverCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "recover [ID...]", Short: "Bring back what the server has set aside because no record named it",
		Long: "Bring back what the server has set aside because no record named it, as after its database was lost\n" +
			"or replaced by an older one. Without an id, list what there is and when it is removed for good: after\n" +
			"7 days unless the server says otherwise, sooner when its disk is nearly full.\n\n" +
			"A volume gets its record again, with its files, id and name. Kept state becomes a snapshot, whatever\n" +
			"it was: a snapshot, a paused sandbox, or a sandbox that ran, which is not allowed any network then.\n" +
			"Give volumes before or together with the states of sandboxes that had them. The new snapshots and\n" +
			"volumes are printed. The key needs the scope admin.",
		Example: "  cove recover\n" +
			"  cove recover vol-6hq2 ckp-x3k9\n" +
			"  cove create --snapshot snap-p2m4",
		Args: argsBetween(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.runRecoverLs(cmd.Context(), opts)
			}
			return a.runRecover(cmd.Context(), opts, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runRecoverLs(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	list, err := sandbox.All(ctx, c.ListOrphans)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Orphan]{list})
	}
	rows := make([][]string, 0, len(list))
	for _, o := range list {
		rows = append(rows, []string{o.ID, string(o.Kind), o.Name, o.Team, o.SandboxID, bytesText(o.SizeBytes), stamp(&o.Since), stamp(&o.EndsAt), o.Reason})
	}
	return a.printTable([]string{"ID", "KIND", "NAME", "TEAM", "SANDBOX", "SIZE", "SINCE", "ENDS AT", "WHY"}, rows)
}

// runRecover brings volumes back first: states of sandboxes need them.
func (a *app) runRecover(ctx context.Context, opts jsonOption, ids []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	list, err := sandbox.All(ctx, c.ListOrphans)
	closeQuietly(c)
	if err != nil {
		return err
	}
	order := func(id string) int {
		if slices.ContainsFunc(list, func(o sandbox.Orphan) bool { return o.ID == id && o.Kind == sandbox.OrphanVolume }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(ids, func(x, y string) int { return order(x) - order(y) })
	return each(a, opts, ids, recoveredID, func(c *client.Client, id string) (*sandbox.Recovered, error) {
		return c.RecoverOrphan(ctx, id)
	})
}

func recoveredID(r *sandbox.Recovered) string {
	switch {
	case r.Snapshot != nil:
		return r.Snapshot.ID
	case r.Volume != nil:
		return r.Volume.ID
	}
	return r.Orphan.ID
}
