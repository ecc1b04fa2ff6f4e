package native

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func number(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "number", Description: description}
}

type processListArgs struct {
	Sandbox string `json:"sandbox"`
	Sort    string `json:"sort"`
	Limit   int    `json:"limit"`
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

func processList() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:        "process_list",
		Title:       "List processes",
		Description: "List the processes in a sandbox with what they use and the job or interpreter that they belong to.",
		Annotations: annotations("List processes", true, false, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("sort", with(oneOf("", "pid", "cpu", "memory"), "pid")),
			opt("limit", with(integer("Most processes to return.", 1, 500), 50)),
		),
		OutputSchema: output(
			req("processes", array("", object("",
				req("pid", count("")), req("parent", count("")), req("user", text("")),
				req("state", text("The kernel's letter, such as R, S or Z.")), req("command", text("Shortened.")),
				req("cpu_percent", number("Of one processor, now.")), req("cpu_seconds", number("")), req("memory_bytes", count("")),
				opt("job_id", text("")), opt("context", text("Interpreter, such as python/default.")),
			), 0, 0)),
			req("total", count("")),
		),
	}, runProcessList)
}

func runProcessList(ctx context.Context, c *dialect.Call, in processListArgs) (*mcp.CallToolResult, error) {
	all, err := sandbox.All(ctx, sandbox.Of(in.Sandbox, c.Service.ListProcesses))
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b sandbox.Process) int {
		switch {
		case in.Sort == "cpu" && a.CPUPercent != b.CPUPercent:
			return sign(b.CPUPercent - a.CPUPercent)
		case in.Sort == "memory" && a.MemoryBytes != b.MemoryBytes:
			return sign(float64(b.MemoryBytes - a.MemoryBytes))
		}
		return a.PID - b.PID
	})
	views := []processView{}
	var b strings.Builder
	for i := range all[:min(in.Limit, len(all))] {
		p := &all[i]
		v := processView{
			PID: p.PID, Parent: p.Parent, User: cleanText(p.User), State: p.State, Command: shorten(p.Command),
			CPUPercent: p.CPUPercent, CPUSeconds: p.CPUSeconds, MemoryBytes: p.MemoryBytes, JobID: p.Job, Context: p.Context,
		}
		if v.Command == "" {
			v.Command = "[" + p.Name + "]"
		}
		views = append(views, v)
		b.WriteString(v.line() + "\n")
	}
	if len(all) > len(views) {
		fmt.Fprintf(&b, "and %d more\n", len(all)-len(views))
	}
	return dialect.Text(b.String(), struct {
		Processes []processView `json:"processes"`
		Total     int           `json:"total"`
	}{views, len(all)}), nil
}

func sign(f float64) int {
	if f < 0 {
		return -1
	}
	return 1
}

type processKillArgs struct {
	Sandbox string `json:"sandbox"`
	PID     int    `json:"pid"`
	Signal  string `json:"signal"`
}

func processKill() dialect.Tool {
	return dialect.New(toolsetJobs, &mcp.Tool{
		Name:        "process_kill",
		Title:       "Signal a process",
		Description: "Send a signal to one process in a sandbox. For a job and all of its processes use job_stop.",
		Annotations: annotations("Signal a process", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			req("pid", integer("From process_list.", 2, 1<<30)),
			opt("signal", with(oneOf("", "TERM", "KILL", "INT", "HUP", "QUIT", "STOP", "CONT", "USR1", "USR2"), "TERM")),
		),
		OutputSchema: output(req("pid", count("")), req("signal", text(""))),
	}, func(ctx context.Context, c *dialect.Call, in processKillArgs) (*mcp.CallToolResult, error) {
		if err := c.Service.SignalProcess(ctx, in.Sandbox, in.PID, in.Signal); err != nil {
			return nil, err
		}
		return dialect.Text(fmt.Sprintf("sent %s to process %d", in.Signal, in.PID), struct {
			PID    int    `json:"pid"`
			Signal string `json:"signal"`
		}{in.PID, in.Signal}), nil
	})
}

type envArgs struct {
	Sandbox string            `json:"sandbox"`
	Set     map[string]string `json:"set"`
	Unset   []string          `json:"unset"`
	Replace bool              `json:"replace"`
}

func sandboxEnv() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:        "sandbox_env",
		Title:       "Environment",
		Description: "Change the environment variables that commands and code in a sandbox get from now on, and return them all; without set and unset only return them. Do not put credentials here.",
		Annotations: annotations("Environment", false, true, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("set", envSchema("Variables to add or replace.")),
			opt("unset", array("Names to remove.", bounded("", 1, 1024), 0, sandbox.MaxEnvPairs)),
			opt("replace", with(boolean("First remove all that the sandbox has besides its template's."), false)),
		),
		OutputSchema: output(req("env", array("By name.", object("",
			req("name", text("")), req("value", text("")), req("source", oneOf("", "template", "sandbox", "secret"))), 0, 0))),
	}, func(ctx context.Context, c *dialect.Call, in envArgs) (*mcp.CallToolResult, error) {
		changes := len(in.Set)+len(in.Unset) > 0 || in.Replace
		list, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
			if changes && p.Cursor == "" { // the answer is the first part
				return c.Service.SetEnv(ctx, in.Sandbox, sandbox.SetEnvRequest{Set: in.Set, Unset: in.Unset, Replace: in.Replace})
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
		return dialect.Text(b.String(), struct {
			Env []sandbox.EnvVar `json:"env"`
		}{list}), nil
	})
}

type statsArgs struct {
	Sandbox string `json:"sandbox"`
	Minutes int    `json:"minutes"`
}

// maxSeriesPoints bounds a series in a result.
const maxSeriesPoints = 30

type statsResult struct {
	Sandboxes []sandbox.SandboxStats `json:"sandboxes"`
	Series    []sandbox.StatsPoint   `json:"series,omitempty"`
}

func sandboxStats() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:        "sandbox_stats",
		Title:       "Statistics",
		Description: "Tell what one sandbox, or all, use now: processor, memory, disk, processes, network. With minutes also the past of one, in up to 30 points. Paused sandboxes stay paused.",
		Annotations: annotations("Statistics", true, false, true, false),
		InputSchema: input(
			opt("sandbox", bounded("Id or name; all sandboxes if left out.", 0, 128)),
			opt("minutes", integer("How far back the series of one sandbox goes.", 1, int64(sandbox.StatsRetention/time.Minute))),
		),
		OutputSchema: output(
			req("sandboxes", array("", object("",
				req("id", text("")), opt("name", text("")), req("namespace", text("")), req("state", text("")),
				req("cpu_percent", number("Of one processor.")), opt("stats", &jsonschema.Schema{Type: "object"})), 0, 0)),
			opt("series", array("Oldest first.", &jsonschema.Schema{Type: "object"}, 0, 0)),
		),
	}, runSandboxStats)
}

func runSandboxStats(ctx context.Context, c *dialect.Call, in statsArgs) (*mcp.CallToolResult, error) {
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
	return dialect.Text(b.String(), res), nil
}
