package covetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// seedsVariable names the directory of the seeds, which all packages of a run share.
// Without it each daemon begins with nothing, as a user's first one does.
const seedsVariable = "COVE_TEST_SEEDS"

// seeded are the parts of a state directory that say nothing of its installation:
// the template host, its golden checkpoint, and the programs that both need.
var seeded = []string{"templates", "engine/checkpoints", "engine/bin", "engine/agent"}

// plant gives a new daemon what the first one of its user has made, which takes most
// of a start, and reports whether there was a seed. The daemon has no state yet.
func (d *Daemon) plant(ctx context.Context) (bool, error) {
	seeds := os.Getenv(seedsVariable)
	if seeds == "" || d.opts.StateDir != "" || d.opts.Binary != "" || d.opts.Fresh || OnNode() {
		return false, nil
	}
	seed, err := seedFor(ctx, seeds, d.opts.UID)
	if err != nil {
		return false, fmt.Errorf("make the seed of state directories: %w", err)
	}
	if d.opts.UID != 0 {
		d.Binary = filepath.Join(d.StateDir, "cove")
		if err := os.Link(filepath.Join(seed, "cove"), d.Binary); err != nil {
			return false, err
		}
	}
	for _, part := range seeded {
		how := "-a"
		if part == "engine/bin" {
			how = "-al" // a program is named by its inode, and is never written to
		}
		if err := d.copyIn(seed, part, how); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (d *Daemon) copyIn(seed, part, how string) error {
	to := filepath.Join(d.StateDir, part)
	if parent := filepath.Dir(to); parent != d.StateDir {
		if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if d.opts.UID != 0 {
			if err := os.Chown(parent, int(d.opts.UID), int(d.opts.UID)); err != nil {
				return err
			}
		}
	}
	if out, err := exec.Command("cp", how, "--reflink=auto", filepath.Join(seed, part), to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s of the seed: %w\n%s", part, err, out)
	}
	return nil
}

// seedFor returns the state directory of a daemon of this user that has made what
// others begin with, and has ended. The first caller on the machine makes it.
func seedFor(ctx context.Context, seeds string, uid uint32) (string, error) {
	dir := filepath.Join(seeds, strconv.Itoa(int(uid)))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	d, err := Launch(ctx, Options{UID: uid, Fresh: true})
	if err != nil {
		return "", err
	}
	_, err = d.WaitGolden(ctx)
	if err := errors.Join(err, d.end(ctx)); err != nil {
		return "", fmt.Errorf("%w\n%s", err, d.Output())
	}
	return dir, os.Rename(d.StateDir, dir)
}

// WaitGolden waits until the template host has its golden checkpoint, and returns the
// template.
func (d *Daemon) WaitGolden(ctx context.Context) (*sandbox.Template, error) {
	var host *sandbox.Template
	var err error
	ready := Eventually(2*time.Minute, func() bool {
		host, err = d.Client.GetTemplate(ctx, "host")
		return err == nil && host.WarmBytes > 0
	})
	if !ready {
		return nil, errors.Join(errors.New("the template host has no golden checkpoint"), err)
	}
	return host, nil
}
