package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) volumeCommand() *cobra.Command {
	cmd := group("volume", "Keep files beyond the life of sandboxes",
		a.volumeCreateCommand(), a.volumeLsCommand(), a.volumeGetCommand(), a.volumeRmCommand())
	cmd.Long = "Keep files beyond the life of sandboxes. A sandbox gets volumes when it is created; several may\n" +
		"have the same one at a time, and see what the others write."
	cmd.Example = "  cove volume create data --size 10g\n" +
		"  cove create --volume data:/data"
	return cmd
}

type volumeCreateOptions struct {
	jsonOption
	Size mebibytes
}

func (o *volumeCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.Var(&o.Size, "size", "what it may hold, such as 10g (default 1g)")
}

func (a *app) volumeCreateCommand() *cobra.Command {
	var opts volumeCreateOptions
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a volume",
		Example: "  cove volume create data --size 10g",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runVolumeCreate(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runVolumeCreate(ctx context.Context, opts volumeCreateOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	v, err := c.CreateVolume(ctx, sandbox.CreateVolumeRequest{Name: args[0], SizeMiB: int64(opts.Size)})
	if err != nil {
		return err
	}
	return a.printVolume(v, opts.jsonOption)
}

func (a *app) printVolume(v *sandbox.Volume, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(v)
	}
	return a.fields(
		"id", v.ID, "name", v.Name, "size", bytesText(v.SizeMiB<<20), "used", bytesText(v.UsedBytes),
		"sandboxes", strings.Join(v.Sandboxes, " "), "created", stamp(&v.CreatedAt),
	)
}

func (a *app) volumeLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List volumes",
		Example: "  cove volume ls",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runVolumeLs(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runVolumeLs(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	volumes, err := sandbox.All(ctx, c.ListVolumes)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Volume]{volumes})
	}
	rows := make([][]string, 0, len(volumes))
	for _, v := range volumes {
		rows = append(rows, []string{v.Name, v.ID, bytesText(v.SizeMiB << 20), bytesText(v.UsedBytes), fmt.Sprint(len(v.Sandboxes)), age(v.CreatedAt)})
	}
	return a.printTable([]string{"NAME", "ID", "SIZE", "USED", "SANDBOXES", "AGE"}, rows)
}

func (a *app) volumeGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a volume, with what it holds now",
		Example: "  cove volume get data",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runVolumeGet(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runVolumeGet(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	v, err := c.GetVolume(ctx, args[0])
	if err != nil {
		return err
	}
	return a.printVolume(v, opts)
}

func (a *app) volumeRmCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"delete"}, Short: "Delete volumes with their files",
		Long:    "Delete volumes with their files. One that a living sandbox or a snapshot has stays.",
		Example: "  cove volume rm data",
		Args:    argsBetween(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(a, opts, args, func(n *named) string { return n.Name }, func(c *client.Client, name string) (*named, error) {
				return &named{name}, c.DeleteVolume(cmd.Context(), name)
			})
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}
