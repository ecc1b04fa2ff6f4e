package cell

import (
	"slices"
	"testing"
)

// TestUnused checks that mounts above a needed path stay, and everything below the
// system's and the engine's directories; other disks are unmounted.
func TestUnused(t *testing.T) {
	const table = `1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:5 / /proc rw - proc proc rw
3 1 0:6 / /sys/fs/cgroup rw - cgroup2 none rw
4 1 0:7 / /run rw - tmpfs none rw
5 4 8:2 / /run/media/user/My\040disk rw - ext4 /dev/sdb1 rw
6 1 8:3 / /var rw - ext4 /dev/sdc1 rw
7 6 8:4 / /var/lib/cove/engine/checkpoints rw - ext4 /dev/sdd1 rw
8 6 8:5 / /var/lib/other rw - ext4 /dev/sde1 rw
9 1 0:9 / /mnt rw - tmpfs none rw
10 9 0:9 / /mnt/r rw - ext4 /dev/sda1 rw
11 1 8:6 / /variety rw - ext4 /dev/sdf1 rw
`
	needed := []string{"/var/lib/cove/engine/standby/standby-1", "/run/systemd/resolve/stub-resolv.conf"}
	got := unused(table, needed, []string{"/mnt", "/var/lib/cove/engine"})
	if want := []string{"/run/media/user/My disk", "/var/lib/other", "/variety"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
