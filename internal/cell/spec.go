package cell

import (
	"github.com/cove-sh/cove/internal/engine"
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
	// LogFile is what the cell has to say, and the first process's output.
	LogFile = "cell.log"
	// PanicFile is what gVisor's processes write when they crash.
	PanicFile = "gvisor-panic.log"
)

// Spec tells a cell what to run. The engine writes it, as JSON, to the cell's
// standard input once the cell is in its cgroup.
type Spec struct {
	engine.Spec
	// Dir is the cell's directory, absolute.
	Dir string `json:"dir"`
	// AgentDir is a directory that holds the agent's binary as "agent".
	AgentDir string `json:"agent_dir"`
	// PinCPUs bounds processors by affinity, where no cgroup does.
	PinCPUs bool `json:"pin_cpus"`
	// Unenforced is what the engine could not enforce, in words.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Ready is what the cell says, once, on file descriptor 3: the sandbox runs
// and its agent answers, or Error tells why not.
type Ready struct {
	Error string `json:"error,omitempty"`
	// Refused says, for the sandbox's owner, which part of the request cannot
	// be: the user, say, that the template does not have. It comes with Error.
	Refused    string   `json:"refused,omitempty"`
	Unenforced []string `json:"unenforced,omitempty"`
}
