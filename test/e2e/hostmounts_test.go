package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// The host can unmount a disk while sandboxes run that were made while it was mounted.
// A later mount in a directory that a sandbox has mounted is not visible in the
// sandbox.
func TestHostMounts(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t)
	needs.Command(t, "unshare", "nsenter", "truncate", "mkfs.ext4", "mount", "umount", "losetup")
	// The host's mounts are those of a namespace, which no other test's sandboxes
	// have a copy of.
	holder := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo made; exec sleep infinity")
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	enter := []string{"nsenter", "--mount", "--target", strconv.Itoa(holder.Process.Pid), "--"}
	host := func(line ...string) string {
		t.Helper()
		line = append(enter, line...)
		out, err := exec.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	inside, dir := filepath.Join(t.TempDir(), "cove"), t.TempDir()
	if err := os.WriteFile(inside, fmt.Appendf(nil, "#!/bin/sh\nexec %s %s \"$@\"\n", strings.Join(enter, " "), binary), 0o755); err != nil {
		t.Fatal(err)
	}
	image, disk, shown := filepath.Join(dir, "image"), filepath.Join(dir, "disk"), filepath.Join(dir, "shown")
	later := filepath.Join(shown, "later")
	// As on a machine with systemd, whose mounts propagate to namespaces.
	host("mount", "--bind", dir, dir)
	host("mount", "--make-shared", dir)
	host("mkdir", "-p", disk, later)
	d := covetest.Start(t, covetest.Options{Binary: inside, Args: []string{"--mount-paths", shown}})

	host("truncate", "-s", "8M", image)
	host("mkfs.ext4", "-q", "-F", image)
	host("mount", "-o", "loop", image, disk)
	s := with(t, d, mounting(sandbox.Mount{Target: "/shown", Host: shown, ReadOnly: true}))
	plain := d.Create(t, covetest.Small())
	host("umount", disk)
	var devices string
	free := func() bool {
		devices = host("losetup", "--noheadings", "--output", "NAME", "--associated", image)
		return devices == ""
	}
	if !covetest.Eventually(covetest.DetectionLimit, free) {
		t.Errorf("the disk was unmounted, and its device %s is in use", devices)
	}
	d.Shows(t, plain.ID, "echo here", "here")

	host("mount", "-t", "tmpfs", "tmpfs", later)
	host("touch", filepath.Join(later, "f"))
	d.Shows(t, s.ID, "ls /shown /shown/later", "/shown:\nlater\n\n/shown/later:")
}
