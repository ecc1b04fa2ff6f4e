package cgroup

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// Room is how much memory a cgroup has left. Sizes are bytes.
type Room struct {
	// Dir is the cgroup's directory.
	Dir string
	// Limit is the most that its processes may use together, and Free is how much of it is
	// left. The kernel's page cache counts as free, but its active part only half: a group
	// without any page cache thrashes.
	Limit, Free int64
}

// MemoryRooms returns the room in each cgroup with a memory limit that applies to new
// groups: the cgroup in which they are made, and its ancestors. If no group can be made,
// these are the cgroup of this process and its ancestors.
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

// upTo returns a directory and its ancestors up to top.
func upTo(dir, top string) []string {
	dirs := []string{dir}
	for dir != top && strings.HasPrefix(dir, top+"/") {
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// unlimited is the lowest value that means "no limit": version 1 reports the largest
// number of whole pages.
const unlimited = 1 << 60

// room1 reads the room of a group of version 1. A Limit of 0 means no limit.
func room1(dir string) (Room, error) {
	limit, err1 := readInt(filepath.Join(dir, "memory.limit_in_bytes"))
	usage, err2 := readInt(filepath.Join(dir, "memory.usage_in_bytes"))
	cache, err3 := cached(dir, "total_inactive_file", "total_active_file")
	return newRoom(dir, limit, usage, cache), errors.Join(err1, err2, err3)
}

// room2 reads the room of a group of version 2. memory.high counts as a limit too: above
// it, processes are throttled until they hardly run.
func room2(dir string) (Room, error) {
	limit, err1 := readInt(filepath.Join(dir, "memory.max"))
	if high, err := readInt(filepath.Join(dir, "memory.high")); err == nil {
		limit = min(limit, high)
	}
	usage, err2 := readInt(filepath.Join(dir, "memory.current"))
	cache, err3 := cached(dir, "inactive_file", "active_file")
	return newRoom(dir, limit, usage, cache), errors.Join(err1, err2, err3)
}

// cached returns how many bytes of a group's page cache can be reclaimed.
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
