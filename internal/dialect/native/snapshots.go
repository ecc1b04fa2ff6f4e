package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// snapshotView is a snapshot in a result.
type snapshotView struct {
	*sandbox.Snapshot
	// Namespace stays empty: it is the same for all that a client sees.
	Namespace string `json:"namespace,omitempty"`
	// Step is the place of an automatic one in its sandbox's history: -1 is
	// the newest.
	Step  int    `json:"step,omitempty"`
	Label string `json:"label,omitempty"`
}

func viewSnapshot(s *sandbox.Snapshot) snapshotView {
	return snapshotView{Snapshot: s, Label: shorten([]string{s.Label})}
}

func snapshotProps() []prop {
	return []prop{
		req("id", text("Give it as snapshot to snapshot_restore or sandbox_create.")),
		opt("name", text("")),
		req("team", text("")),
		req("sandbox_id", text("The sandbox whose state it is; that one may have ended.")),
		req("kind", oneOf("memory is memory, processes and files; files is changed files only.", string(sandbox.SnapshotMemory), string(sandbox.SnapshotFiles))),
		opt("automatic", boolean("A step of the sandbox's history.")),
		opt("step", integer("Its place in the history; -1 is the newest. Give it as step to snapshot_restore.", -sandbox.MaxHistory, -1)),
		opt("label", text("Its maker's note; of a step, the command that it was made before, shortened.")),
		opt("parent_id", text("The snapshot that the sandbox was made from or last restored to.")),
		req("template", text("")),
		req("resources", object("",
			req("vcpus", count("")), req("memory_mib", count("")), req("disk_mib", count("")), req("max_pids", count("")))),
		req("size_bytes", count("What it takes on disk.")),
		req("created_at", moment("")),
	}
}

func (v snapshotView) line() string {
	var b strings.Builder
	if v.Step != 0 {
		fmt.Fprintf(&b, "step %d: ", v.Step)
	}
	b.WriteString(v.ID)
	if v.Name != "" {
		fmt.Fprintf(&b, " name=%s", v.Name)
	}
	fmt.Fprintf(&b, " %s of %s, %s, created=%s", v.Kind, v.SandboxID, plural(v.SizeBytes, "byte"), stamp(v.CreatedAt))
	if v.Label != "" {
		fmt.Fprintf(&b, ", before: %s", oneLine(v.Label))
	}
	return b.String()
}

// oneLine shows line breaks as spaces.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

type snapshotCreateArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.CreateSnapshotRequest
}

func snapshotCreate() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:  "snapshot_create",
		Title: "Take a snapshot",
		Description: "Keep the state of a running or paused sandbox, which goes on, until snapshot_delete; it outlives the sandbox. Returns the snapshot's id. " +
			"Use it for states to come back to with snapshot_restore, or to begin new sandboxes with (sandbox_create with snapshot).",
		Annotations: annotations("Take a snapshot", false, false, false, false),
		InputSchema: input(
			sandboxArg(),
			opt("name", bounded("Name, unique among your snapshots; usable in place of the id. Lower-case letters, digits and dashes.", 0, sandbox.MaxNameLength)),
			opt("kind", with(oneOf("memory keeps memory, processes and files; files only changed files, and a sandbox made from it boots afresh.",
				string(sandbox.SnapshotMemory), string(sandbox.SnapshotFiles)), sandbox.SnapshotMemory)),
			opt("label", bounded("A note for whoever lists it.", 0, sandbox.MaxSnapshotLabel)),
		),
		OutputSchema: output(snapshotProps()...),
	}, func(ctx context.Context, c *dialect.Call, in snapshotCreateArgs) (*mcp.CallToolResult, error) {
		c.Status("taking the snapshot")
		s, err := c.Service.CreateSnapshot(ctx, in.Sandbox, in.CreateSnapshotRequest)
		if err != nil {
			return nil, err
		}
		v := viewSnapshot(s)
		return dialect.Text("Created snapshot "+v.line()+".", v), nil
	})
}

type snapshotListArgs struct {
	Sandbox   string `json:"sandbox"`
	Automatic bool   `json:"automatic"`
	Limit     int    `json:"limit"`
	Cursor    string `json:"cursor"`
}

type snapshotPage struct {
	Snapshots  []snapshotView `json:"snapshots"`
	NextCursor string         `json:"next_cursor,omitempty"`
}

func snapshotList() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:        "snapshot_list",
		Title:       "List snapshots",
		Description: "List your snapshots, newest first. With automatic, also the steps of one sandbox's history, numbered from the newest: step -1 is the state before the last command.",
		Annotations: annotations("List snapshots", true, false, true, false),
		InputSchema: input(concat([]prop{
			opt("sandbox", bounded("Only those of this sandbox, by id or name.", 0, 128)),
			opt("automatic", with(boolean("Add the steps of the sandbox's history; needs sandbox."), false)),
		}, pageArgs(200))...),
		OutputSchema: output(
			req("snapshots", array("", object("", snapshotProps()...), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get the next page; absent on the last.")),
		),
	}, runSnapshotList)
}

func runSnapshotList(ctx context.Context, c *dialect.Call, in snapshotListArgs) (*mcp.CallToolResult, error) {
	if in.Automatic && in.Sandbox == "" {
		return nil, invalid(`snapshot_list: steps are numbered for one sandbox; give "sandbox" too, or leave out "automatic"`)
	}
	var steps map[string]int
	if in.Automatic {
		var err error
		if steps, err = numberSteps(ctx, c.Service, in.Sandbox); err != nil {
			return nil, err
		}
	}
	var out snapshotPage
	err := fitPage(in.Limit, func(limit int) (any, error) {
		list, err := c.Service.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{
			Sandbox: in.Sandbox, Automatic: in.Automatic, Page: sandbox.Page{Limit: limit, Cursor: in.Cursor},
		})
		if err != nil {
			return nil, err
		}
		out = snapshotPage{Snapshots: make([]snapshotView, 0, len(list.Items)), NextCursor: list.NextCursor}
		for i := range list.Items {
			v := viewSnapshot(&list.Items[i])
			v.Step = steps[v.ID]
			out.Snapshots = append(out.Snapshots, v)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	return dialect.Text(out.text(), out), nil
}

// numberSteps returns the number of each step of a sandbox's history by its
// id: -1 is the newest.
func numberSteps(ctx context.Context, svc sandbox.Service, sb string) (map[string]int, error) {
	steps := make(map[string]int)
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		list, err := svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: sb, Automatic: true, Page: page})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if list.Items[i].Automatic && len(steps) < sandbox.MaxHistory {
				steps[list.Items[i].ID] = -len(steps) - 1
			}
		}
		if page.Cursor = list.NextCursor; page.Cursor == "" || len(steps) == sandbox.MaxHistory {
			return steps, nil
		}
	}
}

func (p snapshotPage) text() string {
	if len(p.Snapshots) == 0 {
		return "No snapshots. Take one with snapshot_create; steps are kept for sandboxes with a history (sandbox_update)."
	}
	var b strings.Builder
	for _, v := range p.Snapshots {
		b.WriteString(v.line() + "\n")
	}
	if p.NextCursor != "" {
		fmt.Fprintf(&b, "More: call again with cursor %s\n", p.NextCursor)
	}
	return b.String()
}

type snapshotRestoreArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.RestoreRequest
}

func snapshotRestore() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:  "snapshot_restore",
		Title: "Go back to a state",
		Description: "Put a running or paused sandbox back into a kept state: a snapshot, or a step of its history (step -1 undoes the last command). " +
			"It keeps its id, name and limits; its present memory, processes and files are lost.",
		Annotations: annotations("Go back to a state", false, true, false, false),
		InputSchema: input(
			sandboxArg(),
			opt("snapshot", bounded("Id or name of a snapshot. Give either this or step.", 0, 128)),
			opt("step", integer("A step of the history, from its end: -1 is before the last command, -2 before the one before it.", -sandbox.MaxHistory, -1)),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in snapshotRestoreArgs) (*mcp.CallToolResult, error) {
		if (in.Snapshot == "") == (in.Step == 0) {
			return nil, invalid("snapshot_restore: give either \"snapshot\" (an id or name) or \"step\" (-1 is before the last command); snapshot_list shows both")
		}
		c.Status("restoring the sandbox")
		sb, err := c.Service.RestoreSnapshot(ctx, in.Sandbox, in.RestoreRequest)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Restored sandbox "+describe(sb), view(sb)), nil
	})
}

type snapshotRef struct {
	Snapshot string `json:"snapshot"`
}

func snapshotDelete() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:         "snapshot_delete",
		Title:        "Delete a snapshot",
		Description:  "Delete a snapshot for good. Sandboxes made from it are unharmed.",
		Annotations:  annotations("Delete a snapshot", false, true, false, false),
		InputSchema:  input(req("snapshot", bounded("Id or name of the snapshot, from snapshot_create or snapshot_list.", 1, 128))),
		OutputSchema: output(snapshotProps()...),
	}, func(ctx context.Context, c *dialect.Call, in snapshotRef) (*mcp.CallToolResult, error) {
		s, err := c.Service.DeleteSnapshot(ctx, in.Snapshot)
		if err != nil {
			return nil, err
		}
		v := viewSnapshot(s)
		return dialect.Text("Deleted snapshot "+v.line()+".", v), nil
	})
}
