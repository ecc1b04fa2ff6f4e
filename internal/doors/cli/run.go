package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) runCommand() *cobra.Command {
	var box sandboxOptions
	var opts commandOptions
	return a.make(command{
		Use: "run [flags] [--] COMMAND [ARG...]", Short: "Run a command in a new sandbox",
		Long: "Create a sandbox, run a command in it, and end the sandbox, whatever happens. Cove passes on the\n" +
			"command's output and exit code.\n\n" +
			"Exit codes of cove itself: 124 if the command timed out, 125 if Cove failed, 126 if the program cannot\n" +
			"be executed, 127 if it was not found, 128+n if signal n ended it.",
		Example: "  cove run -- python3 -c 'print(6*7)'\n" +
			"  cove run -it -T code-interpreter -- bash\n" +
			"  cove run --memory 512m --timeout 30s --network none -- ./untrusted < input\n" +
			"  cove run --secret anthropic -- python3 agent.py",
		Flags: func(f *pflag.FlagSet) {
			box.AddFlags(f)
			opts.AddFlags(f)
		},
		Failed: exitFailed,
		Do:     action{run: func(ctx context.Context, c *call) error { return c.runOnce(ctx, &box, opts) }},
	})
}

// runOnce runs a command in a sandbox that it makes and ends.
func (c *call) runOnce(ctx context.Context, box *sandboxOptions, opts commandOptions) (err error) {
	sb, err := box.make(ctx, c)
	if err != nil {
		return err
	}
	defer func() {
		if kerr := c.end(ctx, c.client, sb.ID); kerr != nil && err == nil {
			err = kerr
		}
	}()
	req := sandbox.ExecRequest{Command: c.args, TimeoutMS: opts.Timeout.Milliseconds()}
	return c.runCommandIn(ctx, c.client, sb.ID, req, opts)
}

// end kills a sandbox, even after an interruption.
func (a *app) end(ctx context.Context, c *client.Client, id string) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if _, err := c.Kill(ctx, id); err != nil {
		a.say("sandbox %s may still be running; end it with: cove kill %s", id, id)
		return err
	}
	return nil
}
