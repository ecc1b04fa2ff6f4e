package needs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a file system of its own on a disk that is a file. What the file has at
// an instant is what a loss of power at that instant leaves of the disk.
type Disk struct {
	// Dir is where the file system is mounted.
	Dir string

	image  string
	losses int
}

// NewDisk mounts a new ext4 of a size in MiB for the time of the test. Only root
// can do that.
func NewDisk(t testing.TB, mib int) *Disk {
	t.Helper()
	Root(t)
	Command(t, "truncate", "mkfs.ext4", "mount", "cp")
	d := &Disk{Dir: t.TempDir(), image: filepath.Join(t.TempDir(), "image")}
	run(t, "truncate", "-s", fmt.Sprintf("%dM", mib), d.image)
	run(t, "mkfs.ext4", "-q", "-F", d.image)
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

func run(t testing.TB, command ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
}
