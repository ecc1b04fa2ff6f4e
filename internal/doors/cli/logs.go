package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

type logsOptions struct {
	jsonOption
	Follow bool
	Jobs   bool
}

func (o *logsOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on until the job ends")
	f.BoolVar(&o.Jobs, "jobs", false, "list the sandbox's jobs in place of output")
	f.BoolVar(&o.JSON, "json", false, "with --jobs: print JSON")
}

func (a *app) logsCommand() *cobra.Command {
	var opts logsOptions
	cmd := &cobra.Command{
		Use:   "logs SANDBOX [JOB]",
		Short: "Show the kept output of a job",
		Long: "Show the kept output of a job: of the newest one when none is named. Of long output the\n" +
			"first and the last part are kept.",
		Example: "  cove logs work\n  cove logs -f work job-1\n  cove logs --jobs work",
		Args:    argsBetween(1, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runLogs(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runLogs(ctx context.Context, opts logsOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	if opts.Jobs {
		return a.listJobs(ctx, c, opts.jsonOption, args[0])
	}
	job, err := pickJob(ctx, c, args)
	if err != nil {
		return err
	}
	if opts.Follow || job.State == sandbox.JobExited {
		_, err = c.Attach(ctx, args[0], job.ID, sandbox.AttachRequest{}, a.outputSink())
		return err
	}
	return a.keptOutput(ctx, c, args[0], job)
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
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "the sandbox has run no command yet; run one with: cove exec %s -- COMMAND", args[0])
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

func (a *app) listJobs(ctx context.Context, c *client.Client, opts jsonOption, name string) error {
	jobs, err := sandbox.All(ctx, sandbox.Of(name, c.ListJobs))
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Job]{jobs})
	}
	rows := make([][]string, 0, len(jobs))
	for _, job := range jobs {
		rows = append(rows, []string{job.ID, string(job.State), outcome(&job), span(job.Duration()), oneLine(job.Command)})
	}
	return a.printTable([]string{"JOB", "STATE", "RESULT", "TIME", "COMMAND"}, rows)
}
