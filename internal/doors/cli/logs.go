package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) logsCommand() *cobra.Command {
	follow, jobs := false, false
	return a.make(command{
		Use: "logs SANDBOX [JOB]", Short: "Show the output of a job",
		Long: "Show the output of a job, by default of the newest. Of long output, the first and the last part are\n" +
			"kept.",
		Example: "  cove logs work\n  cove logs -f work job-1\n  cove logs --jobs work",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "Keep showing output until the job ends")
			f.BoolVar(&jobs, "jobs", false, "List the sandbox's jobs instead of output")
		},
		JSONHelp: "With --jobs: print JSON",
		Do: action{json: true, run: func(ctx context.Context, c *call) error {
			if jobs {
				return list(jobTable, allOf(sandbox.Service.ListJobs)).run(ctx, c)
			}
			return c.logs(ctx, follow)
		}},
	})
}

func (c *call) logs(ctx context.Context, follow bool) error {
	job, err := pickJob(ctx, c.client, c.args)
	if err != nil {
		return err
	}
	if follow || job.State == sandbox.JobExited {
		_, err = c.client.Attach(ctx, c.args[0], job.ID, sandbox.AttachRequest{}, c.outputSink())
		return err
	}
	return c.keptOutput(ctx, c.client, c.args[0], job)
}

func pickJob(ctx context.Context, c *client.Client, args []string) (*sandbox.Job, error) {
	if len(args) == 2 {
		return c.GetJob(ctx, args[0], args[1])
	}
	jobs, err := sandbox.All(ctx, sandbox.Of(args[0], c.ListJobs))
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no command has run in the sandbox yet; run one with: cove exec %s -- COMMAND", args[0])
	}
	return &jobs[len(jobs)-1], nil
}

// errSeen ends the streaming of a running job's output.
var errSeen = errors.New("all that was there is shown")

// keptOutput shows what a running job has written up to now.
func (a *app) keptOutput(ctx context.Context, c *client.Client, name string, job *sandbox.Job) error {
	left := map[sandbox.Stream]int64{sandbox.Stdout: job.StdoutBytes, sandbox.Stderr: job.StderrBytes}
	if job.StdoutBytes == 0 && job.StderrBytes == 0 {
		return nil
	}
	seen := map[sandbox.Stream]int64{}
	show := a.outputSink()
	_, err := c.Attach(ctx, name, job.ID, sandbox.AttachRequest{}, func(ev sandbox.JobEvent) error {
		if err := show(ev); err != nil {
			return err
		}
		if len(ev.Data) > 0 {
			seen[ev.Stream] = ev.Offset + int64(len(ev.Data))
		}
		if seen[sandbox.Stdout] >= left[sandbox.Stdout] && seen[sandbox.Stderr] >= left[sandbox.Stderr] {
			return errSeen
		}
		return nil
	})
	if errors.Is(err, errSeen) {
		return nil
	}
	return err
}
