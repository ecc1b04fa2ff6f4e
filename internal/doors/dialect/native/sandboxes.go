package native

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type createArgs struct {
	sandbox.CreateRequest
	sandbox.Resources
}

func createSandbox(ctx context.Context, c *dialect.Call, in createArgs) (*reply[sandboxView], error) {
	c.Status("creating the sandbox")
	in.CreateRequest.Resources = in.Resources
	sb, err := create(ctx, c, in.CreateRequest)
	if err != nil {
		return nil, err
	}
	text := "Created sandbox " + describe(sb)
	if in.Resources != (sandbox.Resources{}) || len(in.Mounts) > 0 {
		text += unenforced(sb)
	}
	return answer(text, view(sb))
}

func listSandboxes(ctx context.Context, c *dialect.Call, in sandbox.ListRequest) (*reply[sandboxPage], error) {
	var out sandboxPage
	return fitPage(in.Limit, &out, func(limit int) error {
		in.Limit = limit
		list, err := c.Service.List(ctx, in)
		out.Sandboxes, out.nextPage = views(list, project[sandboxSummary])
		return err
	})
}

// sandboxRef is the argument that names a sandbox.
type sandboxRef struct {
	Sandbox string `json:"sandbox"`
}

func getSandbox(ctx context.Context, c *dialect.Call, in sandboxRef) (*reply[sandboxView], error) {
	sb, err := c.Service.Get(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	return answer("Sandbox "+describe(sb)+unenforced(sb), view(sb))
}

type updateArgs struct {
	sandboxRef
	sandbox.UpdateRequest
}

func updateSandbox(ctx context.Context, c *dialect.Call, in updateArgs) (*reply[sandboxView], error) {
	sb, err := c.Service.Update(ctx, in.Sandbox, in.UpdateRequest)
	if err != nil {
		return nil, err
	}
	return answer("Updated sandbox "+describe(sb)+unenforced(sb), view(sb))
}

func killSandbox(ctx context.Context, c *dialect.Call, in sandboxRef) (*reply[sandboxView], error) {
	c.Status("ending the sandbox")
	sb, err := c.Service.Kill(ctx, in.Sandbox)
	return described("Killed", sb, err)
}

// described answers with a sandbox and what was done to it.
func described(done string, sb *sandbox.Sandbox, err error) (*reply[sandboxView], error) {
	if err != nil {
		return nil, err
	}
	return answer(done+" sandbox "+describe(sb), view(sb))
}

// sandboxView is a sandbox in a result. A large environment is omitted.
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

type sandboxPage struct {
	Sandboxes []sandboxSummary `json:"sandboxes"`
	nextPage
}

func (p sandboxPage) text() string {
	var b strings.Builder
	for _, s := range p.Sandboxes {
		fmt.Fprintf(&b, "%s %s", s.ID, s.State)
		field(&b, " name=%s", s.Name)
		fmt.Fprintf(&b, " template=%s", s.Template)
		field(&b, " forked_from=%s", s.ForkedFrom)
		field(&b, " snapshot=%s", s.Snapshot)
		fmt.Fprintf(&b, " created=%s", stamp(s.CreatedAt))
		field(&b, " (%s)", s.Reason)
		b.WriteByte('\n')
	}
	return p.list(b.String(), "No sandboxes. Create one with sandbox_create.")
}

// describe describes a sandbox in one line.
func describe(sb *sandbox.Sandbox) string {
	var b strings.Builder
	b.WriteString(sb.ID)
	field(&b, " (%s)", sb.Name)
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
	b.WriteString(origin(sb) + connectionText(sb))
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

// unenforced lists the limits that the machine does not enforce, for results of calls
// that set limits or ask for all details.
func unenforced(sb *sandbox.Sandbox) string {
	var b strings.Builder
	for _, u := range sb.Unenforced {
		fmt.Fprintf(&b, "\nNot enforced on this machine: %s.", u)
	}
	return b.String()
}

// origin describes what a sandbox was made from, and its history.
func origin(sb *sandbox.Sandbox) string {
	var s string
	if sb.ForkedFrom != "" {
		s += ", forked from " + sb.ForkedFrom
	}
	if sb.Snapshot != "" {
		s += ", from snapshot " + sb.Snapshot
	}
	if m := sb.MadeFrom; m != nil {
		s += ", made from the state of " + m.SandboxID + " at " + stamp(m.StateAt)
	}
	if sb.History > 0 {
		s += ", keeps a history of " + plural(int64(sb.History), "step")
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
