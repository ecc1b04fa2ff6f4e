package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) volumeCommand() *cobra.Command {
	cmd := group("volume", "Keep files beyond the life of sandboxes",
		a.volumeCreateCommand(),
		a.make(command{
			Use: "ls", Short: "List volumes",
			Example: "  cove volume ls",
			Do:      list(volumeTable, all(sandbox.Service.ListVolumes)),
		}),
		a.make(command{
			Use: "get NAME", Short: "Show a volume",
			Example: "  cove volume get data",
			Do:      show(volumeDetails, byName(sandbox.Service.GetVolume)),
		}),
		a.make(command{
			Use: "rm NAME...", Short: "Delete volumes and their files",
			Long:    "Delete volumes and their files. A volume that a sandbox or a snapshot still uses is not deleted.",
			Example: "  cove volume rm data",
			Do:      remove(sandbox.Service.DeleteVolume),
		}))
	cmd.Long = "Keep files beyond the life of sandboxes. Mount volumes when you create a sandbox. Several sandboxes can\n" +
		"mount the same volume at the same time, and see each other's changes."
	cmd.Example = "  cove volume create data --size 10g\n" +
		"  cove create --volume data:/data"
	return cmd
}

var volumeTable = table([]string{"NAME", "ID", "SIZE", "USED", "SANDBOXES", "AGE"}, func(v *sandbox.Volume) []any {
	return []any{v.Name, v.ID, bytesText(v.SizeMiB << 20), bytesText(v.UsedBytes), len(v.Sandboxes), age(v.CreatedAt)}
})

var volumeDetails = details(func(v *sandbox.Volume) []any {
	return []any{
		"id", v.ID, "name", v.Name, "size", bytesText(v.SizeMiB << 20), "used", bytesText(v.UsedBytes),
		"sandboxes", v.Sandboxes, "created", stamp(&v.CreatedAt),
	}
})

func (a *app) volumeCreateCommand() *cobra.Command {
	var req sandbox.CreateVolumeRequest
	return a.make(command{
		Use: "create NAME", Short: "Create a volume",
		Example: "  cove volume create data --size 10g",
		Flags: func(f *pflag.FlagSet) {
			f.Var(sizeFlag(&req.SizeMiB), "size", "Size limit, such as 10g (default 1g)")
		},
		Do: show(volumeDetails, func(ctx context.Context, c *call) (*sandbox.Volume, error) {
			req.Name = c.args[0]
			return c.client.CreateVolume(ctx, req)
		}),
	})
}
