package native

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type processListArgs struct {
	sandboxRef
	Sort  string `json:"sort,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

type processPage struct {
	Processes []processView `json:"processes"`
	Total     int           `json:"total"`
}

type processView struct {
	PID         int     `json:"pid"`
	Parent      int     `json:"parent"`
	User        string  `json:"user"`
	State       string  `json:"state"`
	Command     string  `json:"command"`
	CPUPercent  float64 `json:"cpu_percent"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	MemoryBytes int64   `json:"memory_bytes"`
	JobID       string  `json:"job_id,omitempty"`
	Context     string  `json:"context,omitempty"`
}

func (v *processView) line() string {
	of := cmp.Or(v.JobID, v.Context)
	if of != "" {
		of = " " + of
	}
	return fmt.Sprintf("%d %s %s cpu=%.1f%% memory=%dMiB%s: %s", v.PID, v.User, v.State, v.CPUPercent, v.MemoryBytes>>20, of, oneLine(v.Command))
}

func listProcesses(ctx context.Context, c *dialect.Call, in processListArgs) (*reply[processPage], error) {
	all, err := sandbox.All(ctx, sandbox.Of(in.Sandbox, c.Service.ListProcesses))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b sandbox.Process) int {
		byPID := cmp.Compare(a.PID, b.PID)
		switch in.Sort {
		case "cpu":
			return cmp.Or(cmp.Compare(b.CPUPercent, a.CPUPercent), byPID)
		case "memory":
			return cmp.Or(cmp.Compare(b.MemoryBytes, a.MemoryBytes), byPID)
		}
		return byPID
	})
	out := processPage{Processes: []processView{}, Total: len(all)}
	var b strings.Builder
	for i := range all[:min(in.Limit, len(all))] {
		p := &all[i]
		v := project[processView](p)
		v.User, v.Command, v.JobID = cleanText(p.User), shorten(p.Command), p.Job
		if v.Command == "" {
			v.Command = "[" + p.Name + "]"
		}
		out.Processes = append(out.Processes, v)
		b.WriteString(v.line() + "\n")
	}
	if rest := len(all) - len(out.Processes); rest > 0 {
		fmt.Fprintf(&b, "and %d more\n", rest)
	}
	return answer(b.String(), out)
}

// signalled is a signal to a process.
type signalled struct {
	PID    int    `json:"pid"`
	Signal string `json:"signal"`
}

type processKillArgs struct {
	sandboxRef
	signalled
}

func killProcess(ctx context.Context, c *dialect.Call, in processKillArgs) (*reply[signalled], error) {
	err := c.Service.SignalProcess(ctx, in.Sandbox, in.PID, in.Signal)
	return done(err, fmt.Sprintf("sent %s to process %d", in.Signal, in.PID), in.signalled)
}

type envArgs struct {
	sandboxRef
	sandbox.SetEnvRequest
}

type envView struct {
	Env []sandbox.EnvVar `json:"env"`
}

func changeEnv(ctx context.Context, c *dialect.Call, in envArgs) (*reply[envView], error) {
	changes := len(in.Set)+len(in.Unset) > 0 || in.Replace
	list, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
		if changes && p.Cursor == "" { // SetEnv returns the first page
			return c.Service.SetEnv(ctx, in.Sandbox, in.SetEnvRequest)
		}
		return c.Service.GetEnv(ctx, in.Sandbox, p)
	})
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s=%s (%s)\n", cleanText(e.Name), cleanText(shortenText(e.Value, 1024)), e.Source)
	}
	return answer(b.String(), envView{list})
}

type statsArgs struct {
	Sandbox string `json:"sandbox,omitempty"`
	Minutes int    `json:"minutes,omitempty"`
}

// maxSeriesPoints bounds a series in a result.
const maxSeriesPoints = 30

type statsResult struct {
	Sandboxes []sandbox.SandboxStats `json:"sandboxes"`
	Series    []sandbox.StatsPoint   `json:"series,omitempty"`
}

func getStats(ctx context.Context, c *dialect.Call, in statsArgs) (*reply[statsResult], error) {
	if in.Minutes > 0 && in.Sandbox == "" {
		return nil, invalid("sandbox_stats: a series is of one sandbox; give its id or name")
	}
	list, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.SandboxStats], error) {
		return c.Service.ListStats(ctx, sandbox.StatsRequest{Sandbox: in.Sandbox, Page: p})
	})
	if err != nil {
		return nil, err
	}
	res := statsResult{Sandboxes: list}
	var b strings.Builder
	for i := range list {
		s := &list[i]
		fmt.Fprintf(&b, "%s %s %s", s.ID, s.Name, s.State)
		if u := s.Stats; u != nil {
			fmt.Fprintf(&b, ": cpu=%.1f%% (%.1f s) memory=%d/%dMiB disk=%d/%dMiB processes=%d network in=%d out=%d bytes",
				s.CPUPercent, u.CPUSeconds, u.MemoryBytes>>20, u.MemoryMaxBytes>>20, u.DiskBytes>>20, u.DiskMaxBytes>>20, u.Processes, u.NetworkInBytes, u.NetworkOutBytes)
		}
		b.WriteByte('\n')
	}
	if len(list) == 0 {
		b.WriteString("no sandboxes\n")
	}
	if in.Minutes > 0 {
		since := time.Now().Add(-time.Duration(in.Minutes) * time.Minute)
		series, err := c.Service.StatsSeries(ctx, in.Sandbox, sandbox.StatsSeriesRequest{Since: &since, MaxPoints: maxSeriesPoints})
		if err != nil {
			return nil, err
		}
		res.Series = series.Items
		for _, p := range series.Items {
			fmt.Fprintf(&b, "%s cpu=%.1f%% memory=%dMiB processes=%d\n", p.Time.Format(time.TimeOnly), p.CPUPercent, p.MemoryBytes>>20, p.Processes)
		}
	}
	return answer(b.String(), res)
}
