package cgroup

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// Room is what a cgroup still grants of memory. Sizes are bytes.
type Room struct {
	// Dir is the cgroup's directory.
	Dir string
	// Limit is what its processes may use together, Free what is left of that.
	// Files that the kernel keeps in memory count as free, those in use only by
	// half: a group that has none of them left stands still.
	Limit, Free int64
}

// MemoryRooms returns the room in each cgroup with a memory limit that new
// groups will be in: the one in which they are made, and those above it. Where
// no group can be made, these are the cgroup of this process and those above.
func MemoryRooms() []Room { return detect("/").memoryRooms() }

func (h *hierarchies) memoryRooms() []Room {
	p := h.choose()
	var rooms []Room
	for _, m := range h.mounts {
		from, read := p.v1[memory], room1
		if m.v2 {
			from, read = "", room2
			if p.v2has[memory] {
				from = p.v2
			}
		} else if !slices.Contains(m.controllers, memory) {
			continue
		}
		if from == "" {
			from = m.at
		}
		for _, dir := range upTo(from, m.dir) {
			if r, err := read(dir); err == nil && r.Limit > 0 {
				rooms = append(rooms, r)
			}
		}
	}
	return rooms
}

// upTo returns a directory and those above it, up to top.
func upTo(dir, top string) []string {
	dirs := []string{dir}
	for dir != top && strings.HasPrefix(dir, top+"/") {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// unlimited is from where on a limit is none: version 1 writes the largest
// number of whole pages.
const unlimited = 1 << 60

// room1 reads a group of version 1. A Limit of 0 is none.
func room1(dir string) (Room, error) {
	limit, err1 := readInt(filepath.Join(dir, "memory.limit_in_bytes"))
	usage, err2 := readInt(filepath.Join(dir, "memory.usage_in_bytes"))
	cache, err3 := cached(dir, "total_inactive_file", "total_active_file")
	return newRoom(dir, limit, usage, cache), errors.Join(err1, err2, err3)
}

// room2 reads a group of version 2. Above memory.high its processes are slowed
// down until they stand still, so that is a limit too.
func room2(dir string) (Room, error) {
	limit, err1 := readInt(filepath.Join(dir, "memory.max"))
	if high, err := readInt(filepath.Join(dir, "memory.high")); err == nil {
		limit = min(limit, high)
	}
	usage, err2 := readInt(filepath.Join(dir, "memory.current"))
	cache, err3 := cached(dir, "inactive_file", "active_file")
	return newRoom(dir, limit, usage, cache), errors.Join(err1, err2, err3)
}

// cached is how many bytes of a group's files in memory can be taken back.
func cached(dir, inactive, active string) (int64, error) {
	stat := filepath.Join(dir, "memory.stat")
	a, err1 := readKey(stat, inactive)
	b, err2 := readKey(stat, active)
	return max(0, a) + max(0, b)/2, errors.Join(err1, err2)
}

func newRoom(dir string, limit, usage, cache int64) Room {
	if limit >= unlimited || limit < 0 {
		return Room{}
	}
	return Room{Dir: dir, Limit: limit, Free: max(0, limit-max(0, usage)+min(cache, max(0, usage)))}
}
