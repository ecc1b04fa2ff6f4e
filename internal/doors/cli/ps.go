package cli

import (
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

type psOptions struct {
	jsonOption
	Sort string
	Kill pid
	Sig  string
}

// AddFlags adds the options' flags.
func (o *psOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Sort, "sort", "pid", "order: pid, cpu or memory")
	f.Var(&o.Kill, "kill", "in place of the list, send a signal to this process")
	f.StringVarP(&o.Sig, "signal", "s", "TERM", "with --kill: the signal")
	o.jsonOption.AddFlags(f)
}

// pid is a flag for a process.
type pid int

// String implements pflag.Value.
func (p *pid) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.Itoa(int(*p))
}

// Type implements pflag.Value.
func (*pid) Type() string { return "int" }

// Set implements pflag.Value.
func (p *pid) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return errors.New("it is no process id; cove ps lists them")
	}
	*p = pid(n)
	return nil
}

func (a *app) psCommand() *cobra.Command {
	var opts psOptions
	cmd := &cobra.Command{
		Use: "ps SANDBOX", Short: "List the processes in a sandbox, or signal one",
		Example: "  cove ps work\n  cove ps --sort memory work\n  cove ps --kill 42 -s KILL work",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runPs(cmd, opts, args[0]) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runPs(cmd *cobra.Command, opts psOptions, name string) error {
	ctx := cmd.Context()
	if !slices.Contains([]string{"pid", "cpu", "memory"}, opts.Sort) {
		return usageError(cmd, fmt.Errorf("ps: --sort is pid, cpu or memory"))
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if cmd.Flags().Changed("kill") {
		return c.SignalProcess(ctx, name, int(opts.Kill), opts.Sig)
	}
	list, err := sandbox.All(ctx, sandbox.Of(name, c.ListProcesses))
	if err != nil {
		return err
	}
	sortProcesses(list, opts.Sort)
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Process]{list})
	}
	rows := make([][]string, 0, len(list))
	for i := range list {
		rows = append(rows, processRow(&list[i]))
	}
	return a.printTable([]string{"PID", "PARENT", "USER", "STATE", "CPU", "MEMORY", "TIME", "OF", "COMMAND"}, rows)
}

func sortProcesses(items []sandbox.Process, by string) {
	slices.SortStableFunc(items, func(a, b sandbox.Process) int {
		switch {
		case by == "cpu" && a.CPUPercent > b.CPUPercent, by == "memory" && a.MemoryBytes > b.MemoryBytes:
			return -1
		case by == "cpu" && a.CPUPercent < b.CPUPercent, by == "memory" && a.MemoryBytes < b.MemoryBytes:
			return 1
		}
		return a.PID - b.PID
	})
}

func processRow(p *sandbox.Process) []string {
	command := oneLine(p.Command)
	if command == "" {
		command = "[" + p.Name + "]"
	}
	of := p.Job
	if of == "" {
		of = p.Context
	}
	used := time.Duration(p.CPUSeconds * float64(time.Second)).Round(10 * time.Millisecond)
	return []string{
		fmt.Sprint(p.PID), fmt.Sprint(p.Parent), p.User, p.State, fmt.Sprintf("%.1f%%", p.CPUPercent), bytesText(p.MemoryBytes), used.String(), of, command,
	}
}

type envOptions struct {
	jsonOption
	Unset   []string
	Replace bool
}

// AddFlags adds the options' flags.
func (o *envOptions) AddFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.Unset, "unset", nil, "variable to remove; may be repeated")
	f.BoolVar(&o.Replace, "replace", false, "first remove all that the sandbox has besides its template's")
	o.jsonOption.AddFlags(f)
}

func (a *app) envCommand() *cobra.Command {
	var opts envOptions
	cmd := &cobra.Command{
		Use: "env SANDBOX [NAME=VALUE...]", Short: "Show or change the environment of a sandbox",
		Long: "Show the environment that commands and code in a sandbox get, or change it for those that start\n" +
			"from now on. Interpreters see it with their next run. Placeholders of secrets are not shown.",
		Example: "  cove env work\n  cove env work DEBUG=1 --unset TRACE",
		Args:    argsBetween(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runEnv(cmd, opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runEnv(cmd *cobra.Command, opts envOptions, args []string) error {
	var set pairs
	for _, arg := range args[1:] {
		if err := set.Set(arg); err != nil {
			return usageError(cmd, fmt.Errorf("env: %w; use NAME=VALUE", err))
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	changes := len(set)+len(opts.Unset) > 0 || opts.Replace
	list, err := sandbox.All(cmd.Context(), func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
		if changes && p.Cursor == "" { // the answer is the first part
			return c.SetEnv(ctx, args[0], sandbox.SetEnvRequest{Set: set, Unset: opts.Unset, Replace: opts.Replace})
		}
		return c.GetEnv(ctx, args[0], p)
	})
	switch {
	case err != nil:
		return err
	case opts.JSON:
		return a.printJSON(itemList[sandbox.EnvVar]{list})
	case changes:
		return nil
	}
	rows := make([][]string, 0, len(list))
	for _, v := range list {
		rows = append(rows, []string{v.Name, v.Source, v.Value})
	}
	return a.printTable([]string{"NAME", "SOURCE", "VALUE"}, rows)
}

// seriesTable prints what a sandbox has used.
func (a *app) seriesTable(ctx context.Context, fetch func(context.Context) (*sandbox.List[sandbox.StatsPoint], error), opts jsonOption) error {
	list, err := fetch(ctx)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.StatsPoint]{list.Items})
	}
	rows := make([][]string, 0, len(list.Items))
	for _, p := range list.Items {
		rows = append(rows, []string{
			p.Time.Local().Format(time.TimeOnly), fmt.Sprintf("%.1f%%", p.CPUPercent), bytesText(p.MemoryBytes), bytesText(p.DiskBytes),
			fmt.Sprint(p.Processes), bytesText(p.NetworkInBytes), bytesText(p.NetworkOutBytes),
		})
	}
	return a.printTable([]string{"TIME", "CPU", "MEMORY", "DISK", "PROCESSES", "NET IN", "NET OUT"}, rows)
}
