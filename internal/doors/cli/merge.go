package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) mergeCommand() *cobra.Command {
	req := sandbox.MergeRequest{Kind: sandbox.MergeWhole}
	files := false
	var ours, theirs []string
	return a.make(command{
		Use: "merge PARENT WINNER [flags]", Short: "Merge a fork back into its parent",
		Long: "Merge a fork (the winner) back into its parent, completely or not at all.\n\n" +
			"By default the winner's whole machine replaces the parent under the parent's id, and the winner's id\n" +
			"is gone. With --files the parent keeps running and gets the winner's file changes, which are printed.\n\n" +
			"Paths that both sides changed are conflicts. Without --policy, or --ours and --theirs for single\n" +
			"paths, a conflict stops the merge: the conflicts are printed, nothing changes, and the exit code is 1.",
		Example: "  cove merge work idea-2\n" +
			"  cove merge work idea-2 --files --policy theirs --path /workspace --kill-winner\n" +
			"  cove merge work idea-2 --files --ours /workspace/plan.md --theirs /workspace/src",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&files, "files", false, "Apply the winner's file changes since the fork to the running parent")
			f.StringVar((*string)(&req.Policy), "policy", "", "With --files, on a conflict: ours keeps the parent's version, theirs takes the winner's")
			f.StringArrayVar(&ours, "ours", nil, "With --files, keep the parent's version on conflicts at or below this absolute path (repeatable)")
			f.StringArrayVar(&theirs, "theirs", nil, "With --files, take the winner's version on conflicts at or below this absolute path (repeatable)")
			f.StringArrayVar(&req.Paths, "path", nil, "With --files, merge only at or below this absolute path (repeatable)")
			f.BoolVar(&req.KillWinner, "kill-winner", false, "With --files, end the winner afterwards")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			req.Winner = c.args[1]
			if files {
				req.Kind = sandbox.MergeFiles
			}
			var err error
			if req.Resolve, err = resolution(c, ours, theirs); err != nil {
				return err
			}
			result, err := c.client.Merge(ctx, c.args[0], req)
			if err := shown(c, printMerge, result, err); err != nil {
				return err
			}
			return unmerged(result)
		}},
	})
}

// resolution returns who wins at each path.
func resolution(c *call, ours, theirs []string) (map[string]sandbox.MergePolicy, error) {
	if len(ours)+len(theirs) == 0 {
		return nil, nil
	}
	all := map[string]sandbox.MergePolicy{}
	for _, p := range ours {
		all[p] = sandbox.PolicyOurs
	}
	for _, p := range theirs {
		if all[p] == sandbox.PolicyOurs {
			return nil, c.misuse("merge: %q is given with both --ours and --theirs; use one of them", p)
		}
		all[p] = sandbox.PolicyTheirs
	}
	return all, nil
}

// printMerge prints the parent's id, or what was applied to its files, or what
// stopped the merge.
func printMerge(c *call, result *sandbox.MergeResult) error {
	if !result.Merged {
		return c.print(conflictLines(result.Conflicts))
	}
	if result.Kind != sandbox.MergeFiles && result.Sandbox != nil {
		return c.print(result.Sandbox.ID + "\n")
	}
	var b strings.Builder
	for _, change := range result.Applied {
		b.WriteString(changeLine(change) + "\n")
	}
	return c.print(b.String())
}

func conflictLines(conflicts []sandbox.Conflict) string {
	var b strings.Builder
	for _, c := range conflicts {
		fmt.Fprintf(&b, "C %s (parent %s, winner %s)\n", cleanLine(c.Path), cleanLine(string(c.Ours)), cleanLine(string(c.Theirs)))
	}
	return b.String()
}

// unmerged returns the error of a merge that conflicts have stopped.
func unmerged(result *sandbox.MergeResult) error {
	if result.Merged {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeConflict,
		"nothing was merged: both sides changed the same paths (%d); use --policy ours to keep the parent's or --policy theirs to take the winner's, or decide for each path with --ours and --theirs",
		len(result.Conflicts))
}
