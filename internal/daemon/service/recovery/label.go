package recovery

import (
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// The purposes for which the state of a sandbox is kept.
const (
	KeptSnapshot = "snapshot"
	KeptPause    = "pause"
	KeptFork     = "fork"
	// KeptAutomatic is for the sandbox itself, in case it fails.
	KeptAutomatic = "automatic"
	keptRunning   = "running" // it was not kept until its record was found missing
)

// keptAs is what a checkpoint says about itself, in case its record is lost.
type keptAs struct {
	For      string               `json:"for"`
	Snapshot store.SnapshotRecord `json:"snapshot"`
}

// Label returns the label of a checkpoint that is kept for the given purpose.
func Label(what string, snap *store.SnapshotRecord) json.RawMessage {
	data, err := json.Marshal(keptAs{what, *snap})
	if err != nil {
		return nil // the checkpoint is kept without a label
	}
	return data
}

// SandboxLabel returns the label of a sandbox's checkpoint that is not a snapshot.
func SandboxLabel(what string, r *store.Record) json.RawMessage {
	snap := store.SnapshotRecord{Snapshot: sandbox.Snapshot{Kind: sandbox.SnapshotMemory, CreatedAt: time.Now().UTC()}}
	SnapshotOf(&snap, r)
	if r.Name != "" {
		snap.Label = "sandbox " + r.Name
	}
	return Label(what, &snap)
}

// InstanceLabel returns the label of a running sandbox. Its network policy can change
// while it runs, so the label allows no network.
func InstanceLabel(r *store.Record) json.RawMessage {
	closed := *r
	closed.Network, closed.Bindings = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, nil
	return SandboxLabel(keptRunning, &closed)
}

// SnapshotOf fills in what a snapshot takes from its sandbox.
func SnapshotOf(snap *store.SnapshotRecord, r *store.Record) {
	snap.Team, snap.Namespace, snap.SandboxID, snap.ParentID, snap.Template, snap.Resources = r.Team, r.Namespace, r.ID, r.Snapshot, r.Template, r.Resources
	snap.Root, snap.Origin, snap.BaseEnv, snap.Env, snap.User, snap.WorkDir = r.Root, r.Origin, r.BaseEnv, r.Env, r.User, r.WorkDir
	snap.Network, snap.Bindings, snap.Mounts = r.Network, r.Bindings, r.Mounts
}
