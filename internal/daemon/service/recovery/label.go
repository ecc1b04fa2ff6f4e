package recovery

import (
	"encoding/json"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// What the state of a sandbox was kept for.
const (
	KeptSnapshot = "snapshot"
	KeptPause    = "pause"
	KeptFork     = "fork"
	keptRunning  = "running" // it was not kept until its record was found missing
)

// keptAs is what a checkpoint says of itself, for the case that its record is
// lost.
type keptAs struct {
	For      string               `json:"for"`
	Snapshot store.SnapshotRecord `json:"snapshot"`
}

// Label is the label of a checkpoint that was kept for the given purpose.
func Label(what string, snap *store.SnapshotRecord) json.RawMessage {
	data, err := json.Marshal(keptAs{what, *snap})
	if err != nil {
		return nil // it is kept all the same
	}
	return data
}

// SandboxLabel is the label of a sandbox's checkpoint that is not of a snapshot.
func SandboxLabel(what string, r *store.Record) json.RawMessage {
	snap := store.SnapshotRecord{Snapshot: sandbox.Snapshot{Kind: sandbox.SnapshotMemory, CreatedAt: time.Now().UTC()}}
	SnapshotOf(&snap, r)
	if r.Name != "" {
		snap.Label = "sandbox " + r.Name
	}
	return Label(what, &snap)
}

// InstanceLabel is the label of a running sandbox. What the sandbox may reach can
// change while it runs, so that the label allows nothing.
func InstanceLabel(r *store.Record) json.RawMessage {
	closed := *r
	closed.Network, closed.Bindings = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, nil
	return SandboxLabel(keptRunning, &closed)
}

// SnapshotOf fills in what a snapshot has of its sandbox.
func SnapshotOf(snap *store.SnapshotRecord, r *store.Record) {
	snap.Team, snap.Namespace, snap.SandboxID, snap.ParentID, snap.Template, snap.Resources = r.Team, r.Namespace, r.ID, r.Snapshot, r.Template, r.Resources
	snap.Root, snap.Origin, snap.BaseEnv, snap.Env, snap.User, snap.WorkDir = r.Root, r.Origin, r.BaseEnv, r.Env, r.User, r.WorkDir
	snap.Network, snap.Bindings, snap.Mounts = r.Network, r.Bindings, r.Mounts
}
