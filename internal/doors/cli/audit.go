package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) auditCommand() *cobra.Command {
	var req sandbox.AuditRequest
	return a.make(command{
		Use: "audit [SANDBOX]", Short: "Show the audit log: who did what, newest first",
		Example: "  cove audit work\n  cove audit -n 500 --json",
		Flags:   func(f *pflag.FlagSet) { f.IntVarP(&req.Limit, "limit", "n", 50, "Show this many events") },
		Do: list(auditTable, func(ctx context.Context, c *call) ([]sandbox.AuditEvent, error) {
			req.SandboxID = c.arg(0)
			return itemsOf(c.client.Audit(ctx, req))
		}),
	})
}

var auditTable = table([]string{"TIME", "KEY", "ACTION", "SANDBOX", "DETAIL", "ERROR"}, func(ev *sandbox.AuditEvent) []any {
	return []any{stamp(&ev.Time), ev.KeyID, ev.Action, ev.SandboxID, ev.Detail, ev.Code}
})
