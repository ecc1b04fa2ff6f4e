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

// commandOptions say how a command is run and where its input comes from.
type commandOptions struct {
	Interactive bool
	Terminal    bool
	Timeout     time.Duration
}

// AddFlags adds the options' flags.
func (o *commandOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVarP(&o.Interactive, "interactive", "i", false, "Pass standard input to the command")
	f.BoolVarP(&o.Terminal, "tty", "t", false, "Run the command on a terminal (use with -i)")
	f.DurationVar(&o.Timeout, "timeout", 0, "End the command after this time, with exit code 124; 0 means no limit")
	// Everything after the first argument belongs to the command.
	f.SetInterspersed(false)
}

func (a *app) execCommand() *cobra.Command {
	var req sandbox.ExecRequest
	var opts commandOptions
	var webhook string
	shell := false
	return a.make(command{
		Use: "exec [flags] SANDBOX [--] COMMAND [ARG...]", Short: "Run a command in a sandbox",
		Long: "Run a command in a sandbox. Cove passes on its output and exit code. Interrupting cove kills the\n" +
			"command.\n\n" +
			"Exit codes of cove itself: 124 if the command timed out, 125 if Cove failed, 126 if the program cannot\n" +
			"be executed, 127 if it was not found, 128+n if signal n ended it.",
		Example: "  cove exec work -- ls -l /workspace\n" +
			"  cove exec -s work 'for i in 1 2 3; do echo $i; done | tac'\n" +
			"  cove exec -it work -- bash\n" +
			"  tar c src | cove exec -i work -- tar x\n" +
			"  cove exec -d work -- python3 -m http.server",
		Flags: func(f *pflag.FlagSet) {
			opts.AddFlags(f)
			f.VarP(pairsFlag(&req.Env), "env", "e", "Environment variable (repeatable)")
			f.StringVarP(&req.User, "user", "u", "", "User to run the command as")
			f.StringVarP(&req.WorkDir, "workdir", "w", "", "Working directory")
			f.BoolVarP(&shell, "shell", "s", false, "Run the command as one line in a shell")
			f.BoolVarP(&req.Background, "background", "d", false, "Run in the background and print the job's id (see cove logs)")
			f.StringVar(&webhook, "webhook", "", "With -d: POST to this URL when the command has ended, signed with COVE_WEBHOOK_SECRET if that is set")
		},
		JSONHelp: "With -d: print the job as JSON",
		Failed:   exitFailed,
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			req.TimeoutMS = opts.Timeout.Milliseconds()
			if webhook != "" {
				req.Webhook = &sandbox.Webhook{URL: webhook, Secret: sandbox.NewSecretValue(c.Env("COVE_WEBHOOK_SECRET"))}
			}
			if err := fillCommand(&req, opts, c.args[1:], shell); err != nil {
				return c.misuse("%w", err)
			}
			if !req.Background {
				return c.runCommandIn(ctx, c.client, c.args[0], req, opts)
			}
			job, err := c.client.Exec(ctx, c.args[0], req, nil)
			if err != nil {
				return notRun(err)
			}
			return shown(c, only(func(j *sandbox.Job) string { return j.ID }), job, nil)
		}},
	})
}

// fillCommand puts a command and its options into a request, and checks them.
func fillCommand(req *sandbox.ExecRequest, opts commandOptions, command []string, shell bool) error {
	if command[0] == "--" {
		command = command[1:]
	}
	switch {
	case len(command) == 0:
		return errors.New("exec: missing command; put it after the sandbox")
	case shell && len(command) > 1:
		return errors.New("exec: -s takes the command as one argument; put it in quotes")
	case req.Background && (opts.Interactive || opts.Terminal):
		return errors.New("exec: a background command has no standard input; leave out -i and -t")
	case req.Webhook != nil && !req.Background:
		return errors.New("exec: --webhook works only with -d")
	case shell:
		req.Shell = command[0]
	default:
		req.Command = command
	}
	return nil
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
		return &exit{code: exitTimeout, err: fmt.Errorf("the command timed out after %s; allow more time with --timeout", job.Duration().Round(time.Millisecond))}
	case job.EndCause == sandbox.EndOutOfMemory:
		return &exit{code: job.ExitCode, err: errors.New("the command was killed because the sandbox is out of memory; raise the limit with: cove update --memory")}
	case job.EndCause == sandbox.EndProcessLimit:
		return &exit{code: job.ExitCode, err: errors.New("the command was killed because it kept starting processes at the sandbox's limit; start fewer, or raise the limit with: cove update --pids")}
	case job.ExitCode != 0:
		return &exit{code: job.ExitCode}
	}
	return nil
}

// notRun returns the exit for a command that was not started, with the codes that
// shells use.
func notRun(err error) *exit {
	switch sandbox.ReasonOf(err) {
	case sandbox.ReasonProgramNotFound:
		return &exit{code: exitNotFound, err: err}
	case sandbox.ReasonProgramNotExecutable:
		return &exit{code: exitNotExecutable, err: err}
	}
	return &exit{code: exitFailed, err: err}
}
