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

// nameTag is the tag for the name of a sandbox that the service does not accept:
// the product's names are any text, and several sandboxes may have the same.
// Clients do not see it.
const nameTag = "_superserve.name"

// ownTag reports tags that the product reserves.
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
	tags := maps.Collect(maps.All(s.Metadata))
	delete(tags, nameTag)
	return summary{ID: s.ID, Name: cmp.Or(s.Metadata[nameTag], s.Name, s.ID), Status: status(s.State), Metadata: tags}
}

// statuses are the product's names of states; others are named as in Cove.
var statuses = map[sandbox.State]string{
	sandbox.StateCreating: "starting", sandbox.StateRunning: "active", sandbox.StateStopping: "deleted", sandbox.StateKilled: "deleted",
}

func status(s sandbox.State) string { return cmp.Or(statuses[s], string(s)) }

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

// atPause stands for a window of 0 seconds, which deletes a sandbox when it is
// paused: a paused lifetime of 0 means none in the service. A window of one second
// is the same.
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

func pause(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	c.Status("pausing")
	s, err := c.Service.Pause(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	return dialect.Text("paused "+s.ID, dialect.ObjectOf("id", s.ID, "status", status(s.State))), nil
}

func resume(ctx context.Context, c *dialect.Call, in inSandbox) (*mcp.CallToolResult, error) {
	c.Status("resuming")
	s, err := c.Service.Resume(ctx, in.Sandbox, sandbox.ResumeRequest{})
	if err != nil {
		return nil, err
	}
	return dialect.Text("resumed "+s.ID, dialect.ObjectOf("id", s.ID, "status", status(s.State))), nil
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

// seconds is a number, null, or not given.
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
	if err := checkTags(in.Metadata); err != nil {
		return nil, err
	}
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err == nil && s.State == sandbox.StateKilled {
		err = errNoSandbox(in.Sandbox)
	}
	if err != nil {
		return nil, err
	}
	if network { // first, because it is refused more often, and then nothing is changed
		policy := sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
		if s.Network != nil {
			policy = *s.Network
		}
		policy.AllowOut, policy.DenyOut = in.AllowOut, in.DenyOut
		if _, err := c.Service.SetNetwork(ctx, s.ID, policy); err != nil {
			return nil, err
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
			return nil, err
		}
	}
	return dialect.Text("updated "+s.ID, map[string]string{"id": s.ID}), nil
}
