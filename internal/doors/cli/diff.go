package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) diffCommand() *cobra.Command {
	var req sandbox.DiffRequest
	stat, exitCode := false, false
	return a.make(command{
		Use: "diff SUBJECT [AGAINST] [flags]", Short: "Show which files of a sandbox or snapshot changed",
		Long: "Compare the files of a sandbox or snapshot with its template, or with another sandbox or snapshot: A is\n" +
			"added, D is deleted, M is modified. /tmp and /dev are in memory and are not compared. Paused sandboxes\n" +
			"stay paused.",
		Example: "  cove diff work\n" +
			"  cove diff idea-1 work -p --path /workspace\n" +
			"  cove diff work before-upgrade --exit-code || echo changed",
		Flags: func(f *pflag.FlagSet) {
			f.StringArrayVar(&req.Paths, "path", nil, "Show only changes at or below this absolute path (repeatable)")
			f.BoolVarP(&req.Patch, "patch", "p", false, "Show unified diffs of text files")
			f.BoolVar(&stat, "stat", false, "Show sizes and modes, and the number of changes")
			f.IntVar(&req.Limit, "limit", 0, fmt.Sprintf("Show at most this many changes (default %d)", sandbox.DefaultDiffLimit))
			f.BoolVar(&exitCode, "exit-code", false, "Exit with code 1 if there are changes")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			req.Against = c.arg(1)
			diff, err := c.client.Diff(ctx, c.args[0], req)
			view := func(c *call, d *sandbox.Diff) error { return c.printDiff(d, stat) }
			if err := shown(c, view, diff, err); err != nil {
				return err
			}
			if exitCode && diff.Added+diff.Removed+diff.Modified > 0 {
				return &exit{code: exitError}
			}
			return nil
		}},
	})
}

func (a *app) printDiff(diff *sandbox.Diff, stat bool) error {
	var b strings.Builder
	for _, c := range diff.Changes {
		b.WriteString(changeLine(c))
		if stat {
			b.WriteString(changeStat(c))
		}
		b.WriteByte('\n')
		b.WriteString(a.patch(c.Patch))
	}
	if stat {
		fmt.Fprintf(&b, "%d added, %d removed, %d modified\n", diff.Added, diff.Removed, diff.Modified)
	}
	if diff.Truncated {
		a.say("showing the first %d of %d changes; show more with --limit", len(diff.Changes), diff.Added+diff.Removed+diff.Modified)
	}
	return a.print(b.String())
}

// changeLine formats a change as "M /path (content, mode)".
func changeLine(c sandbox.Change) string {
	line := changeLetter(c.Kind) + " " + cleanLine(c.Path)
	if len(c.Aspects) > 0 {
		words := make([]string, 0, len(c.Aspects))
		for _, aspect := range c.Aspects {
			words = append(words, cleanLine(string(aspect)))
		}
		line += " (" + strings.Join(words, ", ") + ")"
	}
	return line
}

func changeLetter(kind sandbox.ChangeKind) string {
	switch kind {
	case sandbox.ChangeAdded:
		return "A"
	case sandbox.ChangeRemoved:
		return "D"
	case sandbox.ChangeModified:
		return "M"
	}
	return "?" // of a newer server
}

// changeStat formats the old and new sizes and modes.
func changeStat(c sandbox.Change) string {
	var parts []string
	if c.Type == sandbox.TypeFile {
		parts = append(parts, beforeAfter(c.Kind, bytesText(c.OldSize), bytesText(c.NewSize)))
	}
	if c.OldMode != c.NewMode {
		parts = append(parts, beforeAfter(c.Kind, cleanLine(c.OldMode), cleanLine(c.NewMode)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  " + strings.Join(parts, ", ")
}

func beforeAfter(kind sandbox.ChangeKind, before, after string) string {
	switch {
	case kind == sandbox.ChangeAdded, before == after:
		return after
	case kind == sandbox.ChangeRemoved:
		return before
	}
	return before + " -> " + after
}

// patch returns a patch unchanged, so that it can be applied. For a terminal, it
// escapes control characters.
func (a *app) patch(text string) string {
	if text == "" {
		return ""
	}
	return a.foreign(strings.TrimSuffix(text, "\n")) + "\n"
}

// foreign returns a text of several lines from a sandbox, unchanged, or with control
// characters escaped for a terminal.
func (a *app) foreign(text string) string {
	if isTerminal(a.Stdout) {
		return clean(text)
	}
	return text
}
