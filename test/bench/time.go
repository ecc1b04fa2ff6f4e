package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// large are resources that suffice for what the measurements put into a sandbox.
var large = sandbox.Resources{VCPUs: 2, MemoryMiB: 8192, DiskMiB: 16384}

// withLoad runs do with a sandbox that holds this many bytes of memory and of written
// files.
func (b *bench) withLoad(ctx context.Context, memory, files int64, do func(id string) error) error {
	s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{Resources: large})
	if err != nil {
		return err
	}
	defer b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
	for path, size := range map[string]int64{"/dev/shm/load": memory, "/workspace/load": files} {
		if size == 0 {
			continue
		}
		if err := b.sh(ctx, s.ID, fmt.Sprintf("head -c %d /dev/urandom > %s", size, path)); err != nil {
			return err
		}
	}
	return do(s.ID)
}

// sh runs a shell command that must succeed.
func (b *bench) sh(ctx context.Context, id, line string) error {
	res, err := b.d.Exec(ctx, id, sandbox.ExecRequest{Shell: line, TimeoutMS: 300_000})
	if err == nil && res.Job.ExitCode != 0 {
		err = fmt.Errorf("%q: exit code %d: %s", line, res.Job.ExitCode, res.Stderr)
	}
	return err
}

// inTime measures pause, resume, snapshots, fork and the history.
func (b *bench) inTime(ctx context.Context) error {
	err := b.withLoad(ctx, 100<<20, 0, func(id string) error {
		resumed := figures.Series{Name: "resume, 100 MB of memory", Target: "< 120 ms"}
		err := b.time(ctx, "pause, 100 MB of memory", "< 150 ms", b.n, func(ctx context.Context) (time.Duration, error) {
			if err := figures.Rest(ctx); err != nil {
				return 0, err
			}
			pause, resume, err := b.pauseAndResume(ctx, id)
			resumed.Values = append(resumed.Values, resume)
			return pause, err
		})
		b.rows = append(b.rows, resumed)
		if err != nil {
			return err
		}
		return b.snapshots(ctx, id)
	})
	if err != nil {
		return err
	}
	return b.withSandbox(ctx, func(id string) error {
		for _, f := range []struct {
			n      int
			target string
			runs   int
		}{{1, "< 120 ms", b.n}, {5, "< 260 ms", b.n}, {32, "", max(2, b.n/10)}} {
			if err := b.time(ctx, fmt.Sprintf("fork n=%d, all agents answering", f.n), f.target, f.runs, func(ctx context.Context) (time.Duration, error) {
				// Wait for the standby sandboxes of the next children.
				for range min(f.n, 4) {
					if err := figures.Rest(ctx); err != nil {
						return 0, err
					}
				}
				return b.fork(ctx, id, f.n)
			}); err != nil {
				return err
			}
		}
		if err := b.stall(ctx, id, "the parent's stall in a fork, idle sandbox", "< 40 ms"); err != nil {
			return err
		}
		return b.history(ctx)
	})
}

func (b *bench) pauseAndResume(ctx context.Context, id string) (pause, resume time.Duration, err error) {
	began := time.Now()
	if _, err := b.d.Client.Pause(ctx, id); err != nil {
		return 0, 0, err
	}
	pause = time.Since(began)
	began = time.Now()
	_, err = b.d.Client.Resume(ctx, id, sandbox.ResumeRequest{})
	return pause, time.Since(began), err
}

// snapshots measures making a snapshot of a running sandbox, restoring it, and its size on
// disk.
func (b *bench) snapshots(ctx context.Context, id string) error {
	restored := figures.Series{Name: "restore of it"}
	var size int64
	err := b.time(ctx, "snapshot, 100 MB of memory", "", b.n, func(ctx context.Context) (time.Duration, error) {
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		snapshot, err := b.d.Client.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{})
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		size = snapshot.SizeBytes
		began = time.Now()
		_, err = b.d.Client.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: snapshot.ID})
		restored.Values = append(restored.Values, time.Since(began))
		_, derr := b.d.Client.DeleteSnapshot(ctx, snapshot.ID)
		return took, errors.Join(err, derr)
	})
	b.rows = append(b.rows, restored)
	if err == nil {
		b.note("its size on disk", "", "%.0f MB", float64(size)/1e6)
	}
	return err
}

// fork measures a fork, and kills the children.
func (b *bench) fork(ctx context.Context, id string, n int) (time.Duration, error) {
	began := time.Now()
	children, err := b.d.Client.Fork(ctx, id, sandbox.ForkRequest{Count: n})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, c := range children.Items {
		_, err := b.d.Client.Kill(ctx, c.ID)
		errs = append(errs, err)
	}
	return took, errors.Join(errs...)
}

// stall measures, from inside, how long a sandbox stands still during a fork.
func (b *bench) stall(ctx context.Context, id, name, target string) error {
	gap, err := buildHelper(ctx, "gap")
	if err != nil {
		return err
	}
	defer os.Remove(gap)
	f, err := os.Open(gap)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := b.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: "/workspace/gap", Mode: "0755"}, f); err != nil {
		return err
	}
	job, err := b.d.Client.Exec(ctx, id, sandbox.ExecRequest{Command: []string{"/workspace/gap"}, Background: true, TimeoutMS: -1}, nil)
	if err != nil {
		return err
	}
	s := figures.Series{Name: name, Target: target}
	seen := int64(0)
	for range max(3, b.n/3) {
		if err := figures.Rest(ctx); err != nil {
			return err
		}
		if seen, _, err = b.gaps(ctx, id, job.ID, seen); err != nil {
			return err
		}
		if _, err := b.fork(ctx, id, 1); err != nil {
			return err
		}
		var longest time.Duration
		if seen, longest, err = b.gaps(ctx, id, job.ID, seen); err != nil {
			return err
		}
		s.Values = append(s.Values, longest)
	}
	b.rows = append(b.rows, s)
	_, err = b.d.Client.SignalJob(ctx, id, job.ID, "KILL", 0)
	return err
}

// gaps reads the helper's new output, and returns the longest gap.
func (b *bench) gaps(ctx context.Context, id, job string, from int64) (next int64, longest time.Duration, err error) {
	out, err := b.d.Client.ReadOutput(ctx, id, job, sandbox.OutputRequest{Stream: sandbox.Stdout, Offset: from})
	if err != nil {
		return from, 0, err
	}
	for line := range strings.Lines(string(out.Data)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
			longest = max(longest, time.Duration(n))
		}
	}
	return out.TotalBytes, longest, nil
}

// history measures the cost of a step before each command.
func (b *bench) history(ctx context.Context) error {
	s, err := b.d.Client.Create(ctx, sandbox.CreateRequest{History: 5})
	if err != nil {
		return err
	}
	defer b.d.Client.Kill(context.WithoutCancel(ctx), s.ID)
	return b.time(ctx, "exec true with history: 5", "", b.n, figures.Whole(func(ctx context.Context) error { return b.execTrue(ctx, s.ID) }))
}

// merges measures comparing and merging.
func (b *bench) merges(ctx context.Context) error {
	return b.withLoad(ctx, 0, 0, func(id string) error {
		// A tree of 2 GB in 2,000 files, of which 1,000 small ones change.
		if err := b.sh(ctx, id, "mkdir /workspace/tree && cd /workspace/tree && for i in $(seq 1000); do head -c 2000000 /dev/urandom > large.$i; echo $i > small.$i; done"); err != nil {
			return err
		}
		if err := b.changes(ctx, id, "diff, 1,000 files changed beside 2 GB that the parent had written"); err != nil {
			return err
		}
		return b.withSandbox(ctx, func(id string) error {
			if err := b.sh(ctx, id, "mkdir /workspace/tree && cd /workspace/tree && for i in $(seq 1000); do echo $i > small.$i; done"); err != nil {
				return err
			}
			if err := b.changes(ctx, id, "diff, 1,000 files changed"); err != nil {
				return err
			}
			for _, kind := range []sandbox.MergeKind{sandbox.MergeWhole, sandbox.MergeFiles} {
				if err := b.merge(ctx, id, kind); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// changes measures comparing a parent with a child that has changed its 1,000 small files.
func (b *bench) changes(ctx context.Context, id, name string) error {
	children, err := b.d.Client.Fork(ctx, id, sandbox.ForkRequest{})
	if err != nil {
		return err
	}
	child := children.Items[0].ID
	defer b.d.Client.Kill(context.WithoutCancel(ctx), child)
	if err := b.sh(ctx, child, "cd /workspace/tree && for i in $(seq 1000); do echo changed >> small.$i; done"); err != nil {
		return err
	}
	return b.time(ctx, name, "", max(2, b.n/10), figures.Whole(func(ctx context.Context) error {
		d, err := b.d.Client.Diff(ctx, child, sandbox.DiffRequest{Against: id})
		if err == nil && d.Modified != 1000 {
			err = fmt.Errorf("%d files are modified, want 1000", d.Modified)
		}
		return err
	}))
}

func (b *bench) merge(ctx context.Context, id string, kind sandbox.MergeKind) error {
	return b.time(ctx, "merge "+string(kind)+", 1,000 files changed", "", max(2, b.n/5), func(ctx context.Context) (time.Duration, error) {
		children, err := b.d.Client.Fork(ctx, id, sandbox.ForkRequest{})
		if err != nil {
			return 0, err
		}
		child := children.Items[0].ID
		defer b.d.Client.Kill(context.WithoutCancel(ctx), child)
		if err := b.sh(ctx, child, "cd /workspace/tree && for i in $(seq 1000); do echo changed >> small.$i; done"); err != nil {
			return 0, err
		}
		began := time.Now()
		res, err := b.d.Client.Merge(ctx, id, sandbox.MergeRequest{Winner: child, Kind: kind})
		if err == nil && !res.Merged {
			err = fmt.Errorf("not merged: %v", res.Conflicts)
		}
		return time.Since(began), err
	})
}
