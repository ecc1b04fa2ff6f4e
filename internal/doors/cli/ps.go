package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) psCommand() *cobra.Command {
	var order, signal string
	kill := 0
	processes := list(processTable, func(ctx context.Context, c *call) ([]sandbox.Process, error) {
		items, err := allOf(sandbox.Service.ListProcesses)(ctx, c)
		sortProcesses(items, order)
		return items, err
	})
	return a.make(command{
		Use: "ps SANDBOX", Short: "List the processes in a sandbox, or signal one",
		Example: "  cove ps work\n  cove ps --sort memory work\n  cove ps --kill 42 -s KILL work",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&order, "sort", "pid", "Sort order: pid, cpu or memory")
			f.Var(parsedFlag(&kill, "int", parsePID), "kill", "Send a signal to this process instead of listing")
			f.StringVarP(&signal, "signal", "s", "TERM", "Signal to send with --kill")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			if !slices.Contains([]string{"pid", "cpu", "memory"}, order) {
				return c.misuse("ps: --sort must be pid, cpu or memory")
			}
			if kill != 0 {
				return c.client.SignalProcess(ctx, c.args[0], kill, signal)
			}
			return processes.run(ctx, c)
		}},
	})
}

func parsePID(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, errors.New("not a process id; list the processes with cove ps")
	}
	return int(n), nil
}

func sortProcesses(items []sandbox.Process, by string) {
	slices.SortStableFunc(items, func(a, b sandbox.Process) int {
		order := 0
		switch by {
		case "cpu":
			order = cmp.Compare(b.CPUPercent, a.CPUPercent)
		case "memory":
			order = cmp.Compare(b.MemoryBytes, a.MemoryBytes)
		}
		return cmp.Or(order, a.PID-b.PID)
	})
}

var processHeadings = []string{"PID", "PARENT", "USER", "STATE", "CPU", "MEMORY", "CPU TIME", "JOB", "COMMAND"}

var processTable = table(processHeadings, processRow)

func processRow(p *sandbox.Process) []any {
	used := time.Duration(p.CPUSeconds * float64(time.Second)).Round(10 * time.Millisecond)
	return []any{
		p.PID, p.Parent, p.User, p.State, fmt.Sprintf("%.1f%%", p.CPUPercent), bytesText(p.MemoryBytes), used,
		cmp.Or(p.Job, p.Context), cmp.Or(oneLine(p.Command), "["+p.Name+"]"),
	}
}

func (a *app) envCommand() *cobra.Command {
	var req sandbox.SetEnvRequest
	variables := table([]string{"NAME", "SOURCE", "VALUE"}, func(v *sandbox.EnvVar) []any { return []any{v.Name, v.Source, v.Value} })
	changes := func() bool { return len(req.Set)+len(req.Unset) > 0 || req.Replace }
	return a.make(command{
		Use: "env SANDBOX [NAME=VALUE...]", Short: "Show or change the environment of a sandbox",
		Long: "Show the environment variables that commands and code in a sandbox get, or change them for what starts\n" +
			"from now on. Interpreters get the change with their next run. Placeholders of secrets are not shown.",
		Example: "  cove env work\n  cove env work DEBUG=1 --unset TRACE",
		Flags: func(f *pflag.FlagSet) {
			f.StringArrayVar(&req.Unset, "unset", nil, "Variable to remove (repeatable)")
			f.BoolVar(&req.Replace, "replace", false, "First remove all variables that do not come from the template")
		},
		Do: list(func(c *call, items []sandbox.EnvVar) error {
			if changes() {
				return nil
			}
			return variables(c, items)
		}, func(ctx context.Context, c *call) ([]sandbox.EnvVar, error) {
			for _, arg := range c.args[1:] {
				if err := addPair(&req.Set, arg); err != nil {
					return nil, c.misuse("env: %w; use NAME=VALUE", err)
				}
			}
			return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
				if changes() && p.Cursor == "" { // the answer is the first part
					return c.client.SetEnv(ctx, c.args[0], req)
				}
				return c.client.GetEnv(ctx, c.args[0], p)
			})
		}),
	})
}
