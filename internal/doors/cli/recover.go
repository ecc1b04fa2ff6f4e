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

var orphanTable = table([]string{"ID", "KIND", "NAME", "TEAM", "SANDBOX", "SIZE", "SINCE", "ENDS AT", "WHY"}, func(o *sandbox.Orphan) []any {
	return []any{o.ID, o.Kind, o.Name, o.Team, o.SandboxID, bytesText(o.SizeBytes), stamp(&o.Since), stamp(&o.EndsAt), o.Reason}
})

// volumesFirst puts the volumes among the arguments first: states of sandboxes
// need them.
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
