package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) tryCommand() *cobra.Command {
	var req sandbox.TryRequest
	var each sandbox.TryCommand // what the commands of all forks have in common
	var lines []string
	output := false
	return a.make(command{
		Use: "try SANDBOX [flags] {-- COMMAND [ARG...] | -c LINE...}", Short: "Run commands in parallel forks of a sandbox and keep the best",
		Long: "Fork a sandbox several times, run a command in each fork, and show how each attempt ended and what it\n" +
			"changed. The attempt that --pick chooses is merged back into the sandbox; the other forks are ended\n" +
			"unless --keep keeps them.\n\n" +
			"Interrupting cove ends all forks. The exit code is 1 if an attempt should have been merged and was not.",
		Example: "  cove try work -n 5 --pick first_success -- ./fix-and-test.sh\n" +
			"  cove try work -c 'pip install a && pytest' -c 'pip install b && pytest' --keep winners",
		Args: tryArgs,
		Flags: func(f *pflag.FlagSet) {
			f.IntVarP(&req.Count, "count", "n", 0, fmt.Sprintf("Number of forks, 1 to %d (default one for each command)", sandbox.MaxForks))
			f.StringArrayVarP(&lines, "shell", "c", nil, "Shell command line to run instead of COMMAND; repeat it to run a different one in each fork")
			f.VarP(pairsFlag(&each.Env), "env", "e", "Environment variable (repeatable)")
			f.StringVarP(&each.User, "user", "u", "", "User to run the commands as")
			f.StringVarP(&each.WorkDir, "workdir", "w", "", "Working directory")
			f.Var(millisecondsFlag(&req.TimeoutMS), "timeout", fmt.Sprintf("End each command after this time (default %s)", sandbox.DefaultExecTimeout))
			f.StringVar(&req.Pick, "pick", "", "Attempt to merge back: first_success, an index such as 2, or none (default none)")
			f.StringVar((*string)(&req.Merge), "merge", "", "How to merge: whole or files (default whole; see cove merge --help)")
			f.StringVar((*string)(&req.Policy), "policy", "", "With --merge files, on a conflict: ours or theirs")
			f.StringVar((*string)(&req.Keep), "keep", "", "Which other attempts to keep: none, winners (exit code 0) or all (default none)")
			f.BoolVar(&req.NoDiff, "no-diff", false, "Do not compute what each attempt changed")
			f.BoolVar(&output, "output", false, "Print the output of each attempt after the summary")
		},
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			if (len(c.args) > 1) == (len(lines) > 0) {
				return c.misuse("try: pass either a command, after --, or shell lines with -c")
			}
			req.Commands = tryCommands(each, c.args[1:], lines)
			result, err := c.client.Try(ctx, c.args[0], req, c.attemptEnded)
			view := func(c *call, r *sandbox.TryResult) error { return c.printTry(r, output) }
			if err := shown(c, view, result, err); err != nil {
				return err
			}
			return unpicked(result, req.Pick)
		}},
	})
}

// tryArgs checks that there is only a sandbox before the command.
func tryArgs(cmd *cobra.Command, args []string) error {
	if err := argsBetween(1, -1)(cmd, args); err != nil {
		return err
	}
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash == 0:
		return usageError(cmd, errors.New("try: missing sandbox; name it before --"))
	case dash > 1, dash < 0 && len(args) > 1:
		return usageError(cmd, fmt.Errorf("try: unexpected argument %q; put -- before the command", args[1]))
	}
	return nil
}

// tryCommands returns the command, or a shell command for each line, with the fields
// that they have in common.
func tryCommands(each sandbox.TryCommand, command, lines []string) []sandbox.TryCommand {
	if len(command) > 0 {
		each.Command = command
		return []sandbox.TryCommand{each}
	}
	var commands []sandbox.TryCommand
	for _, line := range lines {
		each.Shell = line
		commands = append(commands, each)
	}
	return commands
}

func (a *app) attemptEnded(ev sandbox.TryEvent) error {
	at := ev.Attempt
	a.say("attempt %d: %s after %s (%d of %d)", at.Index, cleanLine(attemptOutcome(at)), attemptTime(at), ev.Done, ev.Total)
	return nil
}

// unpicked returns the error of a try that should have merged an attempt and did not.
func unpicked(result *sandbox.TryResult, pick string) error {
	switch {
	case result.Merge != nil:
		return unmerged(result.Merge)
	case result.Picked != nil, pick == "", pick == sandbox.PickNone:
		return nil
	case pick == sandbox.PickFirstSuccess:
		return errors.New("no attempt exited with code 0, so none was merged; see their output with --output")
	}
	return fmt.Errorf("attempt %s was not merged; see its output with --output", pick)
}

func (a *app) printTry(result *sandbox.TryResult, output bool) error {
	rows := make([][]string, 0, len(result.Attempts))
	for _, at := range result.Attempts {
		kept, merged := "", ""
		if at.Kept {
			kept = at.SandboxID
		}
		if result.Picked != nil && *result.Picked == at.Index {
			merged = "picked"
			if result.Merge != nil && !result.Merge.Merged {
				merged = "conflicts"
			}
		}
		rows = append(rows, []string{strconv.Itoa(at.Index), attemptOutcome(at), attemptTime(at), changeCount(at.Changes), kept, merged})
	}
	if err := a.printTable([]string{"ATTEMPT", "RESULT", "TIME", "CHANGES", "KEPT", "MERGED"}, rows); err != nil {
		return err
	}
	var b strings.Builder
	if result.Merge != nil {
		b.WriteString(conflictLines(result.Merge.Conflicts))
	}
	for _, at := range result.Attempts {
		if output {
			a.writeOutput(&b, at)
		}
	}
	return a.print(b.String())
}

// writeOutput writes the output of an attempt, under headings.
func (a *app) writeOutput(b *strings.Builder, at sandbox.Attempt) {
	for _, out := range []struct{ name, text string }{{"stdout", at.Stdout}, {"stderr", at.Stderr}} {
		if out.text != "" {
			fmt.Fprintf(b, "\n==> attempt %d: %s <==\n%s\n", at.Index, out.name, strings.TrimSuffix(a.foreign(out.text), "\n"))
		}
	}
	if at.OutputTruncated {
		fmt.Fprintf(b, "\n==> attempt %d: output truncated <==\n", at.Index)
	}
}

// attemptOutcome describes how an attempt ended.
func attemptOutcome(at sandbox.Attempt) string {
	if at.Error != "" {
		return at.Error
	}
	return outcome(&sandbox.Job{State: sandbox.JobExited, ExitCode: at.ExitCode, Signal: at.Signal, EndCause: at.EndCause})
}

func attemptTime(at sandbox.Attempt) string {
	return (time.Duration(at.DurationMS) * time.Millisecond).String()
}

// changeCount formats the number of changes as "+added -removed ~modified".
func changeCount(d *sandbox.Diff) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("+%d -%d ~%d", d.Added, d.Removed, d.Modified)
}
