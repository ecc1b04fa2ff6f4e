package fleet

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Room is how full a node is, by its last report.
type Room struct {
	Node  string
	State sandbox.NodeState
	// Sandboxes is how many are believed to run there.
	Sandboxes int
	// Memory and Disk are all that the node has, in bytes, 0 if that is not known; FreeMemory
	// and FreeDisk are what new sandboxes may use of it.
	Memory, FreeMemory, Disk, FreeDisk int64
	// Dedicated says that the node runs the sandboxes of one family at a time, and Claimed that
	// it has one.
	Dedicated, Claimed bool
}

// Rooms returns how full the nodes are, by name. This machine is not among them.
func (f *Fleet) Rooms() []Room {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Room, 0, len(f.sites))
	for _, s := range f.sites {
		r := Room{Node: s.name, State: f.stateOf(s), Sandboxes: s.running, Memory: max(0, s.report.Capacity.MemoryMiB) << 20, Disk: max(0, s.report.Disk)}
		r.Dedicated, r.Claimed = s.member.Dedicated, s.member.claimed()
		r.FreeMemory, r.FreeDisk = min(max(0, s.report.FreeMemory), r.Memory), min(max(0, s.report.FreeDisk), r.Disk)
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Room) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// Largest returns what the ready node has that has most memory; of those with as much, the
// one with most processors; its disk is the largest of all. This machine counts, if it runs
// sandboxes. Dedicated nodes count for dedicated sandboxes only. It is zero if none is ready.
func (f *Fleet) Largest(dedicated bool) sandbox.Resources {
	var most sandbox.Resources
	disk := int64(0)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.everySite() {
		has := s.report.Capacity
		if f.stateOf(s) != sandbox.NodeReady || s.member.Dedicated != dedicated {
			continue
		}
		disk = max(disk, has.DiskMiB)
		if cmp.Or(cmp.Compare(has.MemoryMiB, most.MemoryMiB), cmp.Compare(has.VCPUs, most.VCPUs)) > 0 {
			most = has
		}
	}
	most.DiskMiB = disk
	return most
}
