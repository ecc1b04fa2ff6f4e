package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) getCommand() *cobra.Command {
	return a.make(command{
		Use: "get SANDBOX", Short: "Show a sandbox",
		Long:    "Show a sandbox by id or name. Sandboxes that have ended are kept for a day.",
		Example: "  cove get work\n  cove get work --json | jq -r .state",
		Do:      show(sandboxDetails, byName(sandbox.Service.Get)),
	})
}

var sandboxDetails = details(func(sb *sandbox.Sandbox) []any {
	fields := []any{
		"id", sb.ID, "name", sb.Name, "state", sb.State, "reason", sb.Reason, "team", sb.Team, "namespace", sb.Namespace, "template", sb.Template, "node", sb.Node, "dedicated", onlyIf(sb.Dedicated),
		"forked from", sb.ForkedFrom, "snapshot", sb.Snapshot, "made from", madeFromText(sb.MadeFrom), "user", sb.User, "workdir", sb.WorkDir,
	}
	fields = append(fields, limitFields(sb.Resources)...)
	fields = append(fields,
		"metadata", pairText(sb.Metadata), "env", pairText(sb.Env), "lifetime", bound(sb.LifetimeSeconds), "idle timeout", bound(sb.IdleTimeoutSeconds),
		"on timeout", sb.OnTimeout, "paused life", boundIf(sb.PausedLifetimeSeconds), "history", history(sb.History),
		"checkpoint interval", boundIf(sb.CheckpointIntervalSeconds), "last checkpoint", checkpointText(sb.LastCheckpoint), "network", policyText(sb.Network),
		"secrets", pairText(sb.Secrets), "ports", publishedText(sb.Ports), "created", stamp(&sb.CreatedAt), "last active", stamp(&sb.LastActiveAt),
		"expires", stamp(sb.ExpiresAt), "paused until", stamp(sb.PausedExpiresAt), "stored", sb.Stored, "ended", stamp(sb.EndedAt),
		"not enforced", strings.Join(sb.Unenforced, "; "),
	)
	for i := range sb.Moments {
		fields = append(fields, string(sb.Moments[i].Kind), momentText(&sb.Moments[i]))
	}
	return fields
})

// onlyIf returns "yes", or nothing.
func onlyIf(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// madeFromText describes the state that a sandbox began with, or is empty.
func madeFromText(m *sandbox.MadeFrom) string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s, %s", m.Snapshot, m.SandboxID, stamp(&m.StateAt))
}

// momentText describes a moment: when it was, and its details.
func momentText(m *sandbox.Moment) string {
	text := stamp(&m.At)
	switch {
	case m.Kind == sandbox.MomentMerged:
		return fmt.Sprintf("%s, %s of %s", text, m.Merge, m.SandboxID)
	case m.Kind == sandbox.MomentRestored && m.Reason != "":
		return fmt.Sprintf("%s, to the automatic checkpoint of %s, because %s", text, stamp(m.StateAt), m.Reason)
	case m.Kind == sandbox.MomentRestored:
		return fmt.Sprintf("%s, to %s of %s", text, m.Snapshot, stamp(m.StateAt))
	case m.Until != nil:
		return fmt.Sprintf("%s, for %s", text, span(m.Until.Sub(m.At)))
	}
	return text
}

// checkpointText describes the newest automatic checkpoint, and what has failed since.
func checkpointText(c *sandbox.AutomaticCheckpoint) string {
	if c == nil {
		return ""
	}
	text := "none"
	if c.At != nil {
		text = fmt.Sprintf("%s, %s", stamp(c.At), sizeText(c.SizeBytes))
	}
	if c.Stored != "" {
		text += ", " + string(c.Stored)
	}
	if c.Restores > 0 {
		text += fmt.Sprintf(", restores: %d", c.Restores)
	}
	if c.Failure == "" {
		return text
	}
	if c.FailedAt != nil {
		text += "; failed " + stamp(c.FailedAt)
	}
	return text + ": " + c.Failure
}

// limitFields are the limits of a sandbox, for details.
func limitFields(r sandbox.Resources) []any {
	return []any{"vcpus", r.VCPUs, "memory", fmt.Sprintf("%d MiB", r.MemoryMiB), "disk", fmt.Sprintf("%d MiB", r.DiskMiB), "pids", r.MaxPIDs}
}

func bound(n int64) string {
	if n == 0 {
		return "none"
	}
	return (time.Duration(n) * time.Second).String()
}

// boundIf is bound for limits that few sandboxes have: it is empty if there is none.
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
