package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/agentclient"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// What runs in a sandbox from its beginning is a job like others, under ids
// that say so. It is no use of the sandbox: an idle one ends although it runs.
const (
	startJob = "job-start"
	readyJob = "job-ready"
)

const (
	// startOutput is what is kept of the output of a start command, in bytes.
	startOutput = 256 << 10
	// startWords is how much of it an error tells.
	startWords = 400
	// settleTime is how long a new screen must be still before it is shown to
	// anybody, and settleWait how long that may take.
	settleTime = 600 * time.Millisecond
	settleWait = 5 * time.Second
)

// begins is what a template says of how its sandboxes begin. The record of a
// sandbox keeps it: the template may be another by the time it boots again.
type begins struct {
	Start   *sandbox.StartCommand `json:",omitempty"`
	Desktop *sandbox.Desktop      `json:",omitempty"`
	// User, WorkDir and Env are the template's, for the start command.
	User    string            `json:",omitempty"`
	WorkDir string            `json:",omitempty"`
	Env     map[string]string `json:",omitempty"`
}

// madeFrom is what a record keeps of what it was made from. Code that needs the
// root alone reads it as an [engine.Root].
type madeFrom struct {
	engine.Root
	Begins *begins `json:",omitempty"`
}

// beginsOfTemplate returns nil for a template whose sandboxes begin with
// nothing.
func beginsOfTemplate(t *sandbox.Template) *begins {
	if t.Start == nil && t.Desktop == nil {
		return nil
	}
	b := &begins{Start: t.Start, Desktop: t.Desktop}
	if t.Start != nil {
		b.User, b.WorkDir, b.Env = t.User, t.WorkDir, t.Env
	}
	return b
}

// beginsOf returns what the record of a sandbox or snapshot keeps of it, or nil.
func beginsOf(root json.RawMessage) *begins {
	// Most have none, and a root may be long.
	if !bytes.Contains(root, []byte(`"Begins":`)) {
		return nil
	}
	var from struct{ Begins *begins }
	if err := json.Unmarshal(root, &from); err != nil {
		return nil
	}
	return from.Begins
}

// desktopOf returns the desktop of a record, or nil.
func desktopOf(r *store.Record) *sandbox.Desktop {
	if b := beginsOf(r.Root); b != nil {
		return b.Desktop
	}
	return nil
}

// boots reports whether an instance begins with a boot, and not where a
// checkpoint left off.
func (b *beginning) boots() bool { return b.checkpoint == "" || b.filesOnly }

// startIn starts in a new instance what its sandbox begins with, if it has not
// gone on from a checkpoint in which that runs.
func (b *beginning) startIn(ctx context.Context, instance engine.Instance) error {
	if b.begins == nil || !b.boots() {
		return nil
	}
	client := agentclient.New(instance.ID(), instance.Dial)
	defer client.Close()
	return b.begins.run(ctx, client)
}

// patience is how long the start command may take to be ready.
func (b *begins) patience() time.Duration {
	if b == nil || b.Start == nil {
		return 0
	}
	return cmp.Or(time.Duration(b.Start.TimeoutMS)*time.Millisecond, sandbox.DefaultStartTimeout)
}

// run starts the start command and returns when it is ready. An error is for
// the caller.
func (b *begins) run(ctx context.Context, client *agentclient.Client) error {
	if b.Start == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.patience(), errNotReady)
	defer cancel()
	job := b.job(b.Start.Command)
	job.Background, job.KeepBytes = true, startOutput
	if _, err := client.Exec(ctx, startJob, job, nil); err != nil {
		return b.failed(ctx, client, err)
	}
	if err := b.awaitReady(ctx, client); err != nil {
		return b.failed(ctx, client, err)
	}
	if b.Desktop != nil {
		b.settle(ctx, client)
	}
	return nil
}

// job is a command as the template's own.
func (b *begins) job(shell string) *sandbox.ExecRequest {
	return &sandbox.ExecRequest{Command: []string{"/bin/sh", "-c", shell}, User: b.User, WorkDir: b.WorkDir, Env: maps.Clone(b.Env)}
}

// errNotReady is the cause of a wait for a start command that was too long, and
// errEnded that of one whose start command has failed.
var (
	errNotReady = errors.New("it was not ready in time")
	errEnded    = errors.New("it ended")
)

// readyLoop tries a command until it succeeds: in the sandbox, as one job, so
// that each try costs no call.
const readyLoop = `until /bin/sh -c "$COVE_READY" </dev/null >/dev/null 2>&1; do sleep 0.2 || sleep 1; done`

// awaitReady waits until the ready command succeeds, or the start command has
// failed.
func (b *begins) awaitReady(ctx context.Context, client *agentclient.Client) error {
	if b.Start.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		job, err := client.Attach(ctx, startJob, &sandbox.AttachRequest{}, nil)
		if err == nil && job.State != sandbox.JobRunning && job.ExitCode != 0 {
			cancel(errEnded)
		}
	}()
	defer func() { cancel(nil); <-watched }()
	wait := b.job(readyLoop)
	if wait.Env == nil {
		wait.Env = map[string]string{}
	}
	wait.Env["COVE_READY"] = b.Start.Ready
	wait.TimeoutMS = b.patience().Milliseconds()
	job, err := client.Exec(ctx, readyJob, wait, nil)
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

// settle waits until a new screen is painted. One that is never still, or
// cannot be looked at, is as good as it is.
func (b *begins) settle(ctx context.Context, client *agentclient.Client) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	_, _ = client.Screenshot(ctx, b.Desktop.Display, &sandbox.ScreenshotRequest{Width: 64, StableMS: settleTime.Milliseconds()})
}

// failed explains why a start command is not ready, with its last words.
func (b *begins) failed(ctx context.Context, client *agentclient.Client, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	// The time is over; looking at what was said is allowed a little more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	said := lastWords(ctx, client)
	switch job, jerr := client.GetJob(ctx, startJob, 0); {
	case jerr == nil && job.State != sandbox.JobRunning && (job.ExitCode != 0 || !errors.Is(err, errNotReady)):
		return sandbox.Errorf(sandbox.CodeConflict, "the start command of the template ended with exit code %d before it was ready%s; correct the template and build it again", job.ExitCode, said)
	case errors.Is(err, errNotReady) || sandbox.CodeOf(err) == sandbox.CodeTimeout:
		return sandbox.Errorf(sandbox.CodeTimeout, "the start command of the template was not ready within %s%s; look at its ready command, or give it more time with timeout_ms", b.patience(), said)
	}
	return fmt.Errorf("run the start command: %w", err)
}

// lastWords tells what the start command has written last, for an error.
func lastWords(ctx context.Context, client *agentclient.Client) string {
	for _, stream := range []sandbox.Stream{sandbox.Stderr, sandbox.Stdout} {
		out, err := client.ReadOutput(ctx, startJob, &sandbox.OutputRequest{Stream: stream, Limit: startOutput})
		if err != nil || len(bytes.TrimSpace(out.Data)) == 0 {
			continue
		}
		text := bytes.TrimSpace(out.Data)
		text = text[max(0, len(text)-startWords):]
		return fmt.Sprintf(": %q", strings.ToValidUTF8(string(text), ""))
	}
	return ""
}
