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
		Use: "merge PARENT WINNER [flags]", Short: "Bring the state of a fork back into its parent",
		Long: "Bring the state of a fork back into its parent, all of it or nothing. The winner's whole machine takes\n" +
			"over the parent's id, and the winner's id is gone; with --files the parent runs on and gets the winner's\n" +
			"file changes, which are printed. Paths that both sides changed stop the merge unless --policy, or --ours\n" +
			"and --theirs path by path, say who wins: they are printed, nothing is changed, and the exit code is 1.",
		Example: "  cove merge work idea-2\n" +
			"  cove merge work idea-2 --files --policy theirs --path /workspace --kill-winner\n" +
			"  cove merge work idea-2 --files --ours /workspace/plan.md --theirs /workspace/src",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&files, "files", false, "apply what the winner changed since the fork to the files of the parent, which runs on")
			f.StringVar((*string)(&req.Policy), "policy", "", "with --files, where both sides changed a path: ours keeps the parent's, theirs takes the winner's")
			f.StringArrayVar(&ours, "ours", nil, "with --files, keep the parent's where both sides changed this absolute path, or something below it; may be repeated")
			f.StringArrayVar(&theirs, "theirs", nil, "the same, but take the winner's")
			f.StringArrayVar(&req.Paths, "path", nil, "with --files, only at or below this absolute path; may be repeated")
			f.BoolVar(&req.KillWinner, "kill-winner", false, "with --files, end the winner afterwards")
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

// resolution says of each path who wins there.
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
			return nil, c.misuse("merge: %q is given with --ours and with --theirs; give one of them", p)
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

// unmerged is the error of a merge that conflicts have stopped.
func unmerged(result *sandbox.MergeResult) error {
	if result.Merged {
		return nil
	}
	return sandbox.Errorf(sandbox.CodeConflict,
		"nothing was merged, for both sides changed the same paths (%d); keep the parent's with --policy ours or take the winner's with --policy theirs, or say it of each path with --ours and --theirs",
		len(result.Conflicts))
}
