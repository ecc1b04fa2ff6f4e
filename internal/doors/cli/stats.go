package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

// everySandbox stands for all sandboxes.
const everySandbox = "*"

func (a *app) statsCommand() *cobra.Command {
	var since time.Duration
	var req sandbox.StatsSeriesRequest
	series := false
	return a.make(command{
		Use: "stats [SANDBOX...]", Short: "Show resource usage of sandboxes",
		Long: "Show the resource usage of one sandbox, or a line for each of several. Without arguments, show all\n" +
			"running and paused sandboxes. Paused sandboxes stay paused.",
		Example: "  cove stats\n  cove stats work\n  cove stats --series --since 10m work",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&series, "series", false, "Show usage over time, a line for every ten seconds in which the sandbox ran")
			f.DurationVar(&since, "since", sandbox.StatsRetention, "With --series: how far back to go, at most an hour")
			f.IntVar(&req.MaxPoints, "points", 0, "With --series: thin out to this many lines; 0 means all")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			one := len(c.args) == 1 && c.args[0] != everySandbox
			switch {
			case series && !one:
				return c.misuse("stats: --series works on one sandbox; name it")
			case series:
				return list(seriesTable, func(ctx context.Context, c *call) ([]sandbox.StatsPoint, error) {
					from := time.Now().Add(-since)
					req.Since = &from
					return itemsOf(c.client.StatsSeries(ctx, c.args[0], req))
				}).run(ctx, c)
			case one:
				return show(statsDetails, byName(sandbox.Service.Stats)).run(ctx, c)
			}
			return list(statsTable, statsOfMany).run(ctx, c)
		}},
	})
}

// statsOfMany requests what several sandboxes use, or all.
func statsOfMany(ctx context.Context, c *call) ([]sandbox.SandboxStats, error) {
	names := c.args
	if len(names) == 0 || slices.Contains(names, everySandbox) {
		names = []string{""}
	}
	items := []sandbox.SandboxStats{}
	for _, name := range names {
		some, err := allStats(ctx, c.client, sandbox.StatsRequest{Sandbox: name})
		if err != nil {
			return nil, err
		}
		items = append(items, some...)
	}
	return items, nil
}

var statsDetails = details(func(s *sandbox.Stats) []any {
	return []any{
		"cpu time", fmt.Sprintf("%.2f s", s.CPUSeconds),
		"memory", bytesText(s.MemoryBytes) + " of " + bytesText(s.MemoryMaxBytes), "private", bytesText(s.PrivateBytes),
		"disk", bytesText(s.DiskBytes) + " of " + bytesText(s.DiskMaxBytes), "processes", s.Processes,
		"network in", bytesText(s.NetworkInBytes), "network out", bytesText(s.NetworkOutBytes),
	}
})

var seriesTable = table([]string{"TIME", "CPU", "MEMORY", "DISK", "PROCESSES", "NET IN", "NET OUT"}, func(p *sandbox.StatsPoint) []any {
	return []any{
		p.Time.Local().Format(time.TimeOnly), fmt.Sprintf("%.1f%%", p.CPUPercent), bytesText(p.MemoryBytes), bytesText(p.DiskBytes),
		p.Processes, bytesText(p.NetworkInBytes), bytesText(p.NetworkOutBytes),
	}
})

var statsHeadings = []string{"SANDBOX", "NAME", "STATE", "CPU", "MEMORY", "MEMORY LIMIT", "DISK", "PROCESSES", "NET IN", "NET OUT"}

var statsTable = table(statsHeadings, statsRow)

func statsRow(s *sandbox.SandboxStats) []any {
	u := s.Stats
	if u == nil {
		return []any{s.ID, s.Name, s.State, "", "", "", "", "", "", ""}
	}
	return []any{
		s.ID, s.Name, s.State, fmt.Sprintf("%.1f%%", s.CPUPercent), bytesText(u.MemoryBytes), bytesText(u.MemoryMaxBytes),
		bytesText(u.DiskBytes), u.Processes, bytesText(u.NetworkInBytes), bytesText(u.NetworkOutBytes),
	}
}
