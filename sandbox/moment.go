package sandbox

import "time"

// MaxMoments is how many moments of a sandbox are kept; the oldest go first.
const MaxMoments = 32

// MomentKind says what a [Moment] is.
type MomentKind string

// The kinds of moments.
const (
	MomentPaused   MomentKind = "paused"
	MomentRestored MomentKind = "restored"
	MomentMerged   MomentKind = "merged"
)

// Moment is a change in a sandbox's life that its state does not show: a pause, a
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
	// Snapshot is the snapshot or step of a history that was restored. It may have been
	// deleted since.
	Snapshot string `json:"snapshot,omitempty"`
	// StateAt is the instant whose state was restored.
	StateAt *time.Time `json:"state_at,omitempty"`
	// Reason says why the sandbox went back to its automatic checkpoint. It is set on a
	// restore that nobody asked for, which has no Snapshot.
	Reason string `json:"reason,omitempty"`
	// Merge says whether the whole winner was merged or only files.
	Merge MergeKind `json:"merge,omitempty"`
	// KillWinner says that the winner ended with the merge. A merge of the whole always
	// ends it.
	KillWinner bool `json:"kill_winner,omitempty"`
}
