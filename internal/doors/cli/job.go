package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) jobCommand() *cobra.Command {
	return group("job", "See and stop jobs: commands and code in the background", a.jobLsCommand(), a.jobGetCommand(), a.jobLogsCommand(), a.jobStopCommand(), a.jobWebhooksCommand())
}

func (a *app) jobLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls SANDBOX", Short: "List the jobs of a sandbox, oldest first",
		Example: "  cove job ls work",
		Args:    argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer closeQuietly(c)
			return a.listJobs(cmd.Context(), c, opts, args[0])
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) jobGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get SANDBOX JOB", Short: "Show a job",
		Example: "  cove job get work job-1",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer closeQuietly(c)
			job, err := c.GetJob(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.showJob(opts, job)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) showJob(opts jsonOption, job *sandbox.Job) error {
	if opts.JSON {
		return a.printJSON(job)
	}
	return a.fields(
		"id", job.ID, "sandbox", job.SandboxID, "state", string(job.State), "result", outcome(job), "command", oneLine(job.Command),
		"user", job.User, "directory", job.WorkDir, "process", fmt.Sprint(job.PID),
		"started", stamp(&job.StartedAt), "ended", stamp(job.EndedAt), "time", job.Duration().Round(time.Millisecond).String(),
		"stdout", bytesText(job.StdoutBytes), "stderr", bytesText(job.StderrBytes),
	)
}

func (a *app) jobLogsCommand() *cobra.Command {
	var opts logsOptions
	cmd := &cobra.Command{
		Use: "logs SANDBOX [JOB]", Short: "Show the kept output of a job, of the newest if none is named",
		Example: "  cove job logs -f work job-1",
		Args:    argsBetween(1, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runLogs(cmd.Context(), opts, args) },
	}
	cmd.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "go on until the job ends")
	return cmd
}

type jobStopOptions struct {
	jsonOption
	Signal string
	Grace  time.Duration
}

// AddFlags adds the options' flags.
func (o *jobStopOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Signal, "signal", "s", "TERM", "signal to send")
	f.DurationVar(&o.Grace, "grace", 5*time.Second, "kill it if it still runs after this time; 0 is never")
	o.jsonOption.AddFlags(f)
}

func (a *app) jobStopCommand() *cobra.Command {
	var opts jobStopOptions
	cmd := &cobra.Command{
		Use: "stop SANDBOX JOB", Short: "Stop a job with all its processes, and wait for its end",
		Example: "  cove job stop work job-1\n  cove job stop -s INT --grace 1m work job-1",
		Args:    argsBetween(2, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runJobStop(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runJobStop(ctx context.Context, opts jobStopOptions, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	job, err := c.GetJob(ctx, args[0], args[1])
	if err == nil && job.State == sandbox.JobRunning {
		job, err = stopJob(ctx, c, opts, args)
	}
	if err != nil {
		return err
	}
	return a.showJob(opts.jsonOption, job)
}

func stopJob(ctx context.Context, c *client.Client, opts jobStopOptions, args []string) (*sandbox.Job, error) {
	job, err := c.SignalJob(ctx, args[0], args[1], opts.Signal, opts.Grace.Milliseconds())
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotRunning, sandbox.CodeConflict: // it ended just before
		return c.GetJob(ctx, args[0], args[1])
	default:
		return nil, err
	}
	if job.State == sandbox.JobExited {
		return job, nil
	}
	wait := opts.Grace + time.Second
	return c.Attach(ctx, args[0], args[1], sandbox.AttachRequest{StdoutOffset: job.StdoutBytes, StderrOffset: job.StderrBytes, DetachMS: wait.Milliseconds()}, nil)
}

func (a *app) jobWebhooksCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "webhooks SANDBOX", Short: "List the webhooks of a sandbox's jobs, newest first",
		Example: "  cove job webhooks work",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runWebhooks(cmd.Context(), opts, args[0]) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runWebhooks(ctx context.Context, opts jsonOption, name string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	items, err := sandbox.All(ctx, sandbox.Of(name, c.ListDeliveries))
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Delivery]{items})
	}
	rows := make([][]string, 0, len(items))
	for _, d := range items {
		status := ""
		if d.Status > 0 {
			status = fmt.Sprint(d.Status)
		}
		rows = append(rows, []string{d.ID, d.JobID, d.State, fmt.Sprint(d.Attempts), status, until(d.NextAt), d.URL, d.Error})
	}
	return a.printTable([]string{"ID", "JOB", "STATE", "ATTEMPTS", "STATUS", "NEXT", "URL", "ERROR"}, rows)
}
