package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) snapshotCommand() *cobra.Command {
	return group("snapshot", "Keep states of sandboxes and go back to them",
		a.snapshotCreateCommand(), a.snapshotLsCommand(), a.snapshotGetCommand(), a.snapshotRestoreCommand(), a.snapshotRmCommand())
}

func snapshotID(s *sandbox.Snapshot) string { return s.ID }

type snapshotCreateOptions struct {
	jsonOption
	Name, Label string
	FilesOnly   bool
}

func (o *snapshotCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVar(&o.Name, "name", "", "name, unique among your snapshots")
	f.StringVar(&o.Label, "label", "", "any text to tell it by")
	f.BoolVar(&o.FilesOnly, "files-only", false, "keep the files, without memory and processes")
}

func (a *app) snapshotCreateCommand() *cobra.Command {
	var opts snapshotCreateOptions
	cmd := &cobra.Command{
		Use:   "create SANDBOX",
		Short: "Keep the state of a sandbox, which goes on, and print the snapshot's id",
		Example: "  cove snapshot create work --name before-upgrade\n" +
			"  cove create --snapshot before-upgrade",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runSnapshotCreate(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSnapshotCreate(ctx context.Context, opts snapshotCreateOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.CreateSnapshotRequest{Name: opts.Name, Label: opts.Label}
	if opts.FilesOnly {
		req.Kind = sandbox.SnapshotFiles
	}
	kept, err := c.CreateSnapshot(ctx, args[0], req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(kept)
	}
	return a.print(kept.ID + "\n")
}

type snapshotLsOptions struct {
	jsonOption
	Automatic bool
	Quiet     bool
}

func (o *snapshotLsOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVarP(&o.Automatic, "automatic", "a", false, "the steps of histories too")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "ids only")
}

func (a *app) snapshotLsCommand() *cobra.Command {
	var opts snapshotLsOptions
	cmd := &cobra.Command{
		Use: "ls [SANDBOX]", Aliases: []string{"list"}, Short: "List snapshots, newest first",
		Long: "List snapshots, of one sandbox if it is named, newest first. The steps of a sandbox's history are\n" +
			"numbered from its end, as cove snapshot restore --step takes them.",
		Example: "  cove snapshot ls\n  cove snapshot ls -a work",
		Args:    argsBetween(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSnapshotLs(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSnapshotLs(ctx context.Context, opts snapshotLsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.ListSnapshotsRequest{Automatic: opts.Automatic}
	if len(args) == 1 {
		req.Sandbox = args[0]
	}
	items, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Snapshot], error) {
		req.Page = p
		return c.ListSnapshots(ctx, req)
	})
	switch {
	case err != nil:
		return err
	case opts.JSON, opts.Quiet:
		return printIDs(a, opts.jsonOption, items, snapshotID)
	}
	headings := []string{"ID", "NAME", "SANDBOX", "KIND", "SIZE", "AGE"}
	if opts.Automatic {
		headings = append(headings, "STEP", "BEFORE")
	}
	steps := map[string]int{} // of a sandbox, seen so far
	rows := make([][]string, 0, len(items))
	for _, s := range items {
		row := []string{s.ID, s.Name, s.SandboxID, string(s.Kind), bytesText(s.SizeBytes), age(s.CreatedAt)}
		if opts.Automatic {
			step, before := "", ""
			if s.Automatic {
				steps[s.SandboxID]--
				step, before = fmt.Sprint(steps[s.SandboxID]), oneLine([]string{s.Label})
			}
			row = append(row, step, before)
		}
		rows = append(rows, row)
	}
	return a.printTable(headings, rows)
}

func (a *app) snapshotGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get SNAPSHOT", Aliases: []string{"inspect"}, Short: "Show a snapshot",
		Example: "  cove snapshot get before-upgrade",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSnapshotGet(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSnapshotGet(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	s, err := c.GetSnapshot(ctx, args[0])
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(s)
	}
	automatic, label := "", "label"
	if s.Automatic {
		automatic, label = "yes", "before"
	}
	return a.fields(
		"id", s.ID, "name", s.Name, "kind", string(s.Kind), "team", s.Team, "sandbox", s.SandboxID,
		"automatic", automatic, label, s.Label, "parent", s.ParentID, "template", s.Template,
		"vcpus", fmt.Sprint(s.Resources.VCPUs), "memory", fmt.Sprintf("%d MiB", s.Resources.MemoryMiB),
		"disk", fmt.Sprintf("%d MiB", s.Resources.DiskMiB), "pids", fmt.Sprint(s.Resources.MaxPIDs),
		"size", bytesText(s.SizeBytes), "created", stamp(&s.CreatedAt),
	)
}

type snapshotRestoreOptions struct {
	jsonOption
	Step int
}

func (o *snapshotRestoreOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.IntVar(&o.Step, "step", 0, "step of the sandbox's history: -1 is before its last command")
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var opts snapshotRestoreOptions
	cmd := &cobra.Command{
		Use:   "restore SANDBOX {SNAPSHOT | --step -N}",
		Short: "Put a sandbox back into a kept state",
		Long: "Put a sandbox back into the state of a snapshot, or of a step of its history, under its own id and\n" +
			"name. What it did since then is lost.",
		Example: "  cove snapshot restore work before-upgrade\n  cove snapshot restore work --step -2",
		Args:    argsBetween(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == cmd.Flags().Changed("step") {
				return usageError(cmd, errors.New("restore: give either a snapshot or --step"))
			}
			return a.runSnapshotRestore(cmd.Context(), opts, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSnapshotRestore(ctx context.Context, opts snapshotRestoreOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.RestoreRequest{Step: opts.Step}
	if len(args) == 2 {
		req.Snapshot = args[1]
	}
	sb, err := c.RestoreSnapshot(ctx, args[0], req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(sb)
	}
	return a.print(sb.ID + "\n")
}

func (a *app) snapshotRmCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "rm SNAPSHOT...", Aliases: []string{"delete"}, Short: "Remove snapshots; sandboxes made from them are unharmed",
		Example: "  cove snapshot rm before-upgrade",
		Args:    argsBetween(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSnapshotRm(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// runSnapshotRm tries all of them, and fails with the first error.
func (a *app) runSnapshotRm(ctx context.Context, opts jsonOption, args []string) error {
	return each(a, opts, args, snapshotID, func(c *client.Client, name string) (*sandbox.Snapshot, error) {
		return c.DeleteSnapshot(ctx, name)
	})
}
