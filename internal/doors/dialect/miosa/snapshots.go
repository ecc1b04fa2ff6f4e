package miosa

import (
	"cmp"
	"context"
	"iter"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// snapshotPrefix is the prefix of every snapshot's id.
const snapshotPrefix = "snap-"

// snapshot is a snapshot in the product's terms.
type snapshot struct {
	ID        string `json:"id"`
	Sandbox   string `json:"sandbox_id"`
	Name      string `json:"name"`
	Comment   string `json:"comment"`
	Status    string `json:"status"`
	Keep      bool   `json:"keep"`
	SizeBytes int64  `json:"size_bytes"`
	CreatedAt string `json:"created_at"`
}

func snapshotOf(s *sandbox.Snapshot) snapshot {
	name, comment := s.Name, s.Label
	if name == "" {
		name, comment, _ = strings.Cut(s.Label, "\n")
	}
	return snapshot{
		ID: s.ID, Sandbox: s.SandboxID, Name: name, Comment: comment, Status: "ready", Keep: true,
		SizeBytes: s.SizeBytes, CreatedAt: dialect.Stamp(s.CreatedAt),
	}
}

type snapshotArgs struct {
	Sandbox   string `json:"sandbox_id"`
	Name      string `json:"name"`
	Comment   string `json:"comment"`
	Retention any    `json:"retention_seconds"`
	Seconds   any    `json:"expiration_seconds"`
	Days      any    `json:"expiration_days"`
}

func createSnapshot(ctx context.Context, c *call, in snapshotArgs) (*mcp.CallToolResult, error) {
	switch {
	case in.Retention != nil || in.Seconds != nil || in.Days != nil:
		return nil, dialect.Invalid("snapshots do not expire on this server; leave out retention_seconds, expiration_seconds and expiration_days")
	case strings.Contains(in.Name, "\n"):
		return nil, dialect.Invalid("name must be one line; put the rest into comment")
	}
	id, err := c.sandbox(in.Sandbox)
	if err != nil {
		return nil, err
	}
	c.Status("taking a snapshot")
	s, err := c.snapshotNamed(ctx, id, in.Name, in.Comment)
	if err != nil {
		return nil, c.about(ctx, id, err)
	}
	return result(snapshotOf(s))
}

// snapshotNamed makes a snapshot with a name: as the service's name if the service accepts
// it, otherwise as the first line of its label. The product's names are arbitrary text, and
// each sandbox has its own.
func (c *call) snapshotNamed(ctx context.Context, id, name, comment string) (*sandbox.Snapshot, error) {
	if dialect.IsName(name) {
		s, err := c.Service.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Name: name, Label: comment})
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return s, err
		}
		if _, getErr := c.Service.GetSnapshot(ctx, name); getErr != nil { // the name was not taken
			return nil, err
		}
	}
	label := name
	if comment != "" {
		label += "\n" + comment
	}
	return c.Service.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Label: label})
}

type restoreArgs struct {
	Snapshot string `json:"snapshot_id"`
	Sandbox  string `json:"sandbox_id"`
}

func restoreSnapshot(ctx context.Context, c *call, in restoreArgs) (*mcp.CallToolResult, error) {
	active, _ := c.session.active()
	s, err := c.findSnapshot(ctx, cmp.Or(in.Sandbox, active), in.Snapshot)
	if err != nil {
		return nil, err
	}
	c.Status("restoring")
	restored, note, err := c.restore(ctx, s, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if restored.Desktop != nil {
		c.session.useComputer(restored.ID)
	}
	c.session.useSandbox(restored.ID)
	m := machineOf(restored)
	m.Note = note
	return result(m)
}

// restore restores the named sandbox, or the snapshot's own, to a snapshot. If that sandbox
// has ended, a new one starts from the snapshot, and note says so.
func (c *call) restore(ctx context.Context, s *sandbox.Snapshot, named string) (restored *sandbox.Sandbox, note string, err error) {
	id := cmp.Or(named, s.SandboxID)
	own, err := c.Service.Get(ctx, id)
	switch {
	case named != "" || err == nil && !own.State.Final():
		restored, err = c.Service.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: s.ID})
		return restored, "", c.about(ctx, id, err)
	case err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return nil, "", err
	}
	req := sandbox.CreateRequest{Snapshot: s.ID}
	(&createArgs{Persistent: true}).timers(&req)
	if own != nil { // the record of an ended sandbox is kept for a while
		req.Metadata, req.OnTimeout = own.Metadata, own.OnTimeout
		req.IdleTimeoutSeconds, req.LifetimeSeconds = &own.IdleTimeoutSeconds, &own.LifetimeSeconds
	}
	restored, err = c.Service.Create(ctx, req)
	return restored, "sandbox " + s.SandboxID + " has ended; this is a new one that begins with its snapshot", err
}

// deleteSnapshot deletes a snapshot by its id.
func deleteSnapshot(ctx context.Context, c *call, id string) (*mcp.CallToolResult, error) {
	s, err := c.Service.DeleteSnapshot(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = noSnapshot(id, err)
	}
	if err != nil {
		return nil, err
	}
	return result(changed{s.ID, "deleted"})
}

func noSnapshot(ref string, err error) error {
	return sandbox.Wrap(sandbox.CodeNotFound, err, "there is no snapshot "+quoted(ref)+"; see snapshot_list")
}

// findSnapshot returns a snapshot by its id; or the newest of a sandbox by its name or
// comment; or by its name in the team.
func (c *call) findSnapshot(ctx context.Context, id, snapshot string) (*sandbox.Snapshot, error) {
	if !strings.HasPrefix(snapshot, snapshotPrefix) && id != "" {
		found, err := c.snapshotOf(ctx, id, snapshot)
		if found != nil || err != nil {
			return found, err
		}
	}
	s, err := c.Service.GetSnapshot(ctx, snapshot)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = noSnapshot(snapshot, err)
	}
	return s, err
}

// snapshotOf returns the newest snapshot of a sandbox with this name or comment, or nil.
func (c *call) snapshotOf(ctx context.Context, id, name string) (*sandbox.Snapshot, error) {
	for s, err := range c.snapshots(ctx, id) {
		if err != nil {
			return nil, c.about(ctx, id, err)
		}
		if v := snapshotOf(&s); v.Name == name || v.Comment == name {
			return &s, nil
		}
	}
	return nil, nil
}

// snapshots returns the snapshots of a sandbox, newest first.
func (c *call) snapshots(ctx context.Context, id string) iter.Seq2[sandbox.Snapshot, error] {
	return sandbox.Each(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Snapshot], error) {
		return c.Service.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: id, Page: p})
	})
}

// snapshots are the snapshots of a sandbox.
type snapshots struct {
	Snapshots []snapshot `json:"snapshots"`
}

// listSnapshots lists the snapshots of a sandbox, which may have ended, or all if none is
// named or active.
func listSnapshots(ctx context.Context, c *call, in sandboxArgs) (*mcp.CallToolResult, error) {
	active, _ := c.session.active()
	id := cmp.Or(in.Sandbox, active)
	out := snapshots{Snapshots: []snapshot{}}
	for s, err := range c.snapshots(ctx, id) {
		if err != nil {
			return nil, c.about(ctx, id, err)
		}
		out.Snapshots = append(out.Snapshots, snapshotOf(&s))
	}
	return result(out)
}
