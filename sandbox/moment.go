package sandbox

import "time"

// MaxMoments is how many moments of a sandbox are kept, the newest.
const MaxMoments = 32

// MomentKind says what a [Moment] is.
type MomentKind string

// The kinds of moments.
const (
	MomentPaused   MomentKind = "paused"
	MomentRestored MomentKind = "restored"
	MomentMerged   MomentKind = "merged"
)

// Moment is a turn in a sandbox's life that its state alone does not show: a pause, a
// restore in place, or a merge into it.
type Moment struct {
	Kind MomentKind `json:"kind"`
	At   time.Time  `json:"at"`
	// Until is when a pause ended. It is not set while the pause lasts, or if the
	// sandbox ended in it.
	Until *time.Time `json:"until,omitempty"`
	// SandboxID is where the state came from: the winner of a merge, or the sandbox
	// whose snapshot was restored.
	SandboxID string `json:"sandbox_id,omitempty"`
	// Snapshot is what was restored, a step of a history too. It may be gone since.
	Snapshot string `json:"snapshot,omitempty"`
	// StateAt is the instant whose state was restored.
	StateAt *time.Time `json:"state_at,omitempty"`
	// Merge says what of the winner came.
	Merge MergeKind `json:"merge,omitempty"`
	// KillWinner says that the winner ended with the merge, as with every one of the
	// whole.
	KillWinner bool `json:"kill_winner,omitempty"`
}
