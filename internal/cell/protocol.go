package cell

import (
	"encoding/json"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/engine"
)

// Protocol is the version of the protocol that this program speaks as a cell. Engines
// also support the older versions of running cells, and of older programs that they start
// to continue from those programs' checkpoints.
//
//   - 3: a network has [engine.Network.Headers].
//   - 2: there is only the control protocol: [Client.Prepare] and [Client.Start] start a
//     sandbox.
//   - 1: a cell reads a [Standby] and a [Spec] from standard input, and answers each on
//     file descriptor 3; SetNetwork takes bytes.
//   - 0: as 1, but a cell must be started in its own network namespace, in which it makes
//     the sandbox's link. It has no gateway, so its sandboxes can connect to nothing.
const Protocol = 3

// The control protocol is JSON over HTTP/1.1, with the Connect protocol:
//
//	curl --unix-socket cell.sock --json '{}' http://cell/cove.cell.v1.Cell/Stats
//
// A cell serves it on the connection that it inherits from the engine and, once its
// sandbox runs, on [ControlSocket]. Messages are the types of this package. Their JSON
// names, and strings for 64-bit numbers, follow protobuf's JSON, which cells of protocol
// 1 use.

// procedure is the path of a method.
func procedure(method string) string { return "/cove.cell.v1.Cell/" + method }

const (
	// maxRequest limits a message that a cell reads.
	maxRequest = 4 << 20
	// maxAnswer limits a message that the engine reads: a cell compromised through gVisor
	// may answer anything.
	maxAnswer = 256 << 10
)

// jsonCodec uses plain encoding/json instead of Connect's protobuf JSON.
type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (jsonCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

var _ connect.Codec = jsonCodec{}

// empty is an empty request or answer.
type empty struct{}

// Phase is the phase of a sandbox's life.
type Phase string

// The phases. Stopped is an end that was requested, Failed is any other end.
const (
	PhaseStarting Phase = "PHASE_STARTING"
	PhaseRunning  Phase = "PHASE_RUNNING"
	PhaseStopping Phase = "PHASE_STOPPING"
	PhaseStopped  Phase = "PHASE_STOPPED"
	PhaseFailed   Phase = "PHASE_FAILED"
)

// Status is the state of a cell.
type Status struct {
	Phase Phase `json:"phase"`
	// Reason says, for the sandbox's owner, why it failed or stopped.
	Reason string `json:"reason,omitempty"`
	// Unenforced describes the limits that this machine cannot enforce.
	Unenforced []string `json:"unenforced,omitempty"`
	// Questions are all open questions of the gateway.
	Questions []engine.Question `json:"questions,omitempty"`
}

// answerRequest answers an open question for the connections that wait for it.
type answerRequest struct {
	ID    string `json:"id"`
	Allow bool   `json:"allow"`
}

// Limits are the limits to change; zero fields change nothing.
type Limits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	VCPUs       int   `json:"vcpus,omitempty"`
	MaxPIDs     int64 `json:"maxPids,omitempty"`
}

// CheckpointRequest asks for a checkpoint in Dir, an empty directory.
type CheckpointRequest struct {
	Dir string `json:"dir"`
	// Hold keeps the sandbox paused for as long as the caller keeps the stream open. If the
	// caller dies, the sandbox continues.
	Hold bool `json:"hold,omitempty"`
	// FilesOnly writes only the files that the sandbox has changed.
	FilesOnly bool `json:"filesOnly,omitempty"`
	// GoOn makes the sandbox continue before all of its memory and files are written, as far
	// as the cell supports that. Cells of older builds ignore it.
	GoOn bool `json:"goOn,omitempty"`
	// Early, with GoOn, is for a caller that starts other cells from the checkpoint while
	// it is still being written. The checkpoint is then completed even if the caller
	// or the sandbox goes away, and these cells are served on [PagesSocket].
	Early bool `json:"early,omitempty"`
}

// checkpointWritten says that a checkpoint is written or, with [CheckpointRequest.GoOn],
// that the sandbox continues.
type checkpointWritten struct {
	// StoppedNanos is how long the sandbox has been paused so far.
	StoppedNanos int64 `json:"stoppedNanos,string"`
	// More says that memory is still being written. Another message follows once it is
	// written.
	More bool `json:"more,omitempty"`
}

type stopRequest struct {
	Reason string `json:"reason"`
}

// stopped says that a sandbox has ended.
type stopped struct {
	// Writing says that the cell has not ended yet, because it is writing a checkpoint from
	// which others continue.
	Writing bool `json:"writing,omitempty"`
}

// unenforced describes limits that cannot be enforced.
type unenforced struct {
	Unenforced []string `json:"unenforced,omitempty"`
}

// deletedFiles is the size of deleted files on disk, in bytes by mount target.
type deletedFiles struct {
	Bytes map[string]json.Number `json:"bytes,omitempty"`
}

// networkOfProtocol1 is the request of SetNetwork in protocol 1.
type networkOfProtocol1 struct {
	Network []byte `json:"network"` // JSON
}
