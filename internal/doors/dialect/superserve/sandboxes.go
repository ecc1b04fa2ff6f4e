package superserve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// nameTag is the tag that has a sandbox's name where the service cannot: the
// product's names are any text, and several sandboxes may have the same.
// Clients do not see it.
const nameTag = "_superserve.name"

// ownTag reports tags that the product keeps to itself.
func ownTag(key string) bool {
	key = strings.ToLower(key)
	return strings.HasPrefix(key, "superserve.") || strings.HasPrefix(key, "_superserve")
}

func checkTags(tags map[string]string) error {
	for key := range tags {
		if ownTag(key) {
			return dialect.Invalid("metadata keys beginning with superserve. or _superserve are reserved")
		}
	}
	return nil
}

// summary is a sandbox in a list.
type summary struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

func summaryOf(s *sandbox.Sandbox) summary {
	out := summary{ID: s.ID, Name: cmp.Or(s.Metadata[nameTag], s.Name, s.ID), Status: status(s.State), Metadata: map[string]string{}}
	for key, value := range s.Metadata {
		if key != nameTag {
			out.Metadata[key] = value
		}
	}
	return out
}

// status is a state in the product's words.
func status(s sandbox.State) string {
	switch s {
	case sandbox.StateCreating:
		return "starting"
	case sandbox.StateRunning:
		return "active"
	case sandbox.StateStopping, sandbox.StateKilled:
		return "deleted"
	}
	return string(s) // paused and failed
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

// atPause is the service's paused lifetime of what is deleted at its pause: its
// 0 is none. A window of one second is the same.
const atPause = 1

// pausedLifetime is an auto-delete window in the service's terms.
func pausedLifetime(window int64) int64 { return max(atPause, window) }

// windowOf is a paused lifetime as an auto-delete window, nil if there is none.
func windowOf(lifetime int64) *int64 {
	switch lifetime {
	case 0:
		return nil
	case atPause:
		return new(int64)
	}
	return &lifetime
}

func create(ctx context.Context, c *dialect.Call, in createArgs) (*mcp.CallToolResult, error) {
	if err := checkTags(in.Metadata); err != nil {
		return nil, err
	}
	name := cmp.Or(in.Name, "sandbox-"+strconv.FormatInt(time.Now().UnixMilli(), 36))
	if n := len([]rune(name)); n > 64 {
		return nil, dialect.Invalid("name must have 1 to 64 characters (got %d)", n)
	}
	req := sandbox.CreateRequest{
		Template: templateName(in.Template), Snapshot: in.Snapshot, User: "root",
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
		req.PausedLifetimeSeconds = pausedLifetime(int64(*in.AutoDelete))
	}
	if in.AllowOut != nil || in.DenyOut != nil {
		req.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen, AllowOut: in.AllowOut, DenyOut: in.DenyOut}
	}
	c.Status("creating a sandbox")
	s, err := dialect.CreateNamed(ctx, c.Service, name, nameTag, req)
	if err != nil {
		return nil, err
	}
	out := summaryOf(s)
	return dialect.Text(fmt.Sprintf("created sandbox %s (%s), status %s", out.ID, dialect.OneLine(out.Name), out.Status), out), nil
}

type listArgs struct {
	Metadata map[string]string `json:"metadata"`
}

type listed struct {
	Sandboxes []summary `json:"sandboxes"`
}

func list(ctx context.Context, c *dialect.Call, in listArgs) (*mcp.CallToolResult, error) {
	out := listed{Sandboxes: []summary{}}
	var lines []string
	all, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return c.Service.List(ctx, sandbox.ListRequest{Metadata: in.Metadata, Page: p})
	})
	if err != nil {
		return nil, err
	}
	for i := range all {
		if s := summaryOf(&all[i]); s.Status != "deleted" {
			out.Sandboxes = append(out.Sandboxes, s)
			lines = append(lines, s.ID+"  "+s.Status+"\t"+dialect.OneLine(s.Name))
		}
	}
	return dialect.Text(cmp.Or(strings.Join(lines, "\n"), "(no sandboxes)"), out), nil
}

type sandboxArgs struct {
	Sandbox string `json:"sandbox_id"`
}

// details is all that is told of a sandbox.
type details struct {
	summary
	VCPUs      int      `json:"vcpu_count"`
	MemoryMiB  int64    `json:"memory_mib"`
	CreatedAt  string   `json:"created_at"`
	Timeout    int64    `json:"timeout_seconds,omitempty"`
	AutoDelete *int64   `json:"auto_delete_seconds,omitempty"`
	DeleteAt   string   `json:"auto_delete_at,omitempty"`
	Network    *rules   `json:"network,omitempty"`
	Secrets    []secret `json:"secrets,omitempty"`
}

// rules are the product's part of a policy.
type rules struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

func info(ctx context.Context, c *dialect.Call, in sandboxArgs) (*mcp.CallToolResult, error) {
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err != nil {
		return nil, about(ctx, c, in.Sandbox, err)
	}
	if s.State == sandbox.StateKilled {
		return nil, errNoSandbox(in.Sandbox)
	}
	out := details{
		summary: summaryOf(s), VCPUs: s.Resources.VCPUs, MemoryMiB: s.Resources.MemoryMiB,
		CreatedAt: dialect.Stamp(s.CreatedAt), DeleteAt: dialect.StampOf(s.PausedExpiresAt), AutoDelete: windowOf(s.PausedLifetimeSeconds),
	}
	if s.OnTimeout == sandbox.ActionPause {
		out.Timeout = s.IdleTimeoutSeconds
	}
	if p := s.Network; p != nil && len(p.AllowOut)+len(p.DenyOut) > 0 {
		out.Network = &rules{AllowOut: append([]string{}, p.AllowOut...), DenyOut: append([]string{}, p.DenyOut...)}
	}
	if out.Secrets, err = boundSecrets(ctx, c, s.Secrets); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%s (%s) — %s, %d vCPU / %d MiB", out.ID, dialect.OneLine(out.Name), out.Status, out.VCPUs, out.MemoryMiB)
	return dialect.Text(text, out), nil
}

// changed says what a sandbox's status is now.
type changed struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

func pause(ctx context.Context, c *dialect.Call, in sandboxArgs) (*mcp.CallToolResult, error) {
	c.Status("pausing")
	s, err := c.Service.Pause(ctx, in.Sandbox)
	if err != nil {
		return nil, about(ctx, c, in.Sandbox, err)
	}
	return dialect.Text("paused "+s.ID, changed{s.ID, status(s.State)}), nil
}

func resume(ctx context.Context, c *dialect.Call, in sandboxArgs) (*mcp.CallToolResult, error) {
	c.Status("resuming")
	s, err := c.Service.Resume(ctx, in.Sandbox, sandbox.ResumeRequest{})
	if err != nil {
		return nil, about(ctx, c, in.Sandbox, err)
	}
	return dialect.Text("resumed "+s.ID, changed{s.ID, status(s.State)}), nil
}

// deleted says that a sandbox is gone.
type deleted struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

func kill(ctx context.Context, c *dialect.Call, in sandboxArgs) (*mcp.CallToolResult, error) {
	id := in.Sandbox
	s, err := c.Service.Kill(ctx, id)
	switch {
	case err == nil:
		id = s.ID
	case sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return nil, err
	}
	return dialect.Text("deleted "+clip.Text(id, maxShown), deleted{id, true}), nil
}

// seconds is a number, null, or not given.
type seconds struct {
	given bool
	value int64 // 0 for null
	null  bool
}

// UnmarshalJSON takes a number or null.
func (s *seconds) UnmarshalJSON(data []byte) error {
	s.given = true
	if string(data) == "null" {
		s.null = true
		return nil
	}
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	s.value = int64(f)
	return nil
}

type updateArgs struct {
	Sandbox    string            `json:"sandbox_id"`
	Metadata   map[string]string `json:"metadata"`
	AllowOut   []string          `json:"allow_out"`
	DenyOut    []string          `json:"deny_out"`
	AutoDelete seconds           `json:"auto_delete_seconds"`
	Timeout    seconds           `json:"timeout_seconds"`
}

// updated says which sandbox was changed.
type updated struct {
	ID string `json:"id"`
}

func update(ctx context.Context, c *dialect.Call, in updateArgs) (*mcp.CallToolResult, error) {
	network := in.AllowOut != nil || in.DenyOut != nil
	if !network && in.Metadata == nil && !in.Timeout.given && !in.AutoDelete.given {
		return nil, dialect.Invalid("give at least one of metadata, allow_out, deny_out, auto_delete_seconds and timeout_seconds")
	}
	if err := checkTags(in.Metadata); err != nil {
		return nil, err
	}
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err == nil && s.State == sandbox.StateKilled {
		err = errNoSandbox(in.Sandbox)
	}
	if err != nil {
		return nil, about(ctx, c, in.Sandbox, err)
	}
	if network { // which is refused more often, and then nothing is changed
		policy := sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
		if s.Network != nil {
			policy = *s.Network
		}
		policy.AllowOut, policy.DenyOut = in.AllowOut, in.DenyOut
		if _, err := c.Service.SetNetwork(ctx, s.ID, policy); err != nil {
			return nil, about(ctx, c, s.ID, err)
		}
	}
	req := sandbox.UpdateRequest{}
	if in.Metadata != nil {
		req.Metadata = maps.Clone(in.Metadata)
		if name := s.Metadata[nameTag]; name != "" {
			req.Metadata[nameTag] = name
		}
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
			window = pausedLifetime(in.AutoDelete.value)
		}
		req.PausedLifetimeSeconds = &window
	}
	if in.Metadata != nil || in.Timeout.given || in.AutoDelete.given {
		if _, err := c.Service.Update(ctx, s.ID, req); err != nil {
			return nil, about(ctx, c, s.ID, err)
		}
	}
	return dialect.Text("updated "+s.ID, updated{s.ID}), nil
}
