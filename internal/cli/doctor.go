package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
)

// DoctorReport says what this machine lets Cove do.
type DoctorReport struct {
	// OK is false when sandboxes cannot run at all.
	OK     bool          `json:"ok"`
	Checks []DoctorCheck `json:"checks"`
}

// DoctorCheck is one thing that was looked at.
type DoctorCheck struct {
	Name string `json:"name"`
	// Status is "ok", "warn" (something is missing) or "fail" (nothing works
	// without).
	Status string `json:"status"`
	// Detail says what was found, and Fix what to do about it.
	Detail string `json:"detail,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

func (a *app) doctorCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "doctor", Short: "Tell what this machine lets Cove do, and how to get what is missing",
		Long:    "Tell what this machine lets Cove do, and how to get what is missing. The exit code is 1 when\nsandboxes cannot run here at all.",
		Example: "  cove doctor\n  cove doctor --json",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runDoctor(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runDoctor(ctx context.Context, opts jsonOption) error {
	report, err := a.Doctor(ctx, a.Env)
	if err != nil {
		return err
	}
	switch {
	case opts.JSON:
		err = a.printJSON(report)
	default:
		err = a.print(doctorText(report))
	}
	if err == nil && !report.OK {
		err = &exit{code: exitError}
	}
	return err
}

func doctorText(report DoctorReport) string {
	var b strings.Builder
	for _, c := range report.Checks {
		b.WriteString(strings.ToUpper(c.Status) + "\t" + clean(c.Name))
		if c.Detail != "" {
			b.WriteString(": " + clean(c.Detail))
		}
		b.WriteByte('\n')
		if c.Fix != "" && c.Status != "ok" {
			b.WriteString("\t-> " + clean(c.Fix) + "\n")
		}
	}
	return b.String()
}
