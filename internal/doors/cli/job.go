package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) jobCommand() *cobra.Command {
	return group("job", "Manage background commands and code",
		a.make(command{
			Use: "ls SANDBOX", Short: "List the jobs of a sandbox, oldest first",
			Example: "  cove job ls work",
			Do:      list(jobTable, allOf(sandbox.Service.ListJobs)),
		}),
		a.make(command{
			Use: "get SANDBOX JOB", Short: "Show a job",
			Example: "  cove job get work job-1",
			Do:      show(jobDetails, getJob),
		}),
		a.jobLogsCommand(), a.jobStopCommand(),
		a.make(command{
			Use: "webhooks SANDBOX", Short: "List webhook deliveries of a sandbox, newest first",
			Example: "  cove job webhooks work",
			Do:      list(deliveryTable, allOf(sandbox.Service.ListDeliveries)),
		}))
}

var jobTable = table([]string{"JOB", "STATE", "RESULT", "TIME", "COMMAND"}, func(j *sandbox.Job) []any {
	return []any{j.ID, j.State, outcome(j), span(j.Duration()), oneLine(j.Command)}
})

var jobDetails = details(func(j *sandbox.Job) []any {
	return []any{
		"id", j.ID, "sandbox", j.SandboxID, "state", j.State, "result", outcome(j), "command", oneLine(j.Command),
		"user", j.User, "directory", j.WorkDir, "process", j.PID,
		"started", stamp(&j.StartedAt), "ended", stamp(j.EndedAt), "time", j.Duration().Round(time.Millisecond),
		"stdout", bytesText(j.StdoutBytes), "stderr", bytesText(j.StderrBytes),
	}
})

var deliveryTable = table([]string{"ID", "SUBJECT", "STATE", "ATTEMPTS", "STATUS", "NEXT TRY", "URL", "ERROR"}, func(d *sandbox.Delivery) []any {
	return []any{d.ID, cmp.Or(d.JobID, d.ApprovalID), d.State, d.Attempts, number(d.Status), until(d.NextAt), d.URL, d.Error}
})

func getJob(ctx context.Context, c *call) (*sandbox.Job, error) {
	return c.client.GetJob(ctx, c.args[0], c.args[1])
}

func (a *app) jobLogsCommand() *cobra.Command {
	follow := false
	return a.make(command{
		Use: "logs SANDBOX [JOB]", Short: "Show the output of a job (default the newest)",
		Example: "  cove job logs -f work job-1",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "Keep showing output until the job ends")
		},
		Do: action{run: func(ctx context.Context, c *call) error { return c.logs(ctx, follow) }},
	})
}

func (a *app) jobStopCommand() *cobra.Command {
	var signal string
	var grace time.Duration
	return a.make(command{
		Use: "stop SANDBOX JOB", Short: "Stop a job with all its processes, and wait until it has ended",
		Example: "  cove job stop work job-1\n  cove job stop -s INT --grace 1m work job-1",
		Flags: func(f *pflag.FlagSet) {
			f.StringVarP(&signal, "signal", "s", "TERM", "Signal to send")
			f.DurationVar(&grace, "grace", 5*time.Second, "Kill the job if it is still running after this time; 0 means never")
		},
		Do: show(jobDetails, func(ctx context.Context, c *call) (*sandbox.Job, error) {
			job, err := getJob(ctx, c)
			if err != nil || job.State != sandbox.JobRunning {
				return job, err
			}
			return stopJob(ctx, c, signal, grace)
		}),
	})
}

func stopJob(ctx context.Context, c *call, signal string, grace time.Duration) (*sandbox.Job, error) {
	job, err := c.client.SignalJob(ctx, c.args[0], c.args[1], signal, grace.Milliseconds())
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotRunning, sandbox.CodeConflict: // it ended just before
		return getJob(ctx, c)
	default:
		return nil, err
	}
	if job.State == sandbox.JobExited {
		return job, nil
	}
	wait := grace + time.Second
	return c.client.Attach(ctx, c.args[0], c.args[1], sandbox.AttachRequest{StdoutOffset: job.StdoutBytes, StderrOffset: job.StderrBytes, DetachAfterMS: wait.Milliseconds()}, nil)
}
