package machine

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// fsNames are the names of common file systems.
var fsNames = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs", unix.FUSE_SUPER_MAGIC: "fuse", 0x01021997: "9p",
}

func (p probe) disk() sandbox.MachineCheck {
	dir := nearest(p.stateDir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return sandbox.MachineCheck{Name: "disk", Status: sandbox.CheckFail, Detail: fmt.Sprintf("%s: %v", dir, err), Fix: "choose another state directory"}
	}
	name := fsNames[int64(st.Type)] //nolint:unconvert // an int32 on some processors
	if name == "" {
		name = fmt.Sprintf("type %#x", st.Type)
	}
	free := int64(st.Bavail) * st.Bsize >> 20
	c := sandbox.MachineCheck{Name: "disk", Status: sandbox.CheckOK, Detail: fmt.Sprintf("%d MiB free (%s) in %s", free, name, dir)}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		c.Status, c.Fix = sandbox.CheckFail, "the file system is read-only; choose another state directory"
	case unix.Access(dir, unix.W_OK) != nil:
		c.Status, c.Fix = sandbox.CheckFail, "this user may not write there; choose another state directory"
	case free < 1024:
		c.Status, c.Fix = sandbox.CheckWarn, "free some space: sandboxes write up to their disk limit, and Debian templates take up to 2.5 GiB"
	case name == "nfs" || name == "fuse" || name == "9p":
		c.Status, c.Fix = sandbox.CheckWarn, "use a local disk for the state directory: the database needs file locks"
	}
	return c
}

// kconfig returns the kernel's configuration without unset options, or "" if the kernel
// does not provide it.
func (p probe) kconfig() string {
	f, err := os.Open(filepath.Join(p.proc, "config.gz"))
	if err != nil {
		return ""
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(z, 4<<20))
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "CONFIG_") {
			out.WriteString(line)
		}
	}
	return out.String()
}
