package cell

import (
	"net/netip"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

// Names of the files in a cell's directory. Paths to them may be longer than a
// socket's address can be; see [Listen] and [Dial].
const (
	// LockFile is locked for as long as the cell lives.
	LockFile = "lock"
	// ControlSocket serves the Cell protocol.
	ControlSocket = "cell.sock"
	// AgentSocket relays each connection to the agent in the sandbox.
	AgentSocket = "agent.sock"
	// ChangesSocket answers each connection with a tar stream of the files
	// that the sandbox has changed.
	ChangesSocket = "changes.sock"
	// LogFile is what the cell has to say, and the first process's output.
	LogFile = "cell.log"
	// PanicFile is what gVisor's processes write when they crash.
	PanicFile = "gvisor-panic.log"
)

// Standby is what a cell can prepare before it is known which sandbox it will
// be: a gVisor that waits for the sandbox to start, or one that has been restored
// already.
type Standby struct {
	// Dir is the cell's directory, absolute. It may have another name when the
	// [Spec] comes.
	Dir       string            `json:"dir"`
	Root      engine.Root       `json:"root"`
	Resources sandbox.Resources `json:"resources"`
	// AgentDir is a directory that holds the agent's binary as "agent".
	AgentDir string `json:"agent_dir"`
	// UserIDs are for a user namespace of the sandbox's own; nil is none.
	UserIDs *UserIDs `json:"user_ids,omitempty"`
	// PinCPUs bounds processors by affinity, where no cgroup does.
	PinCPUs bool `json:"pin_cpus"`
	// Mounts are shown above the root.
	Mounts []engine.Mount `json:"mounts,omitempty"`
	// FilesFrom is the directory of a checkpoint whose files the sandbox starts
	// with.
	FilesFrom string `json:"files_from,omitempty"`
	// Restore is a checkpoint's directory to be restored ahead of the Spec.
	Restore string `json:"restore,omitempty"`
}

// Spec tells a cell which sandbox it is.
type Spec struct {
	engine.Spec
	// Dir is the name that the cell's directory has by now.
	Dir string `json:"dir"`
	// RestoreFrom is the directory of the checkpoint to continue from, unless
	// the Standby named one.
	RestoreFrom string `json:"restore_from,omitempty"`
	// Gateway is what the gateway has to know of its machine.
	Gateway GatewayConfig `json:"way"`
	// AwaitValues says that values of secrets are delivered before the sandbox
	// may start; see [SendValues].
	AwaitValues bool `json:"await_values,omitempty"`
	// Fresh is set for a sandbox that does not continue another's life.
	Fresh bool `json:"fresh,omitempty"`
	// Unenforced is what the engine could not enforce, in words.
	Unenforced []string `json:"unenforced,omitempty"`
}

// GatewayConfig is what a gateway has to know of its machine.
type GatewayConfig struct {
	// LogDir holds the network logs, each in a directory named for its sandbox.
	LogDir string `json:"log_dir"`
	// PeersDir has the [PeersSocket].
	PeersDir string `json:"peers_dir"`
	// Resolvers are asked instead of the host's.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	Proxy     egress.Proxy     `json:"proxy"`
	// Authority is the certificate, in PEM, of the authority that sandboxes with
	// secrets trust.
	Authority string `json:"authority,omitempty"`
	// ExtraCA are authorities, in PEM, that servers may have their certificates
	// from beside the usual ones.
	ExtraCA string `json:"extra_ca,omitempty"`
}
