package webhooks

import (
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// tailHOPX is how much of the end of each stream a webhook in the format of HOPX
// contains, in bytes. Its receivers get no other output.
const tailHOPX = 256 << 10

// tailBytes returns how much of the end of each stream a webhook contains, in bytes.
func tailBytes(f sandbox.WebhookFormat) int64 {
	if f == sandbox.WebhookHOPX {
		return tailHOPX
	}
	return tailStandard
}

// HOPXEvent is the body of a webhook about the end of a job, in the format of HOPX.
type HOPXEvent struct {
	ExecutionID   string    `json:"execution_id"`
	Status        string    `json:"status"` // "completed", "failed" or "timeout"
	Success       bool      `json:"success"`
	Stdout        string    `json:"stdout"`
	Stderr        string    `json:"stderr"`
	ExitCode      int       `json:"exit_code"`
	ExecutionTime float64   `json:"execution_time"` // in seconds
	Timestamp     time.Time `json:"timestamp"`
	Error         string    `json:"error,omitempty"`
}

// encode returns the body of a webhook.
func encode(n *Event, f sandbox.WebhookFormat) ([]byte, error) {
	if f != sandbox.WebhookHOPX {
		return json.Marshal(n)
	}
	j := &n.Data
	flat := HOPXEvent{
		ExecutionID: "exec_" + j.JobID, Status: "failed", Stdout: j.StdoutTail, Stderr: j.StderrTail,
		ExitCode: 1, ExecutionTime: float64(j.DurationMS) / 1000, Timestamp: n.Timestamp, Error: j.Reason,
	}
	if j.ExitCode != nil {
		flat.ExitCode = *j.ExitCode
	}
	switch {
	case j.EndCause == sandbox.EndTimeout:
		flat.Status, flat.ExitCode, flat.Error = "timeout", 124, "it took longer than its timeout"
	case j.ExitCode != nil && *j.ExitCode == 0:
		flat.Status, flat.Success = "completed", true
	case j.EndCause == sandbox.EndOutOfMemory:
		flat.Error = "it used more memory than the sandbox has"
	case j.Signal != "":
		flat.Error = "it was ended by signal " + j.Signal
	}
	return json.Marshal(flat)
}
