package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type statsOptions struct {
	jsonOption
	Series bool
	Since  time.Duration
	Points int
}

// AddFlags adds the options' flags.
func (o *statsOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Series, "series", false, "show what it has used, a line for every ten seconds in which it ran")
	f.DurationVar(&o.Since, "since", sandbox.StatsRetention, "with --series: how far back, at most an hour")
	f.IntVar(&o.Points, "points", 0, "with --series: thin it out to so many lines; 0 is all")
	o.jsonOption.AddFlags(f)
}

func (a *app) statsCommand() *cobra.Command {
	var opts statsOptions
	cmd := &cobra.Command{
		Use:   "stats [SANDBOX...]",
		Short: "Show what running sandboxes use, or what one has used",
		Long: "Show what a running sandbox uses, or has used, or a line for each of several: of all, when none is\n" +
			"named. Those that are paused stay so.",
		Example: "  cove stats\n  cove stats work\n  cove stats --series --since 10m work",
		Args:    argsBetween(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{everySandbox}
			}
			if one := len(args) == 1 && args[0] != everySandbox; one {
				return a.runStats(cmd.Context(), opts, args)
			}
			if opts.Series {
				return usageError(cmd, errors.New("stats: --series is of one sandbox"))
			}
			return a.runStatsOfMany(cmd.Context(), opts, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// everySandbox stands for all sandboxes.
const everySandbox = "*"

// runStatsOfMany shows several sandboxes, or all.
func (a *app) runStatsOfMany(ctx context.Context, opts statsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if slices.Contains(args, everySandbox) {
		args = []string{""}
	}
	items := []sandbox.SandboxStats{}
	for _, name := range args {
		list, err := allStats(ctx, c, sandbox.StatsRequest{Sandbox: name})
		if err != nil {
			return err
		}
		items = append(items, list...)
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.SandboxStats]{items})
	}
	var b bytes.Buffer
	if err := statsTable(&b, items); err != nil {
		return err
	}
	return a.print(b.String())
}

func (a *app) runStats(ctx context.Context, opts statsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if opts.Series {
		since := time.Now().Add(-opts.Since)
		return a.seriesTable(ctx, func(ctx context.Context) (*sandbox.List[sandbox.StatsPoint], error) {
			return c.StatsSeries(ctx, args[0], sandbox.StatsSeriesRequest{Since: &since, MaxPoints: opts.Points})
		}, opts.jsonOption)
	}
	s, err := c.Stats(ctx, args[0])
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(s)
	}
	return a.fields(
		"processor", fmt.Sprintf("%.2f s", s.CPUSeconds),
		"memory", bytesText(s.MemoryBytes)+" of "+bytesText(s.MemoryMaxBytes),
		"private", bytesText(s.PrivateBytes),
		"disk", bytesText(s.DiskBytes)+" of "+bytesText(s.DiskMaxBytes),
		"processes", fmt.Sprint(s.Processes),
		"network in", bytesText(s.NetworkInBytes),
		"network out", bytesText(s.NetworkOutBytes),
	)
}
