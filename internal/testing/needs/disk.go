package needs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a file system of its own on a disk that is a file. What the file has at
// an instant is what a loss of power at that instant leaves of the disk.
type Disk struct {
	// Dir is where the file system is mounted.
	Dir string

	image  string
	losses int
	filler string
}

// NewDisk mounts a new ext4 of a size in MiB for the time of the test, where
// every user can reach it. Only root can do that.
func NewDisk(t testing.TB, mib int) *Disk {
	t.Helper()
	Root(t)
	Command(t, "truncate", "mkfs.ext4", "mount", "cp")
	d := &Disk{Dir: t.TempDir(), image: filepath.Join(t.TempDir(), "image")}
	d.filler = filepath.Join(d.Dir, "filler")
	if err := os.Chmod(filepath.Dir(d.Dir), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "truncate", "-s", fmt.Sprintf("%dM", mib), d.image)
	run(t, "mkfs.ext4", "-q", "-F", "-m", "0", d.image) // what is free is everybody's
	mount(t, d.image, d.Dir)
	return d
}

// AfterPowerLoss mounts the file system as a loss of power now would leave it, in
// a directory that it returns.
func (d *Disk) AfterPowerLoss(t testing.TB) (dir string) {
	t.Helper()
	d.losses++
	image, dir := fmt.Sprintf("%s-%d", d.image, d.losses), t.TempDir()
	run(t, "cp", "--sparse=always", d.image, image)
	mount(t, image, dir)
	return dir
}

// CutPower drops what the file system has not written to its disk yet, at one
// instant. From then on every use of its files fails, until
// [Disk.RestorePower].
func (d *Disk) CutPower() error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	// EXT4_IOC_SHUTDOWN, which is _IOR('X', 125, __u32), without a flush of the log.
	const shutdown, noLogFlush = 0x8004587d, 2
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), shutdown, noLogFlush); err != nil {
		return fmt.Errorf("shut the file system down: %w", err)
	}
	return nil
}

// RestorePower mounts what the disk had when its power was cut, in the same
// directory. Whatever still holds the file system of before cannot harm it:
// it is on a copy.
func (d *Disk) RestorePower(ctx context.Context) error {
	d.losses++
	image := fmt.Sprintf("%s-power-%d", d.image, d.losses)
	if err := command(ctx, "cp", "--sparse=always", d.image, image); err != nil {
		return err
	}
	if err := errors.Join(syscall.Unmount(d.Dir, syscall.MNT_DETACH), os.Remove(d.image)); err != nil {
		return err
	}
	d.image = image
	if err := command(ctx, "mount", "-o", "loop", d.image, d.Dir); err != nil {
		return err
	}
	if err := d.Free(); !errors.Is(err, os.ErrNotExist) { // its removal may have been lost
		return err
	}
	return nil
}

// Fill takes every free byte of the disk, until [Disk.Free].
func (d *Disk) Fill() error {
	f, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for at, n := int64(0), int64(1<<30); n > 0; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, n); {
		case err == nil:
			at += n
		case errors.Is(err, unix.ENOSPC):
			n /= 2
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	return nil
}

// Free gives back what [Disk.Fill] has taken.
func (d *Disk) Free() error { return os.Remove(d.filler) }

func mount(t testing.TB, image, dir string) {
	t.Helper()
	run(t, "mount", "-o", "loop", image, dir)
	t.Cleanup(func() {
		// Lazily: the last namespace of a sandbox may take a moment to go.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func run(t testing.TB, line ...string) {
	t.Helper()
	if err := command(t.Context(), line...); err != nil {
		t.Fatal(err)
	}
}

func command(ctx context.Context, line ...string) error {
	if out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", line, err, out)
	}
	return nil
}
