package superserve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// summary is a sandbox in a list.
type summary struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

func summaryOf(s *sandbox.Sandbox) summary {
	return summary{ID: s.ID, Name: terms.NameOf(s), Status: terms.Status(s.State), Metadata: terms.Tags(s)}
}

type createArgs struct {
	Name       string            `json:"name"`
	Template   string            `json:"from_template"`
	Snapshot   string            `json:"from_snapshot"`
	Timeout    *float64          `json:"timeout_seconds"`
	AutoDelete *float64          `json:"auto_delete_seconds"`
	Metadata   map[string]string `json:"metadata"`
	Env        map[string]string `json:"env_vars"`
	Secrets    map[string]string `json:"secrets"`
	AllowOut   []string          `json:"allow_out"`
	DenyOut    []string          `json:"deny_out"`
}

func create(ctx context.Context, c *dialect.Call, in createArgs) (*mcp.CallToolResult, error) {
	if err := terms.CheckTags(in.Metadata); err != nil {
		return nil, err
	}
	name := cmp.Or(in.Name, "sandbox-"+strconv.FormatInt(time.Now().UnixMilli(), 36))
	if n := len([]rune(name)); n > 64 {
		return nil, dialect.Invalid("name must have 1 to 64 characters (got %d)", n)
	}
	req := sandbox.CreateRequest{
		Template: terms.TemplateName(in.Template), Snapshot: in.Snapshot, User: "root",
		Metadata: in.Metadata, Env: in.Env, Secrets: in.Secrets,
		LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64), // never
	}
	if in.Snapshot != "" {
		if in.Template != "" {
			return nil, dialect.Invalid("give either from_template or from_snapshot")
		}
		req.User = ""
	}
	if in.Timeout != nil {
		*req.IdleTimeoutSeconds, req.OnTimeout = int64(*in.Timeout), sandbox.ActionPause
	}
	if in.AutoDelete != nil {
		req.PausedLifetimeSeconds = terms.PausedLifetime(int64(*in.AutoDelete))
	}
	if in.AllowOut != nil || in.DenyOut != nil {
		req.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen, AllowOut: in.AllowOut, DenyOut: in.DenyOut}
	}
	c.Status("creating a sandbox")
	s, err := dialect.CreateNamed(ctx, c.Service, name, terms.NameTag, req)
	if err != nil {
		return nil, err
	}
	out := summaryOf(s)
	return dialect.Text(fmt.Sprintf("created sandbox %s (%s), status %s", out.ID, dialect.OneLine(out.Name), out.Status), out), nil
}

type listArgs struct {
	Metadata map[string]string `json:"metadata"`
}

func list(ctx context.Context, c *dialect.Call, in listArgs) (*mcp.CallToolResult, error) {
	rows := []summary{}
	for s, err := range dialect.Sandboxes(ctx, c.Service, sandbox.ListRequest{Metadata: in.Metadata}) {
		if err != nil {
			return nil, err
		}
		if row := summaryOf(&s); row.Status != "deleted" {
			rows = append(rows, row)
		}
	}
	return listing("sandboxes", rows, func(s summary) string { return s.ID + "  " + s.Status + "\t" + dialect.OneLine(s.Name) }, "(no sandboxes)"), nil
}

// details is a sandbox in full.
type details struct {
	summary
	VCPUs      int             `json:"vcpu_count"`
	MemoryMiB  int64           `json:"memory_mib"`
	CreatedAt  string          `json:"created_at"`
	Timeout    int64           `json:"timeout_seconds,omitempty"`
	AutoDelete *int64          `json:"auto_delete_seconds,omitempty"`
	DeleteAt   string          `json:"auto_delete_at,omitempty"`
	Network    *terms.Rules    `json:"network,omitempty"`
	Secrets    []terms.Binding `json:"secrets,omitempty"`
}

func info(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if s.State == sandbox.StateKilled {
		return nil, errNoSandbox(in.Sandbox)
	}
	out := details{
		summary: summaryOf(s), VCPUs: s.Resources.VCPUs, MemoryMiB: s.Resources.MemoryMiB,
		CreatedAt: dialect.Stamp(s.CreatedAt), DeleteAt: dialect.StampOf(s.PausedExpiresAt), AutoDelete: terms.WindowOf(s.PausedLifetimeSeconds),
	}
	if s.OnTimeout == sandbox.ActionPause {
		out.Timeout = s.IdleTimeoutSeconds
	}
	out.Network = terms.RulesOf(s.Network)
	if out.Secrets, err = terms.BoundSecrets(ctx, c.Service, s.Secrets); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%s (%s) — %s, %d vCPU / %d MiB", out.ID, dialect.OneLine(out.Name), out.Status, out.VCPUs, out.MemoryMiB)
	return dialect.Text(text, out), nil
}

func pause(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	c.Status("pausing")
	s, err := c.Service.Pause(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	return dialect.Text("paused "+s.ID, dialect.ObjectOf("id", s.ID, "status", terms.Status(s.State))), nil
}

func resume(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	c.Status("resuming")
	s, err := c.Service.Resume(ctx, in.Sandbox, sandbox.ResumeRequest{})
	if err != nil {
		return nil, err
	}
	return dialect.Text("resumed "+s.ID, dialect.ObjectOf("id", s.ID, "status", terms.Status(s.State))), nil
}

func kill(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	id := in.Sandbox
	s, err := c.Service.Kill(ctx, id)
	switch {
	case err == nil:
		id = s.ID
	case sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return nil, err
	}
	return dialect.Text("deleted "+clip.Text(id, maxShown), dialect.ObjectOf("id", id, "deleted", true)), nil
}

// seconds is a number, null, or absent.
type seconds struct {
	given, null bool
	value       int64 // 0 for null
}

// UnmarshalJSON takes a number or null.
func (s *seconds) UnmarshalJSON(data []byte) error {
	var f float64 // 0 for null
	err := json.Unmarshal(data, &f)
	*s = seconds{given: true, null: string(data) == "null", value: int64(f)}
	return err
}

type updateArgs struct {
	inSandbox
	Metadata   map[string]string `json:"metadata"`
	AllowOut   []string          `json:"allow_out"`
	DenyOut    []string          `json:"deny_out"`
	AutoDelete seconds           `json:"auto_delete_seconds"`
	Timeout    seconds           `json:"timeout_seconds"`
}

func update(ctx context.Context, c *dialect.Call, in updateArgs) (*mcp.CallToolResult, error) {
	network := in.AllowOut != nil || in.DenyOut != nil
	if !network && in.Metadata == nil && !in.Timeout.given && !in.AutoDelete.given {
		return nil, dialect.Invalid("give at least one of metadata, allow_out, deny_out, auto_delete_seconds and timeout_seconds")
	}
	if err := terms.CheckTags(in.Metadata); err != nil {
		return nil, err
	}
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err == nil && s.State == sandbox.StateKilled {
		err = errNoSandbox(in.Sandbox)
	}
	if err != nil {
		return nil, err
	}
	if network { // first: it is refused more often, and then nothing must have changed
		if _, err := c.Service.SetNetwork(ctx, s.ID, terms.Replace(s.Network, in.AllowOut, in.DenyOut)); err != nil {
			return nil, err
		}
	}
	req := sandbox.UpdateRequest{}
	if in.Metadata != nil {
		req.Metadata = terms.KeepTags(s, in.Metadata)
	}
	if in.Timeout.given {
		req.IdleTimeoutSeconds = &in.Timeout.value
		if action := sandbox.ActionPause; !in.Timeout.null {
			req.OnTimeout = &action
		}
	}
	if in.AutoDelete.given {
		var window int64 // null: never
		if !in.AutoDelete.null {
			window = terms.PausedLifetime(in.AutoDelete.value)
		}
		req.PausedLifetimeSeconds = &window
	}
	if in.Metadata != nil || in.Timeout.given || in.AutoDelete.given {
		if _, err := c.Service.Update(ctx, s.ID, req); err != nil {
			return nil, err
		}
	}
	return dialect.Text("updated "+s.ID, map[string]string{"id": s.ID}), nil
}
