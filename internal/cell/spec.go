package cell

import (
	"net/netip"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// Names of the files in a cell's directory. Their paths may be longer than a socket's
// address; see [Listen] and [Dial].
const (
	// LockFile stays locked while the cell lives.
	LockFile = "lock"
	// ControlSocket serves the control protocol.
	ControlSocket = "cell.sock"
	// AgentSocket relays each connection to the agent in the sandbox.
	AgentSocket = "agent.sock"
	// ChangesSocket answers each connection with a tar stream of the files that the
	// sandbox has changed.
	ChangesSocket = "changes.sock"
	// PagesSocket is in the directory of a checkpoint that still lacks memory or files. The
	// cell that writes it serves the cells that continue from it, and removes the socket
	// when the checkpoint is complete.
	PagesSocket = "pages.sock"
	// FetchSocket is in the directory of a checkpoint whose file of pages is still being
	// fetched to this machine. The engine that fetches it serves the cells that continue from
	// it, and removes the socket when the checkpoint is complete. If nobody listens, an engine
	// is to go on with it.
	FetchSocket = "fetch.sock"
	// LogFile is the cell's log, including the first process's output.
	LogFile = "cell.log"
	// PanicFile is the output of gVisor's processes when they crash.
	PanicFile = "gvisor-panic.log"
)

// Standby is what a cell can prepare before its sandbox is known: a gVisor that waits for
// the sandbox to start, or one that is already restored.
type Standby struct {
	// Dir is the absolute path of the cell's directory. It may be renamed before the [Spec]
	// arrives.
	Dir       string            `json:"dir"`
	Root      engine.Root       `json:"root"`
	Resources sandbox.Resources `json:"resources"`
	// AgentDir is the directory of the agent's binary, which is named "agent".
	AgentDir string `json:"agent_dir"`
	// UserIDs are ids for a user namespace of the sandbox; if nil, it has none.
	UserIDs *UserIDs `json:"user_ids,omitempty"`
	// PinCPUs limits processors by affinity, for when no cgroup does.
	PinCPUs bool `json:"pin_cpus"`
	// Mounts are mounted on top of the root.
	Mounts []engine.Mount `json:"mounts,omitempty"`
	// FilesFrom is the directory of a checkpoint with whose files the sandbox starts, if
	// any.
	FilesFrom string `json:"files_from,omitempty"`
	// Restore is the directory of a checkpoint to restore before the Spec arrives, if any.
	Restore string `json:"restore,omitempty"`
}

// Spec describes the sandbox that a standby becomes.
type Spec struct {
	engine.Spec
	// Dir is the current path of the cell's directory.
	Dir string `json:"dir"`
	// RestoreFrom is the directory of the checkpoint to continue from, unless the Standby
	// named one.
	RestoreFrom string `json:"restore_from,omitempty"`
	// Gateway configures the gateway for this machine.
	Gateway GatewayConfig `json:"way"`
	// AwaitValues makes the cell wait for the values of secrets before it starts the
	// sandbox; see [SendValues].
	AwaitValues bool `json:"await_values,omitempty"`
	// Fresh is set for a sandbox that does not continue a sandbox in use.
	Fresh bool `json:"fresh,omitempty"`
	// Unenforced describes the limits that the engine could not enforce.
	Unenforced []string `json:"unenforced,omitempty"`
}

// GatewayConfig is the part of a gateway's configuration that depends on the machine.
type GatewayConfig struct {
	// LogDir contains the network logs, each in a directory named after its sandbox.
	LogDir string `json:"log_dir"`
	// PeersDir is the directory of the [PeersSocket].
	PeersDir string `json:"peers_dir"`
	// Resolvers are asked instead of the host's.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	Proxy     egress.Proxy     `json:"proxy"`
	// Authority is the PEM certificate of the authority that sandboxes with secrets trust.
	Authority string `json:"authority,omitempty"`
	// ExtraCA are further PEM certificates of authorities that the gateway trusts.
	ExtraCA string `json:"extra_ca,omitempty"`
}
