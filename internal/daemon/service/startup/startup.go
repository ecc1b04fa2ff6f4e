// Package startup has what runs in a sandbox from its beginning: the start command and
// the desktop of its template, as the sandbox's record keeps them. It starts them and
// waits until they are ready.
package startup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// What runs in a sandbox from its beginning is a job like others, with a reserved id.
// It does not count as use: an idle sandbox ends although these jobs run.
const (
	// JobID is the job of the start command.
	JobID = "job-start"
	// ReadyJobID is the job that tries the ready command.
	ReadyJobID = "job-ready"
)

const (
	// startOutput is how much of a start command's output is kept, in bytes.
	startOutput = 256 << 10
	// startWords is how much of that output an error quotes, in bytes.
	startWords = 400
	// failureTime bounds finding out why a start command is not ready.
	failureTime = 5 * time.Second
	// settleTime is how long a new screen must not change before the sandbox counts as
	// ready, and settleWait bounds the wait for that.
	settleTime = 600 * time.Millisecond
	settleWait = 5 * time.Second
)

// Startup is what a template says about how its sandboxes begin. The record of a
// sandbox keeps it, since the template may have changed by the time the sandbox boots
// again.
type Startup struct {
	Start   *sandbox.StartCommand `json:",omitempty"`
	Desktop *sandbox.Desktop      `json:",omitempty"`
	// User, WorkDir and Env are the template's, for the start command.
	User    string            `json:",omitempty"`
	WorkDir string            `json:",omitempty"`
	Env     map[string]string `json:",omitempty"`
}

// Of returns a template's startup, or nil if it has no start command and no desktop.
func Of(t *sandbox.Template) *Startup {
	if t.Start == nil && t.Desktop == nil {
		return nil
	}
	b := &Startup{Start: t.Start, Desktop: t.Desktop}
	if t.Start != nil {
		b.User, b.WorkDir, b.Env = t.User, t.WorkDir, t.Env
	}
	return b
}

// Patience is how long the start command may take to be ready.
func (s *Startup) Patience() time.Duration {
	if s == nil || s.Start == nil {
		return 0
	}
	return cmp.Or(time.Duration(s.Start.TimeoutMS)*time.Millisecond, sandbox.DefaultStartTimeout)
}

// Run starts the start command and returns when it is ready. An error is for
// the caller.
func (s *Startup) Run(ctx context.Context, client *agentclient.Client) error {
	if s.Start == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Patience(), errNotReady)
	defer cancel()
	job := s.job(s.Start.Command)
	job.Background, job.KeepBytes = true, startOutput
	if _, err := client.Exec(ctx, JobID, job, nil); err != nil {
		return s.failed(ctx, client, err)
	}
	if err := s.awaitReady(ctx, client); err != nil {
		return s.failed(ctx, client, err)
	}
	if s.Desktop != nil {
		s.settle(ctx, client)
	}
	return nil
}

// job returns a shell line as a command with the template's user, directory and
// environment.
func (s *Startup) job(shell string) *sandbox.ExecRequest {
	return &sandbox.ExecRequest{Command: []string{"/bin/sh", "-c", shell}, User: s.User, WorkDir: s.WorkDir, Env: maps.Clone(s.Env)}
}

// errNotReady is the cause if a start command was not ready in time, and errEnded if it
// has failed.
var (
	errNotReady = errors.New("it was not ready in time")
	errEnded    = errors.New("it ended")
)

// readyLoop tries a command until it succeeds. It runs as one job in the sandbox, so
// that a try does not cost a call.
const readyLoop = `until /bin/sh -c "$COVE_READY" </dev/null >/dev/null 2>&1; do sleep 0.2 || sleep 1; done`

// awaitReady waits until the ready command succeeds, or the start command has
// failed.
func (s *Startup) awaitReady(ctx context.Context, client *agentclient.Client) error {
	if s.Start.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		job, err := client.Attach(ctx, JobID, &sandbox.AttachRequest{}, nil)
		if err == nil && job.State != sandbox.JobRunning && job.ExitCode != 0 {
			cancel(errEnded)
		}
	}()
	defer func() { cancel(nil); <-watched }()
	wait := s.job(readyLoop)
	if wait.Env == nil {
		wait.Env = map[string]string{}
	}
	wait.Env["COVE_READY"] = s.Start.Ready
	wait.TimeoutMS = s.Patience().Milliseconds()
	job, err := client.Exec(ctx, ReadyJobID, wait, nil)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	if job.ExitCode != 0 {
		return errNotReady
	}
	return nil
}

// settle waits until a new screen is painted. A screen that never stops changing, or
// cannot be read, is accepted as it is.
func (s *Startup) settle(ctx context.Context, client *agentclient.Client) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	_, _ = client.Screenshot(ctx, s.Desktop.Display, &sandbox.ScreenshotRequest{Width: 64, StableMS: settleTime.Milliseconds()})
}

// failed returns the error that explains why a start command is not ready, with its
// last output.
func (s *Startup) failed(ctx context.Context, client *agentclient.Client, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	// The time for the start is over; reading the output gets a little more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failureTime)
	defer cancel()
	said := logTail(ctx, client)
	switch job, jerr := client.GetJob(ctx, JobID, 0); {
	case jerr == nil && job.State != sandbox.JobRunning && (job.ExitCode != 0 || !errors.Is(err, errNotReady)):
		return sandbox.Errorf(sandbox.CodeConflict, "the start command of the template exited with code %d before it was ready%s; correct the template and build it again", job.ExitCode, said)
	case errors.Is(err, errNotReady) || sandbox.CodeOf(err) == sandbox.CodeTimeout:
		return sandbox.Errorf(sandbox.CodeTimeout, "the start command of the template was not ready within %s%s; check its ready command, or allow more time with timeout_ms", s.Patience(), said)
	}
	return fmt.Errorf("run the start command: %w", err)
}

// logTail returns the last output of the start command, for an error.
func logTail(ctx context.Context, client *agentclient.Client) string {
	for _, stream := range []sandbox.Stream{sandbox.Stderr, sandbox.Stdout} {
		out, err := client.ReadOutput(ctx, JobID, &sandbox.OutputRequest{Stream: stream, Limit: startOutput})
		if err != nil || len(bytes.TrimSpace(out.Data)) == 0 {
			continue
		}
		text := bytes.TrimSpace(out.Data)
		text = text[max(0, len(text)-startWords):]
		return fmt.Sprintf(": %q", strings.ToValidUTF8(string(text), ""))
	}
	return ""
}
