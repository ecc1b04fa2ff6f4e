package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func sandboxID(sb *sandbox.Sandbox) string { return sb.ID }

func (a *app) killCommand() *cobra.Command {
	cmd := a.make(command{
		Use: "kill SANDBOX...", Short: "Kill sandboxes and delete their files",
		Long:    "Kill sandboxes and delete their files. Killing a sandbox that has already ended is not an error.",
		Example: "  cove kill work\n  cove kill $(cove ls -q)",
		Do:      each(sandboxID, sandbox.Service.Kill),
	})
	cmd.Aliases = []string{"rm"}
	return cmd
}

func (a *app) pauseCommand() *cobra.Command {
	return a.make(command{
		Use: "pause SANDBOX...", Short: "Pause sandboxes: save them to disk and free their memory",
		Long: "Save the memory, processes and files of sandboxes to disk, and end their processes. The next call that\n" +
			"needs a paused sandbox resumes it. Pausing a paused sandbox is not an error.",
		Example: "  cove pause work\n  cove pause $(cove ls -q --state running)",
		Do:      each(sandboxID, sandbox.Service.Pause),
	})
}

func (a *app) resumeCommand() *cobra.Command {
	var req sandbox.ResumeRequest
	return a.make(command{
		Use: "resume SANDBOX...", Short: "Resume paused sandboxes",
		Long:    "Resume paused sandboxes with their memory and processes. Resuming a running sandbox is not an error.",
		Example: "  cove resume work\n  cove resume --files-only work",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&req.FilesOnly, "files-only", false, "Start again from the files, without memory and processes")
		},
		Do: each(sandboxID, func(s sandbox.Service, ctx context.Context, name string) (*sandbox.Sandbox, error) {
			return s.Resume(ctx, name, req)
		}),
	})
}
