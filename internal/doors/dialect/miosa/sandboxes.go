package miosa

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Metadata that clients of the product see as fields of their own, or do not see.
const (
	ownTags      = "_miosa."
	nameTag      = ownTags + "name"
	templateTag  = ownTags + "template"
	computerTag  = ownTags + "computer"
	workspaceTag = ownTags + "external_workspace_id"
	projectTag   = ownTags + "external_project_id"
	userTag      = ownTags + "external_user_id"
	tenantTag    = ownTags + "workspace_id"
)

// sandboxIP is the address of every sandbox on its own network.
const sandboxIP = "169.254.77.2"

// defaultTimeout is after how many seconds without activity a sandbox is paused by default;
// the schema has the same value.
const defaultTimeout = 300

// day bounds how long a sandbox that is never idle runs before it is paused.
const day = 24 * 60 * 60

// machine is a sandbox in the product's terms.
type machine struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Status      string            `json:"status"`
	Template    string            `json:"template"`
	Size        string            `json:"size"`
	CPUCount    int               `json:"cpu_count"`
	MemoryMB    int64             `json:"memory_mb"`
	DiskSizeMB  int64             `json:"disk_size_mb"`
	Ready       bool              `json:"ready"`
	IP          string            `json:"ip"`
	Persistent  bool              `json:"persistent"`
	AlwaysOn    bool              `json:"always_on"`
	TimeoutSec  int64             `json:"timeout_sec"`
	Workspace   string            `json:"external_workspace_id,omitempty"`
	Project     string            `json:"external_project_id,omitempty"`
	User        string            `json:"external_user_id,omitempty"`
	Metadata    map[string]string `json:"metadata"`
	PreviewURL  string            `json:"preview_url,omitempty"`
	BootMS      int64             `json:"boot_ms,omitempty"`
	Note        string            `json:"note,omitempty"`
	CreatedAt   string            `json:"created_at"`
	StartedAt   string            `json:"started_at,omitempty"`
	DestroyedAt string            `json:"destroyed_at,omitempty"`
}

func machineOf(s *sandbox.Sandbox) machine {
	m := machine{
		ID: s.ID, Name: cmp.Or(s.Metadata[nameTag], s.Name, s.ID), Status: status(s.State),
		Template: cmp.Or(s.Metadata[templateTag], s.Template), Size: cmp.Or(s.Metadata[computerTag], sizeOf(s.Resources)),
		CPUCount: s.Resources.VCPUs, MemoryMB: s.Resources.MemoryMiB, DiskSizeMB: s.Resources.DiskMiB,
		Ready: s.State == sandbox.StateRunning, IP: sandboxIP,
		Persistent: s.OnTimeout == sandbox.ActionPause, AlwaysOn: s.IdleTimeoutSeconds == 0, TimeoutSec: s.IdleTimeoutSeconds,
		Workspace: s.Metadata[workspaceTag], Project: s.Metadata[projectTag], User: s.Metadata[userTag],
		Metadata: map[string]string{}, CreatedAt: dialect.Stamp(s.CreatedAt), StartedAt: dialect.StampOf(s.StartedAt), DestroyedAt: dialect.StampOf(s.EndedAt),
	}
	for key, value := range s.Metadata {
		if !strings.HasPrefix(key, ownTags) {
			m.Metadata[key] = value
		}
	}
	if s.State == sandbox.StateFailed {
		m.Metadata["last_error"] = s.Reason
	}
	return m
}

// status returns the product's name of a state.
func status(s sandbox.State) string {
	switch s {
	case sandbox.StateCreating:
		return "provisioning"
	case sandbox.StateStopping, sandbox.StateKilled:
		return "destroyed"
	case sandbox.StateFailed:
		return "error"
	}
	return string(s) // running and paused
}

// states returns the states with a status; none for a status that sandboxes here never
// have.
func states(status string) []sandbox.State {
	switch status {
	case "":
		return []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateFailed}
	case "provisioning":
		return []sandbox.State{sandbox.StateCreating}
	case "running":
		return []sandbox.State{sandbox.StateRunning}
	case "paused", "stopped":
		return []sandbox.State{sandbox.StatePaused}
	case "destroyed":
		return []sandbox.State{sandbox.StateStopping, sandbox.StateKilled}
	case "error":
		return []sandbox.State{sandbox.StateFailed}
	}
	return nil
}

// labels are ids that the caller sets.
type labels struct {
	Workspace string `json:"external_workspace_id"`
	Project   string `json:"external_project_id"`
	User      string `json:"external_user_id"`
}

// tags returns the labels as metadata.
func (l *labels) tags() map[string]string {
	tags := make(map[string]string)
	for key, value := range map[string]string{workspaceTag: l.Workspace, projectTag: l.Project, userTag: l.User} {
		if value != "" {
			tags[key] = value
		}
	}
	return tags
}

type createArgs struct {
	labels
	Template    string                     `json:"template"`
	Name        string                     `json:"name"`
	Size        string                     `json:"size"`
	CPUCount    float64                    `json:"cpu_count"`
	MemoryMB    float64                    `json:"memory_mb"`
	DiskSizeMB  float64                    `json:"disk_size_mb"`
	TimeoutSec  float64                    `json:"timeout_sec"`
	IdleTimeout float64                    `json:"idle_timeout_sec"`
	Persistent  bool                       `json:"persistent"`
	AlwaysOn    bool                       `json:"always_on"`
	Env         map[string]string          `json:"env"`
	Metadata    map[string]json.RawMessage `json:"metadata"`
}

func createSandbox(ctx context.Context, c *call, in createArgs) (*mcp.CallToolResult, error) {
	asked := cmp.Or(in.Template, c.Env("MIOSA_DEFAULT_TEMPLATE"), defaultTemplate)
	c.Status("creating a sandbox")
	from, err := findTemplate(ctx, c, asked)
	if err != nil {
		return nil, err
	}
	req := sandbox.CreateRequest{Template: from.name, WorkDir: workDir, Env: in.Env}
	if req.Resources, err = in.resources(from.resources); err != nil {
		return nil, err
	}
	req.FitResources = in.CPUCount == 0 // a named size is not a promise about the machine
	if req.Metadata, err = in.tags(); err != nil {
		return nil, err
	}
	req.Metadata[templateTag] = asked
	in.timers(&req)
	begun := time.Now()
	s, err := dialect.CreateNamed(ctx, c.Service, in.Name, nameTag, req)
	if err != nil {
		return nil, err
	}
	instead, err := from.check(ctx, c, s.ID)
	if err != nil {
		_, _ = c.Service.Kill(context.WithoutCancel(ctx), s.ID) // its timer ends it if this fails
		return nil, err
	}
	c.session.useSandbox(s.ID)
	m := machineOf(s)
	m.BootMS = max(1, time.Since(begun).Milliseconds())
	m.Note = notes(instead, smaller(req.Resources, s.Resources))
	return result(m)
}

// tags returns the metadata of a sandbox, including this client's own. Values that are not
// text are stored as JSON.
func (in *createArgs) tags() (map[string]string, error) {
	tags := in.labels.tags()
	for key, raw := range in.Metadata {
		if strings.HasPrefix(key, ownTags) {
			return nil, dialect.Invalid("metadata keys beginning with %s are reserved", ownTags)
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		tags[key] = text
	}
	return tags, nil
}

// timers sets when a sandbox is paused or ended for lack of activity.
func (in *createArgs) timers(req *sandbox.CreateRequest) {
	idle, lifetime := int64(cmp.Or(in.TimeoutSec, in.IdleTimeout, defaultTimeout)), int64(0)
	if t := int64(in.IdleTimeout); t > 0 {
		idle = min(idle, t)
	}
	req.OnTimeout = sandbox.ActionKill
	if in.Persistent {
		req.OnTimeout = sandbox.ActionPause
		if !in.AlwaysOn {
			lifetime = max(day, idle)
		}
	}
	if in.AlwaysOn {
		idle = 0
	}
	req.IdleTimeoutSeconds, req.LifetimeSeconds = &idle, &lifetime
}

type sandboxArgs struct {
	Sandbox string `json:"sandbox_id"`
}

func getSandbox(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	s, err := c.Service.Get(ctx, id)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	m := machineOf(s)
	if !s.State.Final() {
		previews, err := sandbox.All(ctx, sandbox.Of(s.ID, c.Service.ListPreviews))
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return nil, err
		}
		if err == nil && len(previews) > 0 {
			m.PreviewURL = previews[0].URL
		}
	}
	return result(m)
}

type listArgs struct {
	labels
	Status   string  `json:"status"`
	Page     float64 `json:"page"`
	PageSize float64 `json:"page_size"`
}

// page is a part of a list.
type page struct {
	Sandboxes []machine `json:"sandboxes"`
	Page      int       `json:"page"`
	PageSize  int       `json:"page_size"`
	Total     int       `json:"total"`
}

func listSandboxes(ctx context.Context, c *call, in listArgs) (*mcp.CallToolResult, error) {
	out := page{Sandboxes: []machine{}, Page: int(in.Page), PageSize: int(in.PageSize)}
	req := sandbox.ListRequest{States: states(in.Status), Metadata: in.tags()}
	if len(req.States) == 0 {
		return result(out)
	}
	first := (out.Page - 1) * out.PageSize
	for s, err := range sandbox.Each(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		req.Page = p
		return c.Service.List(ctx, req)
	}) {
		if err != nil {
			return nil, err
		}
		if s.Metadata[computerTag] != "" {
			continue
		}
		if out.Total >= first && out.Total < first+out.PageSize {
			out.Sandboxes = append(out.Sandboxes, machineOf(&s))
		}
		out.Total++
	}
	return result(out)
}

func stopSandbox(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.Status("stopping")
	s, err := c.Service.Pause(ctx, id)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(machineOf(s))
}

func resumeSandbox(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.Status("resuming")
	s, err := c.Service.Resume(ctx, id, sandbox.ResumeRequest{})
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	c.session.useSandbox(s.ID)
	return result(machineOf(s))
}

// changed reports the new status of a sandbox or computer.
type changed struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// destroySandbox ends a sandbox or computer. It also accepts the id of a snapshot, since
// the product has no tool to delete one.
func destroySandbox(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	if strings.HasPrefix(in.Sandbox, snapshotPrefix) {
		return deleteSnapshot(ctx, c, in.Sandbox)
	}
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	s, err := c.Service.Kill(ctx, id)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	c.session.gone(s.ID)
	return result(changed{s.ID, "destroyed"})
}

// size is a named size of a machine.
type size struct {
	name      string
	resources sandbox.Resources
}

var sizes = []size{
	{"xs", sandbox.Resources{VCPUs: 1, MemoryMiB: 2048, DiskMiB: 10240}},
	{"small", sandbox.Resources{VCPUs: 2, MemoryMiB: 4096, DiskMiB: 10240}},
	{"medium", sandbox.Resources{VCPUs: 4, MemoryMiB: 8192, DiskMiB: 20480}},
	{"large", sandbox.Resources{VCPUs: 8, MemoryMiB: 16384, DiskMiB: 40960}},
	{"xl", sandbox.Resources{VCPUs: 16, MemoryMiB: 32768, DiskMiB: 81920}},
}

// defaultSize is the size of a machine if none is requested.
const defaultSize = "small"

// sizeOf returns the name of a size, or "custom".
func sizeOf(r sandbox.Resources) string {
	r.MaxPIDs = 0
	for _, s := range sizes {
		if s.resources == r {
			return s.name
		}
	}
	return "custom"
}

// smaller describes where a sandbox has less than its size; "" if nowhere.
func smaller(size, has sandbox.Resources) string {
	if has.VCPUs >= size.VCPUs && has.MemoryMiB >= size.MemoryMiB && has.DiskMiB >= size.DiskMiB {
		return ""
	}
	return fmt.Sprintf("the size has %d vCPUs, %d MiB of memory and %d MiB of disk; this server's machine has less, so the sandbox has %d, %d and %d",
		size.VCPUs, size.MemoryMiB, size.DiskMiB, has.VCPUs, has.MemoryMiB, has.DiskMiB)
}

// notes joins the notes that are not empty.
func notes(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(note string) bool { return note == "" }), ". ")
}

// named returns the resources of a size, whose name the schema has checked.
func named(sizes []size, name string) sandbox.Resources {
	i := slices.IndexFunc(sizes, func(s size) bool { return s.name == name })
	return sizes[max(0, i)].resources
}

// resources returns the requested resources: numbers take precedence over a size, and a
// size over the template.
func (in *createArgs) resources(template sandbox.Resources) (sandbox.Resources, error) {
	cpus, memory, disk := in.CPUCount, in.MemoryMB, in.DiskSizeMB
	switch {
	case cpus > 0 && memory > 0 && disk > 0:
		for _, v := range []struct {
			name     string
			is, most float64
		}{{"cpu_count", cpus, sandbox.MaxVCPUs}, {"memory_mb", memory, sandbox.MaxMemoryMiB}, {"disk_size_mb", disk, sandbox.MaxDiskMiB}} {
			if v.is > v.most {
				return sandbox.Resources{}, dialect.Invalid("%s must be at most %.0f", v.name, v.most)
			}
		}
		return sandbox.Resources{VCPUs: int(cpus), MemoryMiB: int64(memory), DiskMiB: int64(disk)}, nil
	case cpus+memory+disk > 0:
		return sandbox.Resources{}, dialect.Invalid("give all of cpu_count, memory_mb and disk_size_mb, or none of them and a size")
	case in.Size == "" && template != (sandbox.Resources{}):
		return sandbox.Resources{}, nil
	}
	return named(sizes, cmp.Or(in.Size, defaultSize)), nil
}
