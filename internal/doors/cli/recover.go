package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) recoverCommand() *cobra.Command {
	ls := list(orphanTable, all(sandbox.Service.ListOrphans))
	bringBack := each(recoveredID, sandbox.Service.RecoverOrphan)
	return a.make(command{
		Use: "recover [ID...]", Short: "Recover data that no record names",
		Long: "Recover data that the server has set aside because no record named it, for example after its database\n" +
			"was lost or replaced by an older one. Without an id, list this data and when it will be deleted: after\n" +
			"7 days unless the server is configured otherwise, or sooner if its disk is nearly full.\n\n" +
			"A volume gets its record back, with its files, id and name. The saved state of a snapshot, a paused\n" +
			"sandbox or a running sandbox becomes a snapshot; sandboxes made from that of a running one have no\n" +
			"network access. Recover volumes before, or together with, the states of sandboxes that used them. The\n" +
			"ids of the new snapshots and volumes are printed. The API key needs the scope admin.",
		Example: "  cove recover\n" +
			"  cove recover vol-6hq2 ckp-x3k9\n" +
			"  cove create --snapshot snap-p2m4",
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			if len(c.args) == 0 {
				return ls.run(ctx, c)
			}
			if err := volumesFirst(ctx, c); err != nil {
				return err
			}
			return bringBack.run(ctx, c)
		}},
	})
}

var orphanTable = table([]string{"ID", "KIND", "NAME", "TEAM", "SANDBOX", "SIZE", "SET ASIDE", "DELETED AT", "REASON"}, func(o *sandbox.Orphan) []any {
	return []any{o.ID, o.Kind, o.Name, o.Team, o.SandboxID, bytesText(o.SizeBytes), stamp(&o.Since), stamp(&o.EndsAt), o.Reason}
})

// volumesFirst moves the volumes among the arguments to the front: checkpoints of
// sandboxes need them.
func volumesFirst(ctx context.Context, c *call) error {
	orphans, err := sandbox.All(ctx, c.client.ListOrphans)
	order := func(id string) int {
		if slices.ContainsFunc(orphans, func(o sandbox.Orphan) bool { return o.ID == id && o.Kind == sandbox.OrphanVolume }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(c.args, func(x, y string) int { return order(x) - order(y) })
	return err
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
