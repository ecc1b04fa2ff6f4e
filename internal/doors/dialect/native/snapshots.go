package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// snapshotView is a snapshot in a result.
type snapshotView struct {
	*sandbox.Snapshot
	// Namespace stays empty: it is the same for all that a client sees.
	Namespace string `json:"namespace,omitempty"`
	// Step is the position of an automatic snapshot in its sandbox's history: -1 is
	// the newest.
	Step  int    `json:"step,omitempty"`
	Label string `json:"label,omitempty"`
}

func viewSnapshot(s *sandbox.Snapshot) snapshotView {
	return snapshotView{Snapshot: s, Label: shorten([]string{s.Label})}
}

func (v snapshotView) line() string {
	var b strings.Builder
	if v.Step != 0 {
		fmt.Fprintf(&b, "step %d: ", v.Step)
	}
	b.WriteString(v.ID)
	field(&b, " name=%s", v.Name)
	fmt.Fprintf(&b, " %s of %s, %s, created=%s", v.Kind, v.SandboxID, plural(v.SizeBytes, "byte"), stamp(v.CreatedAt))
	if v.Label != "" {
		fmt.Fprintf(&b, ", before: %s", oneLine(v.Label))
	}
	return b.String()
}

// oneLine replaces runs of white space by one space.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

type snapshotCreateArgs struct {
	sandboxRef
	sandbox.CreateSnapshotRequest
}

func createSnapshot(ctx context.Context, c *dialect.Call, in snapshotCreateArgs) (*reply[snapshotView], error) {
	c.Status("taking the snapshot")
	s, err := c.Service.CreateSnapshot(ctx, in.Sandbox, in.CreateSnapshotRequest)
	return answerSnapshot("Created", s, err)
}

func answerSnapshot(done string, s *sandbox.Snapshot, err error) (*reply[snapshotView], error) {
	if err != nil {
		return nil, err
	}
	v := viewSnapshot(s)
	return answer(done+" snapshot "+v.line()+".", v)
}

type snapshotPage struct {
	Snapshots []snapshotView `json:"snapshots"`
	nextPage
}

func listSnapshots(ctx context.Context, c *dialect.Call, in sandbox.ListSnapshotsRequest) (*reply[snapshotPage], error) {
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
	return fitPage(in.Limit, &out, func(limit int) error {
		in.Limit = limit
		list, err := c.Service.ListSnapshots(ctx, in)
		out.Snapshots, out.nextPage = views(list, func(s *sandbox.Snapshot) snapshotView {
			v := viewSnapshot(s)
			v.Step = steps[v.ID]
			return v
		})
		return err
	})
}

// numberSteps returns the number of each step of a sandbox's history by its
// id: -1 is the newest.
func numberSteps(ctx context.Context, svc sandbox.Service, sb string) (map[string]int, error) {
	steps := make(map[string]int)
	for s, err := range sandbox.Each(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Snapshot], error) {
		return svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: sb, Automatic: true, Page: page})
	}) {
		if err != nil {
			return nil, err
		}
		if s.Automatic {
			steps[s.ID] = -len(steps) - 1
		}
		if len(steps) == sandbox.MaxHistory {
			break
		}
	}
	return steps, nil
}

func (p snapshotPage) text() string {
	var b strings.Builder
	for _, v := range p.Snapshots {
		b.WriteString(v.line() + "\n")
	}
	return p.list(b.String(), "No snapshots. Take one with snapshot_create; steps are kept for sandboxes with a history (sandbox_update).")
}

type snapshotRestoreArgs struct {
	sandboxRef
	sandbox.RestoreRequest
}

func restoreSnapshot(ctx context.Context, c *dialect.Call, in snapshotRestoreArgs) (*reply[sandboxView], error) {
	if (in.Snapshot == "") == (in.Step == 0) {
		return nil, invalid("snapshot_restore: give either \"snapshot\" (an id or name) or \"step\" (-1 is before the last command); snapshot_list shows both")
	}
	c.Status("restoring the sandbox")
	sb, err := c.Service.RestoreSnapshot(ctx, in.Sandbox, in.RestoreRequest)
	return described("Restored", sb, err)
}

type snapshotRef struct {
	Snapshot string `json:"snapshot"`
}

func deleteSnapshot(ctx context.Context, c *dialect.Call, in snapshotRef) (*reply[snapshotView], error) {
	s, err := c.Service.DeleteSnapshot(ctx, in.Snapshot)
	return answerSnapshot("Deleted", s, err)
}
