package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type auditOptions struct {
	jsonOption
	Limit int
}

func (o *auditOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.IntVarP(&o.Limit, "limit", "n", 50, "the newest so many events")
}

func (a *app) auditCommand() *cobra.Command {
	var opts auditOptions
	cmd := &cobra.Command{
		Use:     "audit [SANDBOX]",
		Short:   "Show who did what, newest first",
		Example: "  cove audit work\n  cove audit -n 500 --json",
		Args:    argsBetween(0, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runAudit(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runAudit(ctx context.Context, opts auditOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.AuditRequest{Page: sandbox.Page{Limit: opts.Limit}}
	if len(args) == 1 {
		req.SandboxID = args[0]
	}
	part, err := c.Audit(ctx, req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.AuditEvent]{part.Items})
	}
	rows := make([][]string, 0, len(part.Items))
	for _, ev := range part.Items {
		rows = append(rows, []string{stamp(&ev.Time), ev.KeyID, ev.Action, ev.SandboxID, ev.Detail, string(ev.Code)})
	}
	return a.printTable([]string{"TIME", "KEY", "ACTION", "SANDBOX", "DETAIL", "ERROR"}, rows)
}
