package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

// files measures moving files into and out of a sandbox.
func (b *bench) files(ctx context.Context) error {
	return b.withSandbox(ctx, func(id string) error {
		for _, size := range []struct {
			name  string
			bytes int64
			runs  int
		}{{"1 MiB", 1 << 20, b.n}, {"100 MiB", 100 << 20, max(3, b.n/6)}} {
			path := "/workspace/blob"
			if err := b.rate(ctx, "file in, "+size.name, "", size.runs, size.bytes, figures.Whole(func(ctx context.Context) error {
				_, err := b.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: path}, io.LimitReader(pattern{}, size.bytes))
				return err
			})); err != nil {
				return err
			}
			if err := b.rate(ctx, "file out, "+size.name, "", size.runs, size.bytes, figures.Whole(func(ctx context.Context) error {
				return b.readBack(ctx, id, path, size.bytes)
			})); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bench) readBack(ctx context.Context, id, path string, want int64) error {
	f, err := b.d.Client.ReadFile(ctx, id, sandbox.ReadFileRequest{Path: path})
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(io.Discard, f)
	if err == nil && n != want {
		err = fmt.Errorf("read %d bytes, want %d", n, want)
	}
	return err
}

// pattern is an endless file without long runs of zeros.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return len(p), nil
}

// memory reports the memory of idle sandboxes.
func (b *bench) memory(ctx context.Context) error {
	return b.withSandbox(ctx, func(id string) error {
		if err := b.execTrue(ctx, id); err != nil {
			return err
		}
		st, err := b.d.Client.Stats(ctx, id)
		if err != nil {
			return err
		}
		before := st.CPUSeconds
		began := time.Now()
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		if st, err = b.d.Client.Stats(ctx, id); err != nil {
			return err
		}
		b.note("idle sandbox: private memory of cell, gofer, gVisor", "< 45 MB", "%.1f MB", float64(st.PrivateBytes)/1e6)
		b.note("idle sandbox: processor", "", "%.2f %%", 100*(st.CPUSeconds-before)/time.Since(began).Seconds())
		return nil
	})
}
