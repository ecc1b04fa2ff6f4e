package native

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type createArgs struct {
	Name               string                `json:"name"`
	Metadata           map[string]string     `json:"metadata"`
	Template           string                `json:"template"`
	VCPUs              int                   `json:"vcpus"`
	MemoryMiB          int64                 `json:"memory_mib"`
	DiskMiB            int64                 `json:"disk_mib"`
	MaxPIDs            int64                 `json:"max_pids"`
	FitResources       bool                  `json:"fit_resources"`
	Env                map[string]string     `json:"env"`
	User               string                `json:"user"`
	WorkDir            string                `json:"workdir"`
	LifetimeSeconds    *int64                `json:"lifetime_seconds"`
	IdleTimeoutSeconds *int64                `json:"idle_timeout_seconds"`
	OnTimeout          sandbox.TimeoutAction `json:"on_timeout"`
	Snapshot           string                `json:"snapshot"`
	History            int                   `json:"history"`
	PausedLifetime     int64                 `json:"paused_lifetime_seconds"`

	Network *sandbox.NetworkPolicy  `json:"network"`
	Secrets map[string]string       `json:"secrets"`
	Ports   []sandbox.PublishedPort `json:"ports"`
	Mounts  []sandbox.Mount         `json:"mounts"`
}

const maxLifetimeSeconds = int64(sandbox.MaxLifetime / time.Second)

func nameSchema() *jsonschema.Schema {
	return bounded("Unique among your living sandboxes, and usable in place of the id: a-z, 0-9 and dashes.", 0, sandbox.MaxNameLength)
}

func metadataSchema(description string) *jsonschema.Schema {
	return pairs(description, sandbox.MaxMetadataPairs, sandbox.MaxMetadataValue)
}

func envSchema(description string) *jsonschema.Schema {
	return pairs(description, sandbox.MaxEnvPairs, sandbox.MaxEnvBytes)
}

func onTimeoutSchema(rest string) *jsonschema.Schema {
	return oneOf("At the end of the lifetime or idle timeout: kill, or pause, which keeps memory and processes on disk until the next call"+rest+".", string(sandbox.ActionKill), string(sandbox.ActionPause))
}

func historySchema(description string) *jsonschema.Schema {
	return integer(description, 0, sandbox.MaxHistory)
}

func sandboxCreate() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:        "sandbox_create",
		Title:       "Create a sandbox",
		Description: "Create an isolated Linux sandbox and return its id. All arguments are optional. Next: sandbox_exec or file_write with that id; sandbox_kill when done.",
		Annotations: annotations("Create a sandbox", false, false, false, false),
		InputSchema: input(
			opt("name", nameSchema()),
			opt("metadata", metadataSchema("Your own pairs, for sandbox_list.")),
			opt("template", bounded("Root file system to start from, such as host (the server's own programs, usually the default), debian or code-interpreter.", 0, 256)),
			opt("vcpus", integer(fmt.Sprintf("CPUs; usually %d if left out.", sandbox.DefaultVCPUs), 1, sandbox.MaxVCPUs)),
			opt("memory_mib", integer(fmt.Sprintf("Memory in MiB; usually %d if left out.", sandbox.DefaultMemoryMiB), sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)),
			opt("disk_mib", integer(fmt.Sprintf("Space for written files in MiB; usually %d if left out.", sandbox.DefaultDiskMiB), sandbox.MinDiskMiB, sandbox.MaxDiskMiB)),
			opt("max_pids", integer(fmt.Sprintf("Most processes and threads; usually %d if left out.", sandbox.DefaultMaxPIDs), sandbox.MinPIDs, sandbox.MaxPIDsLimit)),
			opt("fit_resources", with(boolean("Take less where the machine has less."), false)),
			opt("env", envSchema("Environment of every command.")),
			opt("user", bounded("Who commands run as: a name or uid[:gid].", 0, 64)),
			opt("workdir", bounded("Absolute directory where commands and relative paths start.", 0, sandbox.MaxPathBytes)),
			opt("lifetime_seconds", integer("Seconds until the sandbox ends; 0 is never; usually 3600 if left out.", 0, maxLifetimeSeconds)),
			opt("idle_timeout_seconds", integer("Seconds without a call or running command until the sandbox ends; 0 is never.", 0, maxLifetimeSeconds)),
			opt("on_timeout", onTimeoutSchema("; kill if left out")),
			opt("paused_lifetime_seconds", with(integer("Seconds after which a sandbox that stays paused ends; 0 is never.", 0, maxLifetimeSeconds), 0)),
			opt("snapshot", bounded("Snapshot to begin with, its processes and limits included; then leave out template, vcpus, memory_mib, disk_mib and max_pids.", 0, 128)),
			opt("history", with(historySchema("How many steps to keep for snapshot_restore; one is made before each foreground command."), 0)),
			opt("network", networkSchema()),
			opt("secrets", secretsSchema()),
			opt("ports", portsSchema()),
			opt("mounts", mountsSchema()),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in createArgs) (*mcp.CallToolResult, error) {
		c.Status("creating the sandbox")
		sb, err := create(ctx, c, sandbox.CreateRequest{
			Name: in.Name, Metadata: in.Metadata, Template: in.Template,
			Resources:    sandbox.Resources{VCPUs: in.VCPUs, MemoryMiB: in.MemoryMiB, DiskMiB: in.DiskMiB, MaxPIDs: in.MaxPIDs},
			FitResources: in.FitResources,
			Env:          in.Env, User: in.User, WorkDir: in.WorkDir,
			LifetimeSeconds: in.LifetimeSeconds, IdleTimeoutSeconds: in.IdleTimeoutSeconds, OnTimeout: in.OnTimeout,
			Snapshot: in.Snapshot, History: in.History, PausedLifetimeSeconds: in.PausedLifetime,
			Network: in.Network, Secrets: in.Secrets, Ports: in.Ports, Mounts: in.Mounts,
		})
		if err != nil {
			return nil, err
		}
		text := "Created sandbox " + describe(sb)
		if in.VCPUs != 0 || in.MemoryMiB != 0 || in.DiskMiB != 0 || in.MaxPIDs != 0 || len(in.Mounts) > 0 {
			text += unenforced(sb)
		}
		return dialect.Text(text, view(sb)), nil
	})
}

type listArgs struct {
	States   []sandbox.State   `json:"states"`
	Metadata map[string]string `json:"metadata"`
	Name     string            `json:"name"`
	Template string            `json:"template"`
	Limit    int               `json:"limit"`
	Cursor   string            `json:"cursor"`
}

func stateNames() []string {
	return []string{
		string(sandbox.StateCreating), string(sandbox.StateRunning), string(sandbox.StatePaused),
		string(sandbox.StateStopping), string(sandbox.StateKilled), string(sandbox.StateFailed),
	}
}

func sandboxList() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:        "sandbox_list",
		Title:       "List sandboxes",
		Description: "List your sandboxes, newest first; without arguments all that are alive. sandbox_get tells more of one.",
		Annotations: annotations("List sandboxes", true, false, true, false),
		InputSchema: input(concat([]prop{
			opt("states", array("Only these states; all but killed and failed if left out.", oneOf("", stateNames()...), 0, 6)),
			opt("metadata", metadataSchema("Only sandboxes that have all these pairs.")),
			opt("name", bounded("Only this name.", 0, sandbox.MaxNameLength)),
			opt("template", bounded("Only this template.", 0, 256)),
		}, pageArgs(200))...),
		OutputSchema: output(
			req("sandboxes", array("", object("", summaryProps()...), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get the next page; absent on the last.")),
		),
	}, func(ctx context.Context, c *dialect.Call, in listArgs) (*mcp.CallToolResult, error) {
		var out sandboxPage
		err := fitPage(in.Limit, func(limit int) (any, error) {
			list, err := c.Service.List(ctx, sandbox.ListRequest{
				States: in.States, Metadata: in.Metadata, Name: in.Name, Template: in.Template,
				Page: sandbox.Page{Limit: limit, Cursor: in.Cursor},
			})
			if err != nil {
				return nil, err
			}
			out = sandboxPage{Sandboxes: make([]sandboxSummary, 0, len(list.Items)), NextCursor: list.NextCursor}
			for i := range list.Items {
				out.Sandboxes = append(out.Sandboxes, summarize(&list.Items[i]))
			}
			return out, nil
		})
		if err != nil {
			return nil, err
		}
		return dialect.Text(out.text(), out), nil
	})
}

type sandboxRef struct {
	Sandbox string `json:"sandbox"`
}

func sandboxGet() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:         "sandbox_get",
		Title:        "Describe a sandbox",
		Description:  "Return one sandbox: state and why, limits, environment, when it ends. An ended sandbox can be looked up for 24 hours.",
		Annotations:  annotations("Describe a sandbox", true, false, true, false),
		InputSchema:  input(sandboxArg()),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in sandboxRef) (*mcp.CallToolResult, error) {
		sb, err := c.Service.Get(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Sandbox "+describe(sb)+unenforced(sb), view(sb)), nil
	})
}

type updateArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.UpdateRequest
}

func sandboxUpdate() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:        "sandbox_update",
		Title:       "Change a sandbox",
		Description: "Change a living sandbox; what is left out stays. Use lifetime_seconds to keep it longer. All changes are made or none. For its network and secrets there are network_set, secret_attach and secret_detach.",
		Annotations: annotations("Change a sandbox", false, true, true, false),
		InputSchema: input(
			sandboxArg(),
			opt("name", nameSchema()),
			opt("metadata", metadataSchema("Replaces all pairs.")),
			opt("env", envSchema("Replaces the environment of commands started from now on.")),
			opt("vcpus", integer("CPUs. Programs get them at once, but see the number of the creation.", 1, sandbox.MaxVCPUs)),
			opt("memory_mib", integer("Memory in MiB. Programs get it at once, but see the size of the creation.", sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)),
			opt("max_pids", integer("Most processes and threads.", sandbox.MinPIDs, sandbox.MaxPIDsLimit)),
			opt("lifetime_seconds", integer("Seconds until the sandbox ends, from now; 0 is never.", 0, maxLifetimeSeconds)),
			opt("idle_timeout_seconds", integer("Seconds without a call or running command until the sandbox ends; 0 is never.", 0, maxLifetimeSeconds)),
			opt("on_timeout", onTimeoutSchema("")),
			opt("paused_lifetime_seconds", integer("Seconds after which it ends if it stays paused, from now if it is paused; 0 is never.", 0, maxLifetimeSeconds)),
			opt("history", historySchema("How many steps to keep for snapshot_restore, one before each command; 0 ends it and removes the steps.")),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in updateArgs) (*mcp.CallToolResult, error) {
		sb, err := c.Service.Update(ctx, in.Sandbox, in.UpdateRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Updated sandbox "+describe(sb)+unenforced(sb), view(sb)), nil
	})
}

func sandboxKill() dialect.Tool {
	return dialect.New(toolsetSandboxes, &mcp.Tool{
		Name:         "sandbox_kill",
		Title:        "Kill a sandbox",
		Description:  "End a sandbox now: its processes are killed and its files deleted for good. Killing an ended sandbox is not an error.",
		Annotations:  annotations("Kill a sandbox", false, true, true, false),
		InputSchema:  input(sandboxArg()),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in sandboxRef) (*mcp.CallToolResult, error) {
		c.Status("ending the sandbox")
		sb, err := c.Service.Kill(ctx, in.Sandbox)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Killed sandbox "+describe(sb), view(sb)), nil
	})
}

// sandboxView is a sandbox in a result. Environments that would fill the
// result are left out.
type sandboxView struct {
	*sandbox.Sandbox
	EnvOmitted bool `json:"env_omitted,omitempty"`
}

func view(sb *sandbox.Sandbox) sandboxView {
	var size int
	for k, v := range sb.Env {
		size += len(k) + len(v)
	}
	if size <= maxResultBytes/4 {
		return sandboxView{Sandbox: sb}
	}
	c := *sb
	c.Env = nil
	return sandboxView{Sandbox: &c, EnvOmitted: true}
}

func sandboxOutput() *jsonschema.Schema {
	return output(concat([]prop{
		req("id", text("Give it as sandbox to the other tools.")),
		opt("name", text("")),
		req("team", text("")),
		req("namespace", text("")),
		opt("metadata", pairs("", 0, 0)),
		req("template", text("")),
		opt("forked_from", text("The sandbox that it is a fork of.")),
		opt("snapshot", text("The snapshot that it was made from or last restored to.")),
		req("state", oneOf("A paused sandbox resumes by itself with the next call that needs it.", stateNames()...)),
		opt("reason", text("Why it was killed or has failed.")),
		req("resources", object("",
			req("vcpus", count("")), req("memory_mib", count("")), req("disk_mib", count("")), req("max_pids", count("")))),
		opt("env", pairs("", 0, 0)),
		opt("env_omitted", boolean("The environment is too long to show.")),
		req("user", text("")),
		req("workdir", text("")),
		opt("desktop", object("The screen of a computer; computer_* use it.", req("width", count("")), req("height", count("")), opt("display", text("")))),
		req("lifetime_seconds", count("")),
		req("idle_timeout_seconds", count("")),
		opt("paused_lifetime_seconds", count("")),
		req("on_timeout", oneOf("", string(sandbox.ActionKill), string(sandbox.ActionPause))),
		opt("history", count("How many steps are kept, one before each command.")),
		req("created_at", moment("")),
		opt("started_at", moment("")),
		opt("paused_at", moment("Set while it is paused.")),
		opt("paused_expires_at", moment("When it ends if it stays paused.")),
		req("last_active_at", moment("")),
		opt("expires_at", moment("When the lifetime is over.")),
		opt("ended_at", moment("")),
		opt("unenforced", array("Limits that this machine cannot enforce.", text(""), 0, 0)),
	}, worldProps())...)
}

// sandboxSummary is a sandbox in a listing.
type sandboxSummary struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"`
	State      sandbox.State     `json:"state"`
	Reason     string            `json:"reason,omitempty"`
	Template   string            `json:"template"`
	ForkedFrom string            `json:"forked_from,omitempty"`
	Snapshot   string            `json:"snapshot,omitempty"`
	History    int               `json:"history,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	PausedAt   *time.Time        `json:"paused_at,omitempty"`
	ExpiresAt  *time.Time        `json:"expires_at,omitempty"`
}

func summaryProps() []prop {
	return []prop{
		req("id", text("")), opt("name", text("")), req("state", oneOf("", stateNames()...)),
		opt("reason", text("")), req("template", text("")),
		opt("forked_from", text("")), opt("snapshot", text("")), opt("history", count("")), opt("metadata", pairs("", 0, 0)),
		req("created_at", moment("")), opt("paused_at", moment("")), opt("expires_at", moment("")),
	}
}

func summarize(sb *sandbox.Sandbox) sandboxSummary {
	return sandboxSummary{
		ID: sb.ID, Name: sb.Name, State: sb.State, Reason: sb.Reason, Template: sb.Template,
		ForkedFrom: sb.ForkedFrom, Snapshot: sb.Snapshot, History: sb.History, Metadata: sb.Metadata,
		CreatedAt: sb.CreatedAt, PausedAt: sb.PausedAt, ExpiresAt: sb.ExpiresAt,
	}
}

type sandboxPage struct {
	Sandboxes  []sandboxSummary `json:"sandboxes"`
	NextCursor string           `json:"next_cursor,omitempty"`
}

func (p sandboxPage) text() string {
	if len(p.Sandboxes) == 0 {
		return "No sandboxes. Create one with sandbox_create."
	}
	var b strings.Builder
	for _, s := range p.Sandboxes {
		fmt.Fprintf(&b, "%s %s", s.ID, s.State)
		if s.Name != "" {
			fmt.Fprintf(&b, " name=%s", s.Name)
		}
		fmt.Fprintf(&b, " template=%s", s.Template)
		if s.ForkedFrom != "" {
			fmt.Fprintf(&b, " forked_from=%s", s.ForkedFrom)
		}
		if s.Snapshot != "" {
			fmt.Fprintf(&b, " snapshot=%s", s.Snapshot)
		}
		fmt.Fprintf(&b, " created=%s", stamp(s.CreatedAt))
		if s.Reason != "" {
			fmt.Fprintf(&b, " (%s)", s.Reason)
		}
		b.WriteByte('\n')
	}
	if p.NextCursor != "" {
		fmt.Fprintf(&b, "More: call again with cursor %s\n", p.NextCursor)
	}
	return b.String()
}

// describe is a sandbox in one line.
func describe(sb *sandbox.Sandbox) string {
	var b strings.Builder
	b.WriteString(sb.ID)
	if sb.Name != "" {
		fmt.Fprintf(&b, " (%s)", sb.Name)
	}
	switch {
	case sb.Reason == "":
		fmt.Fprintf(&b, ": %s", sb.State)
	case strings.HasPrefix(sb.Reason, string(sb.State)):
		b.WriteString(": " + sb.Reason)
	default:
		fmt.Fprintf(&b, ": %s, %s", sb.State, sb.Reason)
	}
	if sb.State.Final() {
		return b.String() + "."
	}
	fmt.Fprintf(&b, ", template %s, %d vCPU, %d MiB memory, %d MiB disk, user %s, working directory %s",
		sb.Template, sb.Resources.VCPUs, sb.Resources.MemoryMiB, sb.Resources.DiskMiB, sb.User, sb.WorkDir)
	b.WriteString(past(sb) + worldText(sb))
	if sb.ExpiresAt != nil {
		end := "ends"
		if sb.OnTimeout == sandbox.ActionPause {
			end = "pauses"
		}
		fmt.Fprintf(&b, ", %s at %s", end, stamp(*sb.ExpiresAt))
	}
	b.WriteByte('.')
	if sb.State == sandbox.StatePaused {
		b.WriteString("\nIt resumes by itself with the next call that needs it.")
	}
	return b.String()
}

// unenforced tells which limits the machine does not enforce, for results where
// somebody has asked for limits or for all of a sandbox.
func unenforced(sb *sandbox.Sandbox) string {
	var b strings.Builder
	for _, u := range sb.Unenforced {
		fmt.Fprintf(&b, "\nNot enforced on this machine: %s.", u)
	}
	return b.String()
}

// past says what a sandbox came from and how far back it can go.
func past(sb *sandbox.Sandbox) string {
	var s string
	if sb.ForkedFrom != "" {
		s += ", forked from " + sb.ForkedFrom
	}
	if sb.Snapshot != "" {
		s += ", from snapshot " + sb.Snapshot
	}
	if sb.History > 0 {
		s += ", keeps a history of " + plural(int64(sb.History), "step")
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// fitPage calls load with smaller and smaller limits until its result fits.
func fitPage(limit int, load func(limit int) (any, error)) error {
	for {
		v, err := load(limit)
		if err != nil {
			return err
		}
		data, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode a page: %w", err)
		}
		if len(data) <= maxResultBytes || limit <= 1 {
			return nil
		}
		limit = max(1, min(limit/2, limit*maxResultBytes/len(data)))
	}
}
