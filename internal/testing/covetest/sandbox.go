package covetest

import (
	"bytes"
	"context"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// KillAll kills every sandbox of the daemon.
func (d *Daemon) KillAll(ctx context.Context) error {
	for {
		list, err := d.Client.List(ctx, sandbox.ListRequest{})
		if err != nil || len(list.Items) == 0 {
			return err
		}
		for _, s := range list.Items {
			if _, err := d.Client.Kill(ctx, s.ID); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				return err
			}
		}
	}
}

// Create makes a sandbox and kills it with the test.
func (d *Daemon) Create(t testing.TB, req sandbox.CreateRequest) *sandbox.Sandbox {
	t.Helper()
	s, err := d.Client.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("create sandbox: %v", err)
	}
	return s
}

// Result is what a command did.
type Result struct {
	Job    *sandbox.Job
	Stdout string
	Stderr string
}

// Exec runs a command in a sandbox and collects its output.
func (d *Daemon) Exec(ctx context.Context, id string, req sandbox.ExecRequest) (Result, error) {
	var out, errOut bytes.Buffer
	job, err := d.Client.Exec(ctx, id, req, func(ev sandbox.JobEvent) error {
		switch ev.Stream {
		case sandbox.Stdout:
			out.Write(ev.Data)
		case sandbox.Stderr:
			errOut.Write(ev.Data)
		}
		return nil
	})
	return Result{Job: job, Stdout: out.String(), Stderr: errOut.String()}, err
}

// Sh runs a shell line that must succeed and returns its standard output.
func (d *Daemon) Sh(t testing.TB, id, line string) string {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if res.Job.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", line, res.Job.ExitCode, res.Stdout, res.Stderr)
	}
	return res.Stdout
}
