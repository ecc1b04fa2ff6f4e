package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

type runOptions struct {
	sandboxOptions
	commandOptions
}

func (o *runOptions) AddFlags(f *pflag.FlagSet) {
	o.sandboxOptions.AddFlags(f)
	o.commandOptions.AddFlags(f)
}

func (a *app) runCommand() *cobra.Command {
	var opts runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new sandbox that ends with it",
		Long: "Create a sandbox, run a command in it, and end the sandbox whatever happens. The command's output\n" +
			"and exit code become those of cove; 124 means that it timed out, 125 that Cove failed, 126 that\n" +
			"the program cannot be run, 127 that there is none, 128+n that signal n ended it.",
		Example: "  cove run -- python3 -c 'print(6*7)'\n" +
			"  cove run -it -T code-interpreter -- bash\n" +
			"  cove run --memory 512m --timeout 30s --network none -- ./untrusted < input\n" +
			"  cove run --secret anthropic -- python3 agent.py",
		Args: argsBetween(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runRun(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runRun(ctx context.Context, opts runOptions, args []string) (err error) {
	c, err := a.connect()
	if err != nil {
		return &exit{code: exitFailed, err: err}
	}
	defer closeQuietly(c)
	create, err := opts.request(ctx, c, a.Stdin)
	if err != nil {
		return &exit{code: exitFailed, err: err}
	}
	sb, err := a.create(ctx, c, create)
	if err != nil {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		return &exit{code: exitFailed, err: err}
	}
	defer func() {
		if kerr := a.end(ctx, c, sb.ID); kerr != nil && err == nil {
			err = &exit{code: exitFailed, err: kerr}
		}
	}()
	if opts.limits() {
		a.warnUnenforced(sb)
	}
	req := sandbox.ExecRequest{Command: args, TimeoutMS: opts.Timeout.Milliseconds()}
	return a.runCommandIn(ctx, c, sb.ID, req, opts.commandOptions)
}

// end kills a sandbox, even after an interruption.
func (a *app) end(ctx context.Context, c *client.Client, id string) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if _, err := c.Kill(ctx, id); err != nil {
		a.say("sandbox %s may still run; end it with: cove kill %s", id, id)
		return err
	}
	return nil
}
