package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

type mergeOptions struct {
	jsonOption
	Files      bool
	Policy     string
	Paths      []string
	KillWinner bool
}

func (o *mergeOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVar(&o.Files, "files", false, "apply what the winner changed since the fork to the files of the parent, which runs on")
	f.StringVar(&o.Policy, "policy", "", "with --files, where both sides changed a path: ours keeps the parent's, theirs takes the winner's")
	f.StringArrayVar(&o.Paths, "path", nil, "with --files, only at or below this absolute path; may be repeated")
	f.BoolVar(&o.KillWinner, "kill-winner", false, "with --files, end the winner afterwards")
}

func (a *app) mergeCommand() *cobra.Command {
	var opts mergeOptions
	cmd := &cobra.Command{
		Use:   "merge PARENT WINNER [flags]",
		Short: "Bring the state of a fork back into its parent",
		Long: "Bring the state of a fork back into its parent, all of it or nothing. The winner's whole machine takes\n" +
			"over the parent's id, and the winner's id is gone; with --files the parent runs on and gets the winner's\n" +
			"file changes, which are printed. Paths that both sides changed stop the merge unless --policy says who\n" +
			"wins: they are printed, nothing is changed, and the exit code is 1.",
		Example: "  cove merge work idea-2\n" +
			"  cove merge work idea-2 --files --policy theirs --path /workspace --kill-winner",
		Args: argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runMerge(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runMerge(ctx context.Context, opts mergeOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.MergeRequest{
		Winner: args[1], Kind: sandbox.MergeWhole, Policy: sandbox.MergePolicy(opts.Policy),
		Paths: opts.Paths, KillWinner: opts.KillWinner,
	}
	if opts.Files {
		req.Kind = sandbox.MergeFiles
	}
	result, err := c.Merge(ctx, args[0], req)
	switch {
	case err != nil:
		return err
	case opts.JSON:
		err = a.printJSON(result)
	default:
		err = a.printMerge(result)
	}
	if err != nil {
		return err
	}
	return unmerged(result)
}

// printMerge prints the parent's id, or what was applied to its files, or what
// stopped the merge.
func (a *app) printMerge(result *sandbox.MergeResult) error {
	if !result.Merged {
		return a.print(conflictLines(result.Conflicts))
	}
	if result.Kind != sandbox.MergeFiles && result.Sandbox != nil {
		return a.print(result.Sandbox.ID + "\n")
	}
	var b strings.Builder
	for _, c := range result.Applied {
		b.WriteString(changeLine(c) + "\n")
	}
	return a.print(b.String())
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
		"nothing was merged, for both sides changed the same paths (%d); keep the parent's with --policy ours or take the winner's with --policy theirs",
		len(result.Conflicts))
}
