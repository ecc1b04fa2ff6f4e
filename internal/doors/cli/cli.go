// Package cli is the command line of Cove. Commands are declared, as command.go
// says, in a file for each noun or verb. They use package client as a
// [sandbox.Service], and cannot tell a local daemon, which they start on demand,
// from a remote server.
//
// Results go to standard output, everything else to standard error behind
// "cove: ". Exit codes: 0 is success, 1 an error, 2 a wrong command line, 128+n
// the end by signal n. run and exec exit with the code of the command that they
// ran, or with 124 for a timeout, 125 for errors of Cove itself, and 126 and 127
// for a program that cannot be run or does not exist.
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
	// Version is Cove's version; empty is the one that the Go command recorded.
	Version string
	// Assembly makes the parts of the daemon that depend on the machine; zero is
	// [server.Local].
	Assembly server.Assembly
}

// Run runs a command line and returns the exit code. If ctx is cancelled, the command
// undoes what it has begun and ends.
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

// globalOptions are the options of every command.
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
		Long: "Run untrusted code for AI agents in gVisor sandboxes.\n\n" +
			"Commands use the daemon on this machine, and start it if necessary. With --url they use a remote\n" +
			"server.",
		Example: "  cove run -- python3 -c 'print(6*7)'\n" +
			"  cove create --name work\n" +
			"  cove exec work -- uname -a\n" +
			"  cove fork work -n 3\n" +
			"  cove kill work",
		Version:           a.Version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	flags := root.PersistentFlags()
	flags.BoolP("help", "h", false, "Show help for a command")
	root.Flags().BoolP("version", "v", false, "Print the version")
	flags.StringVar(&a.globals.URL, "url", "", "Use the server at this URL instead of the local daemon (COVE_URL)")
	flags.StringVar(&a.globals.Key, "key", "", "API key for the server; prefer COVE_API_KEY, which ps does not show")
	flags.StringVar(&a.globals.StateDir, "state-dir", "", "State directory of the local daemon (COVE_STATE_DIR)")
	flags.StringVar(&a.globals.Namespace, "namespace", "", "Work in this namespace only; '*' means all (COVE_NAMESPACE; default all)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	root.PersistentPreRun = func(*cobra.Command, []string) { a.globals.complete(a.Env) }
	a.addGroups(root)
	root.AddCommand(exitCodesTopic())
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
		a.hint(u.command)
		if code == exitError {
			code = exitUsage
		}
		return code
	}
	if text := err.Error(); strings.HasPrefix(text, "unknown command") {
		what, suggestions, _ := strings.Cut(text, "\n")
		a.say("%s", what)
		fmt.Fprint(a.Stderr, suggestions) // cobra's, on lines of their own
		a.hint("cove")
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

// hint points to the help of a command, after an error of the command line.
func (a *app) hint(command string) {
	fmt.Fprintf(a.Stderr, "Run '%s --help' for more information.\n", command)
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
			return usageError(cmd, fmt.Errorf("%s: missing argument; usage: %s", cmd.Name(), cmd.UseLine()))
		case most >= 0 && len(args) > most:
			return usageError(cmd, fmt.Errorf("%s: unexpected argument %q; usage: %s", cmd.Name(), args[most], cmd.UseLine()))
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
