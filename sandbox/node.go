package sandbox

import "time"

// NodeState is what can be done with a node.
type NodeState string

// The states of nodes.
const (
	NodeReady       NodeState = "ready"       // it takes new sandboxes
	NodeDraining    NodeState = "draining"    // it takes no new ones
	NodeUnreachable NodeState = "unreachable" // its lease runs: its sandboxes are kept for it
	NodeLost        NodeState = "lost"        // its lease has run out, and its sandboxes have failed
)

// LocalNode is the name of the server's own machine among its nodes.
const LocalNode = "local"

// Node is a machine on which a server runs sandboxes.
type Node struct {
	// Name is unique among a server's nodes.
	Name string `json:"name"`
	// Address is where it last connected from; empty for the server's own machine.
	Address string    `json:"address,omitempty"`
	Version string    `json:"version,omitempty"`
	State   NodeState `json:"state"`
	// FreeMemoryMiB and FreeDiskMiB are what new sandboxes may use, as the node last said.
	FreeMemoryMiB int64 `json:"free_memory_mib"`
	FreeDiskMiB   int64 `json:"free_disk_mib"`
	// Sandboxes is how many run there.
	Sandboxes int `json:"sandboxes"`
	// LastSeenAt is when it last answered; nil if it has not since the server started.
	LastSeenAt *time.Time `json:"last_seen_at,omitempty"`
}

// JoinToken lets one machine become a node.
type JoinToken struct {
	// Token works once, until ExpiresAt. It contains what the node needs to recognise the
	// server.
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}
