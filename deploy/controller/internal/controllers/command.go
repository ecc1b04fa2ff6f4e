package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// commandTag is the tag of the jobs that run the command of the container.
	commandTag = "kubernetes-command"
	// The command is started again after firstDelay, and twice as much each further time.
	firstDelay, mostDelay = 10 * time.Second, 5 * time.Minute
)

// running says what became of a command.
type running struct {
	// ok says that it runs, or that there is none.
	ok bool
	// ended says that it has ended, and is not started again.
	ended bool
	code  int
	// wait is when it is started again.
	wait time.Duration
	what string
}

// command starts the command of a sandbox, if it does not run and is to. A job belongs to
// the sandbox, so that it is found again whoever has started it.
func command(ctx context.Context, cove sandbox.Service, id string, rec *record, now time.Time) (running, error) {
	if len(rec.Command) == 0 {
		return running{ok: true}, nil
	}
	times, last, err := jobs(ctx, cove, id)
	if err != nil {
		return running{}, err
	}
	if last != nil {
		if last.State == sandbox.JobRunning {
			return running{ok: true}, nil
		}
		r := afterEnd(rec.Restart, last, times, now)
		if r.ended || r.wait > 0 {
			return r, nil
		}
	}
	job, err := cove.Exec(ctx, id, sandbox.ExecRequest{Command: rec.Command, Background: true, Tag: commandTag}, nil)
	if err != nil {
		return running{}, fmt.Errorf("start the command: %w", err)
	}
	if job.State == sandbox.JobExited {
		return afterEnd(rec.Restart, job, times+1, now), nil
	}
	return running{ok: true}, nil
}

// jobs counts the jobs of the command, and returns the newest.
func jobs(ctx context.Context, cove sandbox.Service, id string) (times int, last *sandbox.Job, err error) {
	for page := (sandbox.Page{}); ; {
		list, err := cove.ListJobs(ctx, id, page)
		if err != nil {
			return 0, nil, err
		}
		for i, j := range list.Items {
			if j.Tag != commandTag {
				continue
			}
			times++
			if last == nil || j.StartedAt.After(last.StartedAt) {
				last = &list.Items[i]
			}
		}
		if page.Cursor = list.NextCursor; page.Cursor == "" {
			return times, last, nil
		}
	}
}

// afterEnd says what happens after the end of a command that was started so many times.
func afterEnd(policy corev1.RestartPolicy, last *sandbox.Job, times int, now time.Time) running {
	what := fmt.Sprintf("the command has ended with exit code %d", last.ExitCode)
	if last.EndCause != "" {
		what += fmt.Sprintf(" (%s)", last.EndCause)
	}
	if policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && last.ExitCode == 0 {
		return running{ended: true, code: last.ExitCode, what: what}
	}
	delay := mostDelay
	if n := times - 1; n < 5 {
		delay = firstDelay << n
	}
	ended := last.StartedAt
	if last.EndedAt != nil {
		ended = *last.EndedAt
	}
	return running{wait: max(0, ended.Add(delay).Sub(now)), what: what + fmt.Sprintf("; it is started again %s later", delay)}
}
