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

// Memory is a bound on the memory of sandboxes. Sizes are bytes.
type Memory struct {
	// Group is the cgroup whose limit it is; empty is the machine itself.
	Group            string
	Total, Available int64
}

const (
	// floorShare is the part of a bound on memory that stays free of new
	// sandboxes, as one in so many, within minFloor and maxFloor.
	floorShare = 10
	minFloor   = 128 << 20
	maxFloor   = 1 << 30
)

// Floor is how much of a bound stays available when sandboxes are started: what
// the daemon, the running sandboxes and the files in use need to go on. It is a
// tenth of the bound, and at least 128 MiB and at most 1 GiB.
func (m Memory) Floor() int64 { return min(max(m.Total/floorShare, minFloor), maxFloor) }

// Room is how much sandboxes that are started may take; it may be negative.
func (m Memory) Room() int64 { return m.Available - m.Floor() }

// String names the bound as part of a sentence, with its figures.
func (m Memory) String() string {
	if m.Group == "" {
		return fmt.Sprintf("the machine has %d of its %d MiB of memory available", m.Available>>20, m.Total>>20)
	}
	return fmt.Sprintf("the daemon's memory cgroup has %d of its %d MiB left", m.Available>>20, m.Total>>20)
}

// MemoryBounds returns the memory of this machine, and that of each cgroup whose
// limit holds for sandboxes. What the kernel does not tell is left out.
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

// meminfo returns a field of the text of /proc/meminfo in bytes.
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

// Capacity is what this machine has: processors, the memory that the smallest of
// [MemoryBounds] allows, and the size of the file system that dir is or will be
// on. No sandbox can have more. What cannot be found out is 0.
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

// nearest returns a directory, or the nearest one above that exists.
func nearest(dir string) string {
	if dir == "" {
		dir = "."
	}
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

// How much of a machine one team's sandboxes may ask for together by default.
// It is more than there is, since most sandboxes use a small part of what they
// may: whether there is memory for one more is asked at each start.
const (
	// QuotaVCPUs is the default quota of vCPUs for each processor.
	QuotaVCPUs = 64
	// QuotaMemory is the default quota of memory, as a multiple of the machine's.
	QuotaMemory = 8
)

// DefaultQuota returns the quota of a team, in vCPUs and MiB of memory, on a
// machine with the given [Capacity] that is configured to have none of its own.
func DefaultQuota(c sandbox.Resources) (vcpus int, memoryMiB int64) {
	return c.VCPUs * QuotaVCPUs, c.MemoryMiB * QuotaMemory
}
