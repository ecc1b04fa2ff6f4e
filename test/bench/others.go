package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cove-sh/cove/internal/testing/figures"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// others measures alternatives to Cove: plain gVisor by its command line, which is the cove
// binary under the name runsc, and bubblewrap.
func (b *bench) others(ctx context.Context) error {
	if os.Geteuid() == 0 {
		if err := b.plainRunsc(ctx); err != nil {
			return err
		}
	} else {
		b.note("plain runsc", "", "needs root")
	}
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		b.note("bwrap", "", "not installed (apt-get install bubblewrap)")
		return nil
	}
	return b.time(ctx, "bwrap: run true, no kernel isolation", "", b.n, figures.Whole(func(ctx context.Context) error {
		return command(ctx, bwrap, "--ro-bind", "/", "/", "--unshare-all", "/bin/true")
	}))
}

func (b *bench) plainRunsc(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cove-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := filepath.Abs(b.d.Binary)
	if err != nil {
		return err
	}
	runsc := filepath.Join(dir, "runsc")
	if err := os.Symlink(binary, runsc); err != nil {
		return err
	}
	if err := writeBundle(dir, "/bin/true"); err != nil {
		return err
	}
	// The links of gVisor's shared network namespace stay mounted below its
	// root directory unless it gets one of its own.
	global := []string{"--root", filepath.Join(dir, "state"), "--network=none", "--ignore-cgroups", "--gofer-network-namespace=new"}
	i := 0
	if err := b.time(ctx, "plain runsc: run true", "", b.n, figures.Whole(func(ctx context.Context) error {
		i++
		return command(ctx, runsc, append(global, "run", "--bundle", dir, fmt.Sprintf("bench-%d", i))...)
	})); err != nil {
		return err
	}
	if err := writeBundle(dir, "/bin/sleep", "600"); err != nil {
		return err
	}
	if err := command(ctx, runsc, append(global, "run", "--detach", "--bundle", dir, "bench-exec")...); err != nil {
		return err
	}
	defer command(context.WithoutCancel(ctx), runsc, append(global, "delete", "--force", "bench-exec")...)
	return b.time(ctx, "plain runsc: exec true", "", b.n, figures.Whole(func(ctx context.Context) error {
		return command(ctx, runsc, append(global, "exec", "bench-exec", "/bin/true")...)
	}))
}

func writeBundle(dir string, args ...string) error {
	spec := specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}},
		Root:    &specs.Root{Path: "/", Readonly: true},
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// command runs a command that must succeed, without a terminal, or pipes that a background
// process could hold open.
func command(ctx context.Context, name string, args ...string) error {
	if err := exec.CommandContext(ctx, name, args...).Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}
