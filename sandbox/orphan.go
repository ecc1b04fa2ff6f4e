package sandbox

import "time"

// OrphanKind says what an orphan was.
type OrphanKind string

// The kinds of orphans.
const (
	// OrphanCheckpoint is the kept state of a sandbox. It is recovered as a
	// snapshot, whatever it was: a snapshot, a paused sandbox, the point of a
	// fork, or a sandbox that ran.
	OrphanCheckpoint OrphanKind = "checkpoint"
	// OrphanVolume is a volume with its files.
	OrphanVolume OrphanKind = "volume"
)

// Orphan is something that the server has found on its disk without a record of
// it, and has set aside.
type Orphan struct {
	// ID is the id of the checkpoint, "ckp-" and letters and digits, or of the
	// volume.
	ID   string     `json:"id"`
	Kind OrphanKind `json:"kind"`
	// Team, Name and SandboxID are what the orphan says about itself; empty if it
	// does not say.
	Team      string `json:"team,omitempty"`
	Name      string `json:"name,omitempty"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// SizeBytes is about how much disk space it takes.
	SizeBytes int64 `json:"size_bytes"`
	// Reason says why it was set aside.
	Reason string `json:"reason"`
	// Since is when it was set aside.
	Since time.Time `json:"since"`
	// EndsAt is when it is removed for good, or sooner if the disk is nearly full.
	EndsAt time.Time `json:"ends_at"`
}

// Recovered is the result of recovering an orphan.
type Recovered struct {
	Orphan Orphan `json:"orphan"`
	// Snapshot or Volume is the record that it has now.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Volume   *Volume   `json:"volume,omitempty"`
}
