package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// Memory is a limit on the memory of all sandboxes. Sizes are bytes.
type Memory struct {
	// Group is the cgroup that has the limit; if empty, the limit is that of the machine.
	Group            string
	Total, Available int64
}

const (
	// 1/floorShare of a memory limit, but at least minFloor and at most maxFloor, is not
	// available to new sandboxes.
	floorShare = 10
	minFloor   = 128 << 20
	maxFloor   = 1 << 30
)

// Floor is how much of a limit must stay available when a sandbox is started, for the
// daemon, the running sandboxes and the files in use. It is a tenth of the limit, but at
// least 128 MiB and at most 1 GiB.
func (m Memory) Floor() int64 { return min(max(m.Total/floorShare, minFloor), maxFloor) }

// Room is how much memory new sandboxes may use; it may be negative.
func (m Memory) Room() int64 { return m.Available - m.Floor() }

// String describes the limit as part of a sentence.
func (m Memory) String() string {
	if m.Group == "" {
		return fmt.Sprintf("the machine has %d of its %d MiB of memory available", m.Available>>20, m.Total>>20)
	}
	return fmt.Sprintf("the daemon's memory cgroup has %d of its %d MiB left", m.Available>>20, m.Total>>20)
}

// MemoryBounds returns the memory of this machine, and of each cgroup whose limit applies
// to sandboxes. It omits what the kernel does not report.
func MemoryBounds() []Memory {
	var bounds []Memory
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if m, err := parseMeminfo(string(data)); err == nil {
			bounds = append(bounds, m)
		}
	}
	for _, r := range cgroup.MemoryRooms() {
		bounds = append(bounds, Memory{Group: r.Dir, Total: r.Limit, Available: r.Free})
	}
	return bounds
}

// parseMeminfo reads the text of /proc/meminfo.
func parseMeminfo(text string) (Memory, error) {
	total, err1 := meminfo(text, "MemTotal")
	available, err2 := meminfo(text, "MemAvailable")
	return Memory{Total: total, Available: min(available, total)}, errors.Join(err1, err2)
}

// meminfo returns a field of /proc/meminfo, in bytes.
func meminfo(text, field string) (int64, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != field+":" || f[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || kib < 0 || kib > 1<<50 {
			return 0, fmt.Errorf("%s in /proc/meminfo is %q", field, f[1])
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", field)
}

// Capacity is the most that a sandbox can have on this machine: its processors, the
// smallest of [MemoryBounds], and the size of the file system that dir is or will be on.
// Unknown values are 0.
func Capacity(dir string) sandbox.Resources {
	c := sandbox.Resources{VCPUs: runtime.NumCPU()}
	for _, m := range MemoryBounds() {
		if mib := m.Total >> 20; c.MemoryMiB == 0 || mib < c.MemoryMiB {
			c.MemoryMiB = mib
		}
	}
	var st unix.Statfs_t
	if unix.Statfs(nearest(dir), &st) == nil {
		c.DiskMiB = int64(st.Blocks) * st.Bsize >> 20
	}
	return c
}

// nearest returns a directory, or its nearest ancestor that exists.
func nearest(dir string) string {
	if dir == "" {
		dir = "."
	}
	for {
		info, err := os.Stat(dir)
		up := filepath.Dir(dir)
		if err == nil && info.IsDir() || up == dir {
			return dir
		}
		dir = up
	}
}

// The default quotas of a team exceed what the machine has, since most sandboxes use a
// small part of their limits. Each start checks whether there is enough memory.
const (
	// QuotaVCPUs is the default quota of vCPUs for each processor.
	QuotaVCPUs = 64
	// QuotaMemory is the default quota of memory, as a multiple of the machine's.
	QuotaMemory = 8
)

// DefaultQuota returns the quota of a team, in vCPUs and MiB of memory, on a machine with
// the given [Capacity], unless the configuration sets one.
func DefaultQuota(c sandbox.Resources) (vcpus int, memoryMiB int64) {
	return c.VCPUs * QuotaVCPUs, c.MemoryMiB * QuotaMemory
}
