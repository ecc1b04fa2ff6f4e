package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// objects measures the first call to a paused sandbox whose state is only in an object store,
// which is a directory of this machine, and when all of the state is back on the disk.
func (b *bench) objects(ctx context.Context) error {
	bucket, err := os.MkdirTemp("", "cove-bench-objects-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bucket)
	d, err := covetest.Launch(ctx, covetest.Options{Dev: true, Env: []string{"COVE_OBJECTS=file://" + bucket, "COVE_OBJECTS_CACHE_MIB=1"}})
	if err != nil {
		return err
	}
	defer func() { _ = d.Shutdown(context.WithoutCancel(ctx)) }()
	other := &bench{n: b.n, d: d}
	for _, mb := range []int64{100, 1000} {
		err := other.withLoad(ctx, mb*1e6, 0, func(id string) error { return other.fromObjects(ctx, id, mb) })
		if err != nil {
			return err
		}
	}
	b.rows = append(b.rows, other.rows...)
	return nil
}

func (b *bench) fromObjects(ctx context.Context, id string, mb int64) error {
	whole := figures.Series{Name: fmt.Sprintf("all %d MB are back on the disk", mb)}
	err := b.time(ctx, fmt.Sprintf("first call to a sandbox with %d MB in an object store", mb), "", max(3, b.n/6), func(ctx context.Context) (time.Duration, error) {
		if err := b.pauseUntilRemote(ctx, id); err != nil {
			return 0, err
		}
		if err := figures.Rest(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := b.execTrue(ctx, id); err != nil {
			return 0, err
		}
		first := time.Since(began)
		for b.fetches() {
			if err := figures.Pause(ctx, 5*time.Millisecond); err != nil {
				return 0, err
			}
		}
		whole.Values = append(whole.Values, time.Since(began))
		return first, nil
	})
	b.rows = append(b.rows, whole)
	return err
}

// fetches reports whether a checkpoint is used before all of it is fetched.
func (b *bench) fetches() bool {
	found, _ := filepath.Glob(filepath.Join(b.d.StateDir, "engine", "checkpoints", "*", "fetch.sock"))
	return len(found) > 0
}

// pauseUntilRemote pauses a sandbox and waits until its state is only in the object store.
func (b *bench) pauseUntilRemote(ctx context.Context, id string) error {
	if _, err := b.d.Client.Pause(ctx, id); err != nil {
		return err
	}
	for {
		s, err := b.d.Client.Get(ctx, id)
		if err != nil || s.Stored == sandbox.StoredRemote {
			return err
		}
		if err := figures.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
