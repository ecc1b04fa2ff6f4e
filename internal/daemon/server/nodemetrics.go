package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/sandbox"
)

// nodeMetrics tell Prometheus how full the nodes are.
type nodeMetrics struct {
	rooms func() []fleet.Room

	nodes, dedicated, sandboxes, memory, freeMemory, usedMemory, disk, freeDisk, usedDisk *prometheus.Desc
}

func newNodeMetrics(rooms func() []fleet.Room) *nodeMetrics {
	of := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("cove_node_"+name, help, []string{"node"}, nil)
	}
	return &nodeMetrics{
		rooms:      rooms,
		nodes:      prometheus.NewDesc("cove_nodes", "Nodes by state.", []string{"state"}, nil),
		dedicated:  prometheus.NewDesc("cove_dedicated_nodes", "Dedicated nodes by use: free ones are ready and wait for a sandbox, used ones are not lost.", []string{"use"}, nil),
		sandboxes:  of("sandboxes", "Sandboxes that run on a node."),
		memory:     of("memory_bytes", "Memory of a node."),
		freeMemory: of("memory_free_bytes", "Memory of a node that new sandboxes may use."),
		usedMemory: of("memory_used_ratio", "Share of a node's memory that new sandboxes may not use; 1 is full."),
		disk:       of("disk_bytes", "Disk of a node."),
		freeDisk:   of("disk_free_bytes", "Free disk of a node."),
		usedDisk:   of("disk_used_ratio", "Share of a node's disk that is in use; 1 is full."),
	}
}

// Describe implements [prometheus.Collector].
func (m *nodeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.nodes, m.dedicated, m.sandboxes, m.memory, m.freeMemory, m.usedMemory, m.disk, m.freeDisk, m.usedDisk} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. A lost node has no room and no sandboxes; what is
// known of one that is away for a moment is what it last reported.
func (m *nodeMetrics) Collect(ch chan<- prometheus.Metric) {
	dedicated := map[bool]int{}
	states := map[sandbox.NodeState]int{sandbox.NodeReady: 0, sandbox.NodeDraining: 0, sandbox.NodeUnreachable: 0, sandbox.NodeLost: 0}
	for _, r := range m.rooms() {
		states[r.State]++
		if r.Dedicated && (r.State == sandbox.NodeReady || r.Claimed && r.State != sandbox.NodeLost) {
			dedicated[r.Claimed]++
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, r.Node)
		}
		of := func(all, free, used *prometheus.Desc, has, left int64) {
			if has > 0 {
				gauge(all, float64(has))
				gauge(free, float64(left))
				gauge(used, 1-float64(left)/float64(has))
			}
		}
		if r.State == sandbox.NodeLost {
			continue
		}
		gauge(m.sandboxes, float64(r.Sandboxes))
		if r.Dedicated {
			continue // it is full with its first sandbox, and must not make the others look so
		}
		of(m.memory, m.freeMemory, m.usedMemory, r.Memory, r.FreeMemory)
		of(m.disk, m.freeDisk, m.usedDisk, r.Disk, r.FreeDisk)
	}
	for claimed, use := range map[bool]string{true: "used", false: "free"} {
		ch <- prometheus.MustNewConstMetric(m.dedicated, prometheus.GaugeValue, float64(dedicated[claimed]), use)
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(m.nodes, prometheus.GaugeValue, float64(n), string(state))
	}
}
