package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/doors/preview"
	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/agentbin"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) doctorCommand() *cobra.Command {
	return a.make(command{
		Use: "doctor", Short: "Check whether this machine can run sandboxes",
		Long: "Check what this machine allows Cove to do for the current user, and show how to fix what is missing. The\n" +
			"exit code is 1 if sandboxes cannot run on this machine.",
		Example: "  cove doctor\n  cove doctor --json",
		Do:      action{here: true, json: true, run: runDoctor},
	})
}

func runDoctor(ctx context.Context, c *call) error {
	dir, err := c.stateDir()
	if err != nil {
		return err
	}
	store, err := c.store()
	if err != nil {
		return err
	}
	objects, err := c.objects()
	if err != nil {
		return err
	}
	report := checkMachine(ctx, dir, store, server.CheckObjects(ctx, objects, c.Env))
	if err := ctx.Err(); err != nil {
		return err
	}
	view := func(c *call, r *sandbox.MachineReport) error { return c.print(doctorText(*r)) }
	if err := shown(c, view, &report, nil); err != nil || report.OK {
		return err
	}
	return &exit{code: exitError}
}

// checkMachine reports what this machine lets this program do with a state directory,
// with the PostgreSQL database at store, unless that is empty, and with its object store,
// of which objects is the result, unless that has no name.
func checkMachine(ctx context.Context, stateDir string, store sandbox.SecretValue, objects sandbox.MachineCheck) sandbox.MachineReport {
	report := machine.Probe(ctx, machine.Config{StateDir: stateDir, ForeignProc: runsc.WorksInForeignProc()})
	if _, err := agentbin.Binary(); err != nil {
		report.Checks = append(report.Checks, sandbox.MachineCheck{
			Name: "agent", Status: sandbox.CheckWarn, Detail: "this program was built without the agent and runs as the agent itself, so sandboxes start more slowly",
			Fix: "build the program with 'make build', which embeds the agent",
		})
	}
	records := server.CheckStore(ctx, stateDir, store)
	report.OK = report.OK && records.Status != sandbox.CheckFail
	report.Checks = append(report.Checks, records)
	if objects.Name != "" {
		report.Checks = append(report.Checks, objects)
	}
	report.Checks = append(report.Checks, gvisorCheck(), packagesCheck(console.Built(), preview.HasViewer(), kernel.HasParser()))
	return report
}

// gvisorCheck reports which gVisor this program has. One without the patches works, but
// loads all memory of a fork at once.
func gvisorCheck() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "gVisor", Status: sandbox.CheckOK, Detail: gvisorText()}
	if !runsc.Patched() {
		c.Detail += ": a fork loads all of its memory; a program built with 'make build' loads only what the fork touches"
	}
	return c
}

// packagesCheck reports which of the parts that are built with Node.js this program
// lacks.
func packagesCheck(pages, viewer, parser bool) sandbox.MachineCheck {
	var missing []string
	if !pages {
		missing = append(missing, "the console")
	}
	if !viewer {
		missing = append(missing, "the live view page")
	}
	if !parser {
		missing = append(missing, "the JavaScript parser, so run_code does not support top-level await and import")
	}
	if len(missing) == 0 {
		return sandbox.MachineCheck{Name: "npm packages", Status: sandbox.CheckOK, Detail: "the console, the live view and the JavaScript parser are included"}
	}
	return sandbox.MachineCheck{
		Name: "npm packages", Status: sandbox.CheckWarn, Detail: "this program was built without " + strings.Join(missing, ", without ") + "; everything else works",
		Fix: "install Node.js 20.19 or later with npm, and build the program with 'make build'",
	}
}

func doctorText(report sandbox.MachineReport) string {
	var b strings.Builder
	for _, c := range report.Checks {
		paragraph(&b, string(c.Status), c.Name, c.Detail)
		switch {
		case c.Fix == "":
		case c.Status == sandbox.CheckOK:
			paragraph(&b, "", "optional", c.Fix)
		default:
			paragraph(&b, "", "fix", c.Fix)
		}
	}
	b.WriteString("\nLimits of a sandbox\n")
	for _, l := range report.Limits {
		status := "held"
		if !l.Enforced {
			status = "weak"
		}
		paragraph(&b, status, l.Name, l.How)
	}
	if report.OK {
		b.WriteString("\nSandboxes can run on this machine.\n")
	} else {
		b.WriteString("\nSandboxes cannot run on this machine.\n")
	}
	return b.String()
}

func paragraph(b *strings.Builder, status, name, text string) {
	b.WriteString("  " + status + strings.Repeat(" ", 6-len(status)) + clean(name) + ": " + clean(text) + "\n")
}
