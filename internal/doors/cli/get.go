package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) getCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use:     "get SANDBOX",
		Short:   "Show a sandbox",
		Long:    "Show a sandbox, by id or name; an ended one for a day.",
		Example: "  cove get work\n  cove get work --json | jq -r .state",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runGet(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runGet(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	sb, err := c.Get(ctx, args[0])
	if err != nil {
		return err
	}
	return a.printSandbox(sb, opts)
}

func (a *app) printSandbox(sb *sandbox.Sandbox, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(sb)
	}
	return a.fields(
		"id", sb.ID,
		"name", sb.Name,
		"state", string(sb.State),
		"reason", sb.Reason,
		"team", sb.Team,
		"namespace", sb.Namespace,
		"template", sb.Template,
		"forked from", sb.ForkedFrom,
		"snapshot", sb.Snapshot,
		"user", sb.User,
		"workdir", sb.WorkDir,
		"vcpus", fmt.Sprint(sb.Resources.VCPUs),
		"memory", fmt.Sprintf("%d MiB", sb.Resources.MemoryMiB),
		"disk", fmt.Sprintf("%d MiB", sb.Resources.DiskMiB),
		"pids", fmt.Sprint(sb.Resources.MaxPIDs),
		"metadata", pairText(sb.Metadata),
		"env", pairText(sb.Env),
		"lifetime", bound(sb.LifetimeSeconds),
		"idle timeout", bound(sb.IdleTimeoutSeconds),
		"on timeout", string(sb.OnTimeout),
		"paused life", boundIf(sb.PausedLifetimeSeconds),
		"history", history(sb.History),
		"network", policyText(sb.Network),
		"secrets", secretsText(sb.Secrets),
		"ports", publishedText(sb.Ports),
		"created", stamp(&sb.CreatedAt),
		"last active", stamp(&sb.LastActiveAt),
		"paused", stamp(sb.PausedAt),
		"expires", stamp(sb.ExpiresAt),
		"paused until", stamp(sb.PausedExpiresAt),
		"ended", stamp(sb.EndedAt),
		"not enforced", strings.Join(sb.Unenforced, "; "),
	)
}

func bound(n int64) string {
	if n == 0 {
		return "none"
	}
	return (time.Duration(n) * time.Second).String()
}

// boundIf is bound of what few sandboxes have.
func boundIf(n int64) string {
	if n == 0 {
		return ""
	}
	return bound(n)
}

func history(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d steps", n)
}

func pairText(m map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, key+"="+m[key])
	}
	return strings.Join(out, " ")
}
