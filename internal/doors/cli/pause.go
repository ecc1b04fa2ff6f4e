package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func sandboxID(sb *sandbox.Sandbox) string { return sb.ID }

func (a *app) pauseCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "Write sandboxes to disk and free their memory",
		Long: "Write the memory, processes and files of sandboxes to disk and end their processes. Whatever needs\n" +
			"a paused sandbox resumes it by itself. Pausing a paused one is not an error.",
		Example: "  cove pause work\n  cove pause $(cove ls -q --state running)",
		Args:    argsBetween(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runPause(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// runPause tries all of them, and fails with the first error.
func (a *app) runPause(ctx context.Context, opts jsonOption, args []string) error {
	return each(a, opts, args, sandboxID, func(c *client.Client, name string) (*sandbox.Sandbox, error) {
		return c.Pause(ctx, name)
	})
}

type resumeOptions struct {
	jsonOption
	FilesOnly bool
}

func (o *resumeOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.BoolVar(&o.FilesOnly, "files-only", false, "start afresh with the files, without memory and processes")
}

func (a *app) resumeCommand() *cobra.Command {
	var opts resumeOptions
	cmd := &cobra.Command{
		Use:   "resume SANDBOX...",
		Short: "Continue paused sandboxes where they were",
		Long: "Continue paused sandboxes where they were, with their memory and processes. Resuming a running one\n" +
			"is not an error.",
		Example: "  cove resume work\n  cove resume --files-only work",
		Args:    argsBetween(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runResume(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

// runResume tries all of them, and fails with the first error.
func (a *app) runResume(ctx context.Context, opts resumeOptions, args []string) error {
	return each(a, opts.jsonOption, args, sandboxID, func(c *client.Client, name string) (*sandbox.Sandbox, error) {
		return c.Resume(ctx, name, sandbox.ResumeRequest{FilesOnly: opts.FilesOnly})
	})
}
