// Package cli is the command line of Cove. Commands are declared, as command.go
// says, in a file for each noun or verb. They work on a [sandbox.Service] by way
// of package client and cannot tell a local daemon, which they start when they
// need it, from a server far away.
//
// Results go to standard output, everything else to standard error behind
// "cove: ". Exit codes: 0 is success, 1 an error, 2 a wrong command line, 128+n
// the end by signal n; run and exec pass on the code of the command they ran and
// use 124 for a timeout, 125 for errors of Cove itself, and 126 and 127 for a
// program that cannot be run or is not there.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sh/cove/internal/daemon/server"
)

// Exit codes.
const (
	exitOK            = 0
	exitError         = 1
	exitUsage         = 2
	exitTimeout       = 124
	exitFailed        = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Program is one run of the command line.
type Program struct {
	// Args are the arguments, without the program's name.
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Env returns a variable of the environment; nil is that of the process.
	Env func(string) string
	// Version is Cove's; empty is what the Go command noted.
	Version string
	// Assembly makes the parts of the daemon that depend on the machine; zero is
	// [server.Local].
	Assembly server.Assembly
}

// Run runs a command line and returns the exit code. When ctx is cancelled the
// command undoes what it began and ends.
func Run(ctx context.Context, p Program) int {
	a := &app{Program: p}
	if a.Env == nil {
		a.Env = os.Getenv
	}
	if a.Version == "" {
		a.Version = buildVersion()
	}
	if a.Assembly.Engine == nil {
		a.Assembly = server.Local()
	}
	root := a.command()
	root.SetArgs(p.Args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(ctx)
	return a.exitCode(ctx, err)
}

// app is what all commands share.
type app struct {
	Program
	globals globalOptions
}

// globalOptions are those of every command.
type globalOptions struct {
	URL      string
	Key      string
	StateDir string
	// Namespace is where commands work; empty is the whole team.
	Namespace string
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "cove",
		Short: "Run untrusted code for AI agents in gVisor sandboxes",
		Long: "Cove runs untrusted code for AI agents in gVisor sandboxes.\n\n" +
			"Commands talk to a daemon on this machine, which is started when it is needed, or to\n" +
			"the server that --url names.\n\n" +
			"Exit codes: 0 success, 1 error, 2 wrong command line, 128+n ended by signal n. run and exec\n" +
			"pass on the exit code of the command they ran; 124 means that it timed out, 125 that Cove\n" +
			"failed, 126 that the program cannot be run, 127 that there is no such program.",
		Example: "  cove run -- python3 -c 'print(6*7)'\n" +
			"  cove create --name work && cove exec work -- uname -a",
		Version:           a.Version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.globals.URL, "url", "", "server to talk to in place of the local daemon (COVE_URL)")
	flags.StringVar(&a.globals.Key, "key", "", "API key for it (COVE_API_KEY; there it does not show in ps)")
	flags.StringVar(&a.globals.StateDir, "state-dir", "", "state directory of the local daemon (COVE_STATE_DIR)")
	flags.StringVar(&a.globals.Namespace, "namespace", "", "work in this namespace only, '*' is all (COVE_NAMESPACE; default all)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	root.PersistentPreRun = func(*cobra.Command, []string) { a.globals.complete(a.Env) }
	a.addGroups(root)
	a.completeNames(root)
	return root
}

func (g *globalOptions) complete(env func(string) string) {
	for _, o := range []struct {
		value *string
		name  string
	}{{&g.URL, "COVE_URL"}, {&g.Key, "COVE_API_KEY"}, {&g.StateDir, "COVE_STATE_DIR"}, {&g.Namespace, "COVE_NAMESPACE"}} {
		if *o.value == "" {
			*o.value = env(o.name)
		}
	}
}

// usage is an error of the command line itself.
type usage struct {
	command string
	err     error
}

func (u *usage) Error() string { return u.err.Error() }

func usageError(cmd *cobra.Command, err error) error {
	return &usage{command: cmd.CommandPath(), err: err}
}

// exit ends the program with an exit code; err, if any, is printed.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// exitCode prints err and returns its exit code.
func (a *app) exitCode(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitError
	if own, ok := errors.AsType[*exit](err); ok {
		code, err = own.code, own.err
		if err == nil {
			return code
		}
	}
	if u, ok := errors.AsType[*usage](err); ok {
		a.say("%v", u.err)
		a.say("see %s --help", u.command)
		if code == exitError {
			code = exitUsage
		}
		return code
	}
	if text := err.Error(); strings.HasPrefix(text, "unknown command") {
		// Cobra's suggestions are on lines of their own.
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				a.say("%s", line)
			}
		}
		a.say("see cove --help")
		return exitUsage
	}
	if ctx.Err() != nil {
		end := interrupted(ctx)
		a.say("%v", end)
		return end.code
	}
	a.say("%s", clean(err.Error()))
	return code
}

// say writes a line for people to standard error.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "cove: "+format+"\n", args...)
}

// isTerminal reports whether f is a terminal.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// argsBetween returns a check of the number of arguments; a negative most is no
// limit.
func argsBetween(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError(cmd, fmt.Errorf("%s: too few arguments; use: %s", cmd.Name(), cmd.UseLine()))
		case most >= 0 && len(args) > most:
			return usageError(cmd, fmt.Errorf("%s: unexpected argument %q; use: %s", cmd.Name(), args[most], cmd.UseLine()))
		}
		return nil
	}
}

// group makes a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(cmd, fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath()))
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(commands...)
	return cmd
}
