package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) snapshotCommand() *cobra.Command {
	return group("snapshot", "Save the state of sandboxes and go back to it",
		a.snapshotCreateCommand(),
		a.snapshotLsCommand(),
		a.make(command{
			Use: "get SNAPSHOT", Short: "Show a snapshot",
			Example: "  cove snapshot get before-upgrade",
			Do:      show(snapshotDetails, byName(sandbox.Service.GetSnapshot)),
		}),
		a.snapshotRestoreCommand(),
		a.make(command{
			Use: "rm SNAPSHOT...", Short: "Delete snapshots",
			Example: "  cove snapshot rm before-upgrade",
			Do:      each(snapshotID, sandbox.Service.DeleteSnapshot),
		}))
}

func snapshotID(s *sandbox.Snapshot) string { return s.ID }

var snapshotDetails = details(func(s *sandbox.Snapshot) []any {
	automatic, label := "", "label"
	if s.Automatic {
		automatic, label = "yes", "before"
	}
	return append([]any{
		"id", s.ID, "name", s.Name, "kind", s.Kind, "team", s.Team, "sandbox", s.SandboxID,
		"automatic", automatic, label, s.Label, "parent", s.ParentID, "template", s.Template,
	}, append(limitFields(s.Resources), "size", bytesText(s.SizeBytes), "stored", s.Stored, "created", stamp(&s.CreatedAt))...)
})

func (a *app) snapshotCreateCommand() *cobra.Command {
	var req sandbox.CreateSnapshotRequest
	filesOnly := false
	return a.make(command{
		Use: "create SANDBOX", Short: "Save the state of a sandbox as a snapshot",
		Example: "  cove snapshot create work --name before-upgrade\n" +
			"  cove create --snapshot before-upgrade",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&req.Name, "name", "", "Name, unique among your snapshots")
			f.StringVar(&req.Label, "label", "", "Description of the snapshot")
			f.BoolVar(&filesOnly, "files-only", false, "Save only the files, without memory and processes")
		},
		Do: show(only(snapshotID), func(ctx context.Context, c *call) (*sandbox.Snapshot, error) {
			if filesOnly {
				req.Kind = sandbox.SnapshotFiles
			}
			return c.client.CreateSnapshot(ctx, c.args[0], req)
		}),
	})
}

func (a *app) snapshotLsCommand() *cobra.Command {
	var req sandbox.ListSnapshotsRequest
	quiet := false
	return a.make(command{
		Use: "ls [SANDBOX]", Short: "List snapshots, newest first",
		Long: "List snapshots, newest first, of all sandboxes or of one. The steps of a sandbox's history are numbered\n" +
			"from its end, as cove snapshot restore --step takes them.",
		Example: "  cove snapshot ls\n  cove snapshot ls -a work",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&req.Automatic, "automatic", "a", false, "Include the automatic snapshots of histories")
			f.BoolVarP(&quiet, "quiet", "q", false, "Print ids only")
		},
		Do: list(quietly(&quiet, snapshotID, func(c *call, items []sandbox.Snapshot) error {
			if req.Automatic {
				return snapshotSteps(c, items)
			}
			return snapshotTable(c, items)
		}), func(ctx context.Context, c *call) ([]sandbox.Snapshot, error) {
			req.Sandbox = c.arg(0)
			return sandbox.All(ctx, paged(&req, &req.Page, c.client.ListSnapshots))
		}),
	})
}

var (
	snapshotHeadings = []string{"ID", "NAME", "SANDBOX", "KIND", "SIZE", "AGE"}
	plainSnapshots   = table(snapshotHeadings, snapshotRow)
	// storedSnapshots is for servers with an object store.
	storedSnapshots = table(append(slices.Clone(snapshotHeadings), "STORED"), func(s *sandbox.Snapshot) []any { return append(snapshotRow(s), s.Stored) })
)

func snapshotTable(c *call, items []sandbox.Snapshot) error {
	if slices.ContainsFunc(items, func(s sandbox.Snapshot) bool { return s.Stored != "" }) {
		return storedSnapshots(c, items)
	}
	return plainSnapshots(c, items)
}

func snapshotRow(s *sandbox.Snapshot) []any {
	return []any{s.ID, s.Name, s.SandboxID, s.Kind, bytesText(s.SizeBytes), age(s.CreatedAt)}
}

// snapshotSteps is snapshotTable with the steps of each sandbox's history.
func snapshotSteps(c *call, items []sandbox.Snapshot) error {
	steps := map[string]int{} // of a sandbox, seen so far
	return table(append(snapshotHeadings, "STEP", "BEFORE"), func(s *sandbox.Snapshot) []any {
		if !s.Automatic {
			return append(snapshotRow(s), "", "")
		}
		steps[s.SandboxID]--
		return append(snapshotRow(s), steps[s.SandboxID], oneLine([]string{s.Label}))
	})(c, items)
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var req sandbox.RestoreRequest
	return a.make(command{
		Use: "restore SANDBOX {SNAPSHOT | --step -N}", Short: "Restore a sandbox to a snapshot",
		Long: "Restore a sandbox, under its own id and name, to a snapshot or to a step of its history. What the\n" +
			"sandbox did since then is lost.",
		Example: "  cove snapshot restore work before-upgrade\n  cove snapshot restore work --step -2",
		Args:    argsBetween(1, 2),
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&req.Step, "step", 0, "Step of the sandbox's history; -1 is the state before its last command")
		},
		Do: show(only(sandboxID), func(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
			if (len(c.args) == 2) == c.cmd.Flags().Changed("step") {
				return nil, c.misuse("restore: name a snapshot or use --step, but not both")
			}
			req.Snapshot = c.arg(1)
			return c.client.RestoreSnapshot(ctx, c.args[0], req)
		}),
	})
}
