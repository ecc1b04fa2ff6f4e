package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type mergeArgs struct {
	Sandbox string `json:"sandbox"`
	sandbox.MergeRequest
}

// mergeView is what a merge did, in a result.
type mergeView struct {
	Merged    bool               `json:"merged"`
	Kind      sandbox.MergeKind  `json:"kind"`
	SandboxID string             `json:"sandbox_id,omitempty"`
	Applied   []changeView       `json:"applied,omitempty"`
	AppliedN  int                `json:"applied_total"`
	Conflicts []sandbox.Conflict `json:"conflicts,omitempty"`
	ConflictN int                `json:"conflicts_total"`
	Truncated bool               `json:"truncated"`
	Hint      string             `json:"hint,omitempty"`
}

func mergeKindSchema(description string) *jsonschema.Schema {
	return with(oneOf(description, string(sandbox.MergeWhole), string(sandbox.MergeFiles)), sandbox.MergeWhole)
}

func policySchema() *jsonschema.Schema {
	return oneOf("For files: whose version wins where both sides changed a path, ours (the parent's) or theirs (the fork's). If left out, a conflict stops the merge.",
		string(sandbox.PolicyOurs), string(sandbox.PolicyTheirs))
}

func sandboxMerge() dialect.Tool {
	return dialect.New(toolsetTime, &mcp.Tool{
		Name:  "sandbox_merge",
		Title: "Merge a fork back",
		Description: "Bring a fork (the winner) back into its parent. whole: the winner's memory, processes and files replace the parent's under the parent's id, and the winner's id ends. " +
			"files: what the winner changed since the fork is applied to the files of the running parent; if both changed a path, merged is false, nothing is changed and conflicts are listed.",
		Annotations: annotations("Merge a fork back", false, true, false, false),
		InputSchema: input(
			req("sandbox", bounded("Id or name of the parent, which is changed.", 1, 128)),
			req("winner", bounded("Id or name of the fork to merge.", 1, 128)),
			opt("kind", mergeKindSchema("What comes back.")),
			opt("policy", policySchema()),
			opt("paths", pathsSchema("For files: only changes at or below these absolute paths.")),
			opt("kill_winner", with(boolean("For files: end the winner after the merge."), false)),
		),
		OutputSchema: output(mergeProps()...),
	}, func(ctx context.Context, c *dialect.Call, in mergeArgs) (*mcp.CallToolResult, error) {
		c.Status("merging")
		res, err := c.Service.Merge(ctx, in.Sandbox, in.MergeRequest)
		if err != nil {
			return nil, err
		}
		v, err := viewMerge(res, maxResultBytes)
		if err != nil {
			return nil, err
		}
		return dialect.Text(v.text(), v), nil
	})
}

func mergeProps() []prop {
	did := func() *jsonschema.Schema {
		return oneOf("", string(sandbox.ChangeAdded), string(sandbox.ChangeRemoved), string(sandbox.ChangeModified))
	}
	return []prop{
		req("merged", boolean("False if conflicts stopped it; nothing was changed then.")),
		req("kind", oneOf("", string(sandbox.MergeWhole), string(sandbox.MergeFiles))),
		opt("sandbox_id", text("The parent.")),
		opt("applied", array("Changes made to the parent's files.", changeSchema(), 0, 0)),
		req("applied_total", count("")),
		opt("conflicts", array("Paths that both sides changed differently: ours is what the parent did, theirs the fork.", object("",
			req("path", text("")), req("ours", did()), req("theirs", did())), 0, 0)),
		req("conflicts_total", count("")),
		req("truncated", boolean("Some changes or conflicts are left out.")),
		opt("hint", text("What to do next.")),
	}
}

// viewMerge returns as much of a merge's result as fits into size bytes of
// JSON. Conflicts come first: they are what is to be decided.
func viewMerge(res *sandbox.MergeResult, size int) (mergeView, error) {
	v := mergeView{Merged: res.Merged, Kind: res.Kind, AppliedN: len(res.Applied), ConflictN: len(res.Conflicts)}
	if res.Sandbox != nil {
		v.SandboxID = res.Sandbox.ID
	}
	// Room for what is around the lists, and the hint.
	size -= 768
	for _, conflict := range res.Conflicts {
		n, err := encodedSize(conflict)
		if err != nil {
			return mergeView{}, err
		}
		if size -= n + 1; size < 0 {
			break
		}
		v.Conflicts = append(v.Conflicts, conflict)
	}
	d, err := viewDiff(&sandbox.Diff{Changes: res.Applied}, size)
	if err != nil {
		return mergeView{}, err
	}
	v.Applied = d.Changes
	v.Truncated = d.Truncated || len(v.Conflicts) < v.ConflictN
	if !v.Merged && v.ConflictN > 0 {
		v.Hint = `merge again with policy "ours" to keep the parent's version of these paths, "theirs" to take the fork's, or with paths that leave them out; or kind "whole" to replace the parent by the fork`
	}
	return v, nil
}

func (v mergeView) text() string {
	var b strings.Builder
	switch {
	case !v.Merged:
		fmt.Fprintf(&b, "Not merged: both sides changed %s. Nothing was changed.\n", plural(int64(v.ConflictN), "path"))
	case v.Kind == sandbox.MergeWhole:
		fmt.Fprintf(&b, "Merged: %s now has the memory, processes and files of the fork, whose own id has ended.\n", v.parent())
	default:
		fmt.Fprintf(&b, "Merged: %s applied to the files of %s.\n", plural(int64(v.AppliedN), "change"), v.parent())
	}
	for _, c := range v.Conflicts {
		fmt.Fprintf(&b, "conflict: %s (ours: %s, theirs: %s)\n", showPath(c.Path), c.Ours, c.Theirs)
	}
	if rest := v.ConflictN - len(v.Conflicts); rest > 0 {
		fmt.Fprintf(&b, "[… %s more left out …]\n", plural(int64(rest), "conflict"))
	}
	diffView{Changes: v.Applied, Modified: v.AppliedN}.list(&b)
	if v.Hint != "" {
		fmt.Fprintf(&b, "hint: %s\n", v.Hint)
	}
	return b.String()
}

func (v mergeView) parent() string {
	if v.SandboxID == "" {
		return "the parent"
	}
	return v.SandboxID
}
