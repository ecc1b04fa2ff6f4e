package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// commandOptions say how a command is run and talked to.
type commandOptions struct {
	Interactive bool
	Terminal    bool
	Timeout     time.Duration
}

// AddFlags adds the options' flags.
func (o *commandOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVarP(&o.Interactive, "interactive", "i", false, "pass standard input on")
	f.BoolVarP(&o.Terminal, "tty", "t", false, "run it on a terminal; use with -i")
	f.DurationVar(&o.Timeout, "timeout", 0, "end the command after this time (exit code 124); 0 is no bound")
	// What follows the first argument belongs to the command.
	f.SetInterspersed(false)
}

type execOptions struct {
	commandOptions
	jsonOption
	Env        pairs
	User       string
	WorkDir    string
	Shell      bool
	Background bool
	Webhook    string
}

func (o *execOptions) AddFlags(f *pflag.FlagSet) {
	o.commandOptions.AddFlags(f)
	f.VarP(&o.Env, "env", "e", "environment, key=value; may be repeated")
	f.StringVarP(&o.User, "user", "u", "", "user to run as")
	f.StringVarP(&o.WorkDir, "workdir", "w", "", "working directory")
	f.BoolVarP(&o.Shell, "shell", "s", false, "the command is one line for a shell")
	f.BoolVarP(&o.Background, "background", "d", false, "print the job's id as soon as the command has started; see: cove logs")
	f.BoolVar(&o.JSON, "json", false, "with -d: print the job as JSON")
	f.StringVar(&o.Webhook, "webhook", "", "with -d: POST to this URL when it has ended, signed with COVE_WEBHOOK_SECRET if that is set")
}

func (a *app) execCommand() *cobra.Command {
	var opts execOptions
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: "Run a command in a sandbox. Its output and its exit code become those of cove; 124 means that\n" +
			"it timed out, 125 that Cove failed, 126 that the program cannot be run, 127 that there is none, 128+n\n" +
			"that signal n ended it. Interrupting cove kills it.",
		Example: "  cove exec work -- ls -l /workspace\n" +
			"  cove exec -s work 'for i in 1 2 3; do echo $i; done | tac'\n" +
			"  cove exec -it work -- bash\n" +
			"  tar c src | cove exec -i work -- tar x\n" +
			"  cove exec -d work -- python3 -m http.server",
		Args: argsBetween(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := opts.request(args, a.Env)
			if err != nil {
				return usageError(cmd, err)
			}
			return a.runExec(cmd.Context(), opts, args[0], req)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// request is what the command line asks for.
func (o *execOptions) request(args []string, env func(string) string) (sandbox.ExecRequest, error) {
	req := sandbox.ExecRequest{Env: o.Env, User: o.User, WorkDir: o.WorkDir, TimeoutMS: o.Timeout.Milliseconds()}
	command := args[1:]
	if command[0] == "--" {
		command = command[1:]
	}
	switch {
	case len(command) == 0:
		return req, errors.New("exec: no command; put it after the sandbox")
	case o.Shell && len(command) > 1:
		return req, errors.New("exec: a line for a shell is one argument; quote it")
	case o.Background && (o.Interactive || o.Terminal):
		return req, errors.New("exec: a background command has no input; leave out -i and -t")
	case o.Webhook != "" && !o.Background:
		return req, errors.New("exec: a webhook tells the end of a background command; add -d")
	case o.Shell:
		req.Shell = command[0]
	default:
		req.Command = command
	}
	if o.Webhook != "" {
		req.Webhook = &sandbox.Webhook{URL: o.Webhook, Secret: sandbox.NewSecretValue(env("COVE_WEBHOOK_SECRET"))}
	}
	return req, nil
}

func (a *app) runExec(ctx context.Context, opts execOptions, name string, req sandbox.ExecRequest) error {
	c, err := a.connect()
	if err != nil {
		return &exit{code: exitFailed, err: err}
	}
	defer closeQuietly(c)
	if opts.Background {
		return a.execBackground(ctx, c, opts.JSON, name, req)
	}
	return a.runCommandIn(ctx, c, name, req, opts.commandOptions)
}

func (a *app) execBackground(ctx context.Context, c *client.Client, asJSON bool, name string, req sandbox.ExecRequest) error {
	req.Background = true
	job, err := c.Exec(ctx, name, req, nil)
	switch {
	case err != nil:
		return notRun(err)
	case asJSON:
		return a.printJSON(job)
	}
	return a.print(job.ID + "\n")
}

// runCommandIn runs a command, passes its output on, and returns nil or an
// [exit] with the code for cove.
func (a *app) runCommandIn(ctx context.Context, c *client.Client, name string, req sandbox.ExecRequest, opts commandOptions) error {
	job, err := a.talk(ctx, c, name, req, opts)
	if err != nil {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		return notRun(err)
	}
	switch {
	case job.EndCause == sandbox.EndTimeout:
		return &exit{code: exitTimeout, err: fmt.Errorf("the command timed out after %s; allow more with --timeout", job.Duration().Round(time.Millisecond))}
	case job.EndCause == sandbox.EndOutOfMemory:
		return &exit{code: job.ExitCode, err: errors.New("the command was killed: the sandbox is out of memory; give it more with: cove update --memory")}
	case job.EndCause == sandbox.EndProcessLimit:
		return &exit{code: job.ExitCode, err: errors.New("the command was killed: it kept the sandbox at its limit of processes by starting ever more; start fewer, or allow more with: cove update --pids")}
	case job.ExitCode != 0:
		return &exit{code: job.ExitCode}
	}
	return nil
}

// notRun is the end of a command that was not started, with a shell's codes for
// programs.
func notRun(err error) *exit {
	switch sandbox.ReasonOf(err) {
	case sandbox.ReasonProgramNotFound:
		return &exit{code: exitNotFound, err: err}
	case sandbox.ReasonProgramNotExecutable:
		return &exit{code: exitNotExecutable, err: err}
	}
	return &exit{code: exitFailed, err: err}
}
