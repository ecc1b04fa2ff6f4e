package cell

import (
	"encoding/json"

	"connectrpc.com/connect"
)

// Protocol is the version of what this program takes as a cell. Engines speak
// with older programs too: with cells that run, and with those that they start
// to continue from the checkpoints of these programs.
//
//   - 2: the control protocol is all there is: [Client.Prepare] and
//     [Client.Start] begin a cell.
//   - 1: a cell reads a [Standby] and a [Spec] from standard input, and answers
//     each on file descriptor 3; SetNetwork takes bytes.
//   - 0: as 1, but a cell has to be in a network namespace of its own, in which
//     it makes the sandbox's link, and has no gateway: its sandboxes reach
//     nothing.
const Protocol = 2

// The control protocol is JSON over HTTP/1.1, as the Connect protocol has it:
//
//	curl --unix-socket cell.sock --json '{}' http://cell/cove.cell.v1.Cell/Stats
//
// A cell serves it on the connection that it inherits from the engine and, once
// its sandbox runs, on [ControlSocket]. Messages are the types of this package;
// their names in JSON, and numbers of 64 bits in strings, are what cells of
// protocol 1 understand, which have them from a description in protobuf.

// procedure is the path of a method.
func procedure(method string) string { return "/cove.cell.v1.Cell/" + method }

const (
	// maxRequest bounds what a cell reads of the engine at a time.
	maxRequest = 4 << 20
	// maxAnswer bounds what the engine reads of a cell at a time: code that has
	// taken over gVisor and the cell may answer anything.
	maxAnswer = 256 << 10
)

// jsonCodec is plain encoding/json, where Connect has that of protobuf.
type jsonCodec struct{}

// Name implements [connect.Codec].
func (jsonCodec) Name() string { return "json" }

// Marshal implements [connect.Codec].
func (jsonCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

// Unmarshal implements [connect.Codec].
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

var _ connect.Codec = jsonCodec{}

// empty is a request or an answer that says nothing.
type empty struct{}

// Phase is where a cell is in its sandbox's life.
type Phase string

// The phases. Stopped is the end that was asked for, Failed any other.
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
	// Unenforced lists the limits that this machine cannot enforce, in words.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Limits are to be changed; zero fields stay.
type Limits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	VCPUs       int   `json:"vcpus,omitempty"`
	MaxPIDs     int64 `json:"maxPids,omitempty"`
}

// CheckpointRequest asks for a checkpoint in Dir, an empty directory.
type CheckpointRequest struct {
	Dir string `json:"dir"`
	// Hold lets the sandbox stand still for as long as the caller keeps the
	// stream open, so that it goes on when the caller dies.
	Hold bool `json:"hold,omitempty"`
	// FilesOnly writes only the files that the sandbox has changed.
	FilesOnly bool `json:"filesOnly,omitempty"`
}

// checkpointWritten says that a checkpoint is written.
type checkpointWritten struct {
	// StoppedNanos is how long the sandbox has stood still by now.
	StoppedNanos int64 `json:"stoppedNanos,string"`
}

type stopRequest struct {
	Reason string `json:"reason"`
}

// unenforced lists limits that cannot be enforced, in words.
type unenforced struct {
	Unenforced []string `json:"unenforced,omitempty"`
}

// deletedFiles is what they take on disk, in bytes by the target of their mount.
type deletedFiles struct {
	Bytes map[string]json.Number `json:"bytes,omitempty"`
}

// networkOfProtocol1 is what SetNetwork took before it took an [engine.Network].
type networkOfProtocol1 struct {
	Network []byte `json:"network"` // JSON
}
