package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type mergeArgs struct {
	sandboxRef
	sandbox.MergeRequest
}

// mergeView is the outcome of a merge in a result.
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

func mergeFork(ctx context.Context, c *dialect.Call, in mergeArgs) (*reply[mergeView], error) {
	c.Status("merging")
	res, err := c.Service.Merge(ctx, in.Sandbox, in.MergeRequest)
	if err != nil {
		return nil, err
	}
	v, err := viewMerge(res, maxResultBytes)
	if err != nil {
		return nil, err
	}
	return answer(v.text(), v)
}

// viewMerge returns as much of a merge's result as fits into size bytes of
// JSON. Conflicts come first, since they need a decision.
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
		v.Hint = `merge again with policy "ours" to keep the parent's version of these paths, "theirs" to take the fork's, with resolve to say it of each path, or with paths that leave them out; or kind "whole" to replace the parent by the fork`
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
	field(&b, "hint: %s\n", v.Hint)
	return b.String()
}

func (v mergeView) parent() string {
	if v.SandboxID == "" {
		return "the parent"
	}
	return v.SandboxID
}
