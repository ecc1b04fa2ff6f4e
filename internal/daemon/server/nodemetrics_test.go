package server

import (
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/sandbox"
)

// TestNodeMetrics reads what Prometheus gets.
func TestNodeMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newNodeMetrics(func() []fleet.Room {
		return []fleet.Room{
			{Node: "cove-node-0", State: sandbox.NodeReady, Sandboxes: 12, Memory: 8 << 30, FreeMemory: 2 << 30, Disk: 100 << 30, FreeDisk: 100 << 30},
			{Node: "cove-node-1", State: sandbox.NodeUnreachable}, // it has not reported yet
			{Node: "cove-node-2", State: sandbox.NodeLost, Memory: 8 << 30},
			{Node: "d1", State: sandbox.NodeReady, Sandboxes: 3, Memory: 8 << 30, Dedicated: true, Claimed: true},
			{Node: "d2", State: sandbox.NodeReady, Memory: 8 << 30, Dedicated: true},
			{Node: "d3", State: sandbox.NodeDraining, Memory: 8 << 30, Dedicated: true, Claimed: true},
			{Node: "d4", State: sandbox.NodeLost, Dedicated: true, Claimed: true},
			{Node: "d5", State: sandbox.NodeDraining, Memory: 8 << 30, Dedicated: true},
		}
	}))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	want := `# HELP cove_dedicated_nodes Dedicated nodes by use: free ones are ready and wait for a sandbox, used ones are not lost.
# TYPE cove_dedicated_nodes gauge
cove_dedicated_nodes{use="free"} 1
cove_dedicated_nodes{use="used"} 2
# HELP cove_node_disk_bytes Disk of a node.
# TYPE cove_node_disk_bytes gauge
cove_node_disk_bytes{node="cove-node-0"} 1.073741824e+11
# HELP cove_node_disk_free_bytes Free disk of a node.
# TYPE cove_node_disk_free_bytes gauge
cove_node_disk_free_bytes{node="cove-node-0"} 1.073741824e+11
# HELP cove_node_disk_used_ratio Share of a node's disk that is in use; 1 is full.
# TYPE cove_node_disk_used_ratio gauge
cove_node_disk_used_ratio{node="cove-node-0"} 0
# HELP cove_node_memory_bytes Memory of a node.
# TYPE cove_node_memory_bytes gauge
cove_node_memory_bytes{node="cove-node-0"} 8.589934592e+09
# HELP cove_node_memory_free_bytes Memory of a node that new sandboxes may use.
# TYPE cove_node_memory_free_bytes gauge
cove_node_memory_free_bytes{node="cove-node-0"} 2.147483648e+09
# HELP cove_node_memory_used_ratio Share of a node's memory that new sandboxes may not use; 1 is full.
# TYPE cove_node_memory_used_ratio gauge
cove_node_memory_used_ratio{node="cove-node-0"} 0.75
# HELP cove_node_sandboxes Sandboxes that run on a node.
# TYPE cove_node_sandboxes gauge
cove_node_sandboxes{node="cove-node-0"} 12
cove_node_sandboxes{node="cove-node-1"} 0
cove_node_sandboxes{node="d1"} 3
cove_node_sandboxes{node="d2"} 0
cove_node_sandboxes{node="d3"} 0
cove_node_sandboxes{node="d5"} 0
# HELP cove_nodes Nodes by state.
# TYPE cove_nodes gauge
cove_nodes{state="draining"} 2
cove_nodes{state="lost"} 2
cove_nodes{state="ready"} 3
cove_nodes{state="unreachable"} 1
`
	if diff := cmp.Diff(want, answer.Body.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
