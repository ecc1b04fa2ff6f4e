package sandbox

import "time"

// NodeState is what can be done with a node.
type NodeState string

// The states of nodes.
const (
	NodeReady       NodeState = "ready"       // it takes new sandboxes
	NodeDraining    NodeState = "draining"    // it takes no new sandboxes
	NodeUnreachable NodeState = "unreachable" // it is away, and its sandboxes wait for it until its lease ends
	NodeLost        NodeState = "lost"        // its lease has ended, and its sandboxes have failed
)

// LocalNode is the name of the server's own machine among its nodes.
const LocalNode = "local"

// Node is a machine on which a server runs sandboxes.
type Node struct {
	// Name is unique among a server's nodes.
	Name string `json:"name"`
	// Address is the address from which the node last connected. It is empty for the
	// server's own machine.
	Address string    `json:"address,omitempty"`
	Version string    `json:"version,omitempty"`
	State   NodeState `json:"state"`
	// FreeMemoryMiB and FreeDiskMiB are what new sandboxes can use, as last reported by the
	// node.
	FreeMemoryMiB int64 `json:"free_memory_mib"`
	FreeDiskMiB   int64 `json:"free_disk_mib"`
	// Sandboxes is how many sandboxes run on the node.
	Sandboxes int `json:"sandboxes"`
	// Dedicated says that the node runs a dedicated sandbox and its forks, or waits for one.
	// DedicatedTo is the id of the dedicated sandbox to which the node was given. It stays while
	// forks of that sandbox run, and is empty if the node is free.
	Dedicated   bool   `json:"dedicated,omitempty"`
	DedicatedTo string `json:"dedicated_to,omitempty"`
	// LastSeenAt is when the node last answered; nil if it has not answered since the
	// server started.
	LastSeenAt *time.Time `json:"last_seen_at,omitempty"`
	// Move is the progress of moving the node's sandboxes to other nodes; nil if they do not
	// move.
	Move *NodeMove `json:"move,omitempty"`
}

// DrainRequest says what becomes of the sandboxes on a draining node.
type DrainRequest struct {
	// Move moves them to other nodes: each is paused, and continues at its next call on a node
	// that has room. It needs an object store.
	Move bool `json:"move,omitempty"`
	// Resume continues those that were running at once, and not only at their next call.
	Resume bool `json:"resume,omitempty"`
}

// NodeMove is the progress of moving a node's sandboxes to other nodes.
type NodeMove struct {
	// Moved is how many running sandboxes were paused so that they continue elsewhere, since
	// the server began to move them.
	Moved int `json:"moved"`
	// Left is how many sandboxes and snapshots must still leave the node. If it is 0, nothing
	// more moves.
	Left int `json:"left"`
	// Waiting says why nothing moves at the moment, such as that the object store cannot be
	// reached. The server tries again.
	Waiting string `json:"waiting,omitempty"`
	// Stay are sandboxes that cannot be moved, at least for now.
	Stay []NodeStay `json:"stay,omitempty"`
}

// NodeStay is a sandbox that stays on a node.
type NodeStay struct {
	Sandbox string `json:"sandbox"`
	// Reason says why it stays.
	Reason string `json:"reason"`
}

// JoinToken lets one machine become a node.
type JoinToken struct {
	// Token works once, until ExpiresAt. It also identifies the server, so that the node can
	// check that it joins the right one.
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}
