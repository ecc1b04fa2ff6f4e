package sandbox

import "time"

// SnapshotKind says what a snapshot holds.
type SnapshotKind string

// The kinds of snapshots. Memory is the default: memory, processes and files.
// Files holds the changed files only; a sandbox made from it boots afresh.
const (
	SnapshotMemory SnapshotKind = "memory"
	SnapshotFiles  SnapshotKind = "files"
)

// Snapshot is the kept state of a sandbox at one instant.
type Snapshot struct {
	// ID is opaque, unguessable and unique for ever.
	ID string `json:"id"`
	// Name is unique among a namespace's snapshots, or empty.
	Name string `json:"name,omitempty"`
	Team string `json:"team"`
	// Namespace is that of the sandbox.
	Namespace string `json:"namespace"`
	// SandboxID is the sandbox whose state it is; that one may have ended.
	SandboxID string       `json:"sandbox_id"`
	Kind      SnapshotKind `json:"kind"`
	// Automatic is set on a step of a sandbox's history, which goes by itself
	// when newer ones have filled the history or the sandbox ends.
	Automatic bool `json:"automatic,omitempty"`
	// Label is whatever the maker wrote; of an automatic snapshot, before what
	// it was made.
	Label string `json:"label,omitempty"`
	// ParentID is the snapshot that the sandbox was made from or last restored
	// to, or empty.
	ParentID string `json:"parent_id,omitempty"`
	// Template is what the sandbox, or its first ancestor, was made from.
	Template  string    `json:"template"`
	Resources Resources `json:"resources"`
	// SizeBytes is what it takes on disk.
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	// Stored says where it is kept, on a server with an object store.
	Stored Stored `json:"stored,omitempty"`
}

// Stored says where the content of a snapshot or a paused sandbox is kept, on a server
// with an object store.
type Stored string

// The places.
const (
	// StoredPending means that it is on the server's disk and is not in the object store
	// yet.
	StoredPending Stored = "pending"
	// StoredBoth means that it is in the object store, and on the server's disk too.
	StoredBoth Stored = "stored"
	// StoredRemote means that it is in the object store only: it is fetched when it is
	// needed.
	StoredRemote Stored = "remote"
)

// MadeFrom is the kept state of a sandbox with which another one began. It stays as it
// is when the snapshot is deleted, or the new sandbox is restored to another one.
type MadeFrom struct {
	// SandboxID is the sandbox whose state it was; that one may have ended.
	SandboxID string `json:"sandbox_id"`
	// Snapshot is the snapshot, or the step of a history. It may be gone since.
	Snapshot string `json:"snapshot"`
	// StateAt is the instant of the state.
	StateAt time.Time `json:"state_at"`
}

// CreateSnapshotRequest describes a snapshot to be made.
type CreateSnapshotRequest struct {
	// Name is unique among the namespace's snapshots; rules as for sandboxes.
	Name string `json:"name,omitempty"`
	// Kind is "memory", the default, or "files".
	Kind SnapshotKind `json:"kind,omitempty"`
	// Label is any text of at most [MaxSnapshotLabel] bytes.
	Label string `json:"label,omitempty"`
}

// ListSnapshotsRequest selects snapshots of the caller's team, and namespace if it
// is in one.
type ListSnapshotsRequest struct {
	// Sandbox selects those of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only those of this sandbox, by id or name."`
	// Automatic adds the steps of histories, which are left out otherwise.
	Automatic bool `json:"automatic,omitempty" query:"automatic" doc:"The steps of histories too."`
	Page
}

// RestoreRequest says which state a sandbox goes back to: exactly one of the
// two.
type RestoreRequest struct {
	// Snapshot is the id or name of a snapshot of the team.
	Snapshot string `json:"snapshot,omitempty"`
	// Step is a step of the sandbox's history, from its end: -1 is before the
	// last command.
	Step int `json:"step,omitempty"`
}

// ResumeRequest says how a paused sandbox comes back.
type ResumeRequest struct {
	// FilesOnly starts it afresh with the files it had, without its memory and
	// processes: the way back when this machine's processor cannot run the
	// paused memory.
	FilesOnly bool `json:"files_only,omitempty"`
}

// ForkRequest describes the children of a fork.
type ForkRequest struct {
	// Count is 1 to [MaxForks]; 0 is 1.
	Count int `json:"count,omitempty"`
	// Name begins the children's names, which end with "-" and their index, if
	// there is more than one. Empty is none.
	Name string `json:"name,omitempty"`
	// Env is added to the environment of each child's commands.
	Env map[string]string `json:"env,omitempty"`
	// Metadata is added to the parent's.
	Metadata map[string]string `json:"metadata,omitempty"`
	// LifetimeSeconds and IdleTimeoutSeconds: nil is as the parent was made.
	LifetimeSeconds    *int64 `json:"lifetime_seconds,omitempty"`
	IdleTimeoutSeconds *int64 `json:"idle_timeout_seconds,omitempty"`
}

// DiffRequest says what a sandbox's or snapshot's files are compared with.
type DiffRequest struct {
	// Against is a sandbox or a snapshot, by id or name; empty is the
	// template. Changes lead from it to the subject.
	Against string `json:"against,omitempty"`
	// Paths selects changes at or below these absolute paths; empty is all.
	Paths []string `json:"paths,omitempty"`
	// Patch adds unified diffs of text files of at most [MaxPatchFileBytes].
	Patch bool `json:"patch,omitempty"`
	// Limit bounds the changes that are returned; 0 is [DefaultDiffLimit], at
	// most [MaxDiffLimit]. All are counted.
	Limit int `json:"limit,omitempty"`
}

// ChangeKind says what happened to a path.
type ChangeKind string

// The kinds of changes.
const (
	ChangeAdded    ChangeKind = "added"
	ChangeRemoved  ChangeKind = "removed"
	ChangeModified ChangeKind = "modified"
)

// Aspect is what of a modified path differs.
type Aspect string

// The aspects of a modification. A path whose type differs has only that one.
const (
	AspectContent Aspect = "content"
	AspectMode    Aspect = "mode"
	AspectOwner   Aspect = "owner"
	AspectType    Aspect = "type"
	AspectTarget  Aspect = "target" // of a symbolic link, or a device's number
)

// Change is one path that differs. A removed directory stands for all that
// was in it.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	// Type is what is there now, or was before it was removed.
	Type FileType `json:"type"`
	// Aspects is set on modified paths.
	Aspects []Aspect `json:"aspects,omitempty"`
	// OldSize and NewSize are bytes of regular files.
	OldSize int64 `json:"old_size,omitempty"`
	NewSize int64 `json:"new_size,omitempty"`
	// OldMode and NewMode are octal, as "0644".
	OldMode string `json:"old_mode,omitempty"`
	NewMode string `json:"new_mode,omitempty"`
	// Patch is a unified diff of a text file, when it was asked for.
	Patch string `json:"patch,omitempty"`
}

// Diff is what differs between two file systems, by path. /tmp, /dev and
// /dev/shm are memory and are not compared, nor is /run/cove. What Cove writes
// in every sandbox, /etc/hosts, /etc/resolv.conf, the machine id, the SSH host
// keys and the bundles of certificates, is compared only if Paths names the file
// itself.
type Diff struct {
	Changes []Change `json:"changes"`
	// Added, Removed and Modified count all changes, returned or not.
	Added    int `json:"added"`
	Removed  int `json:"removed"`
	Modified int `json:"modified"`
	// Truncated says that Limit has cut the changes.
	Truncated bool `json:"truncated,omitempty"`
}

// MergeKind says what of the winner comes back.
type MergeKind string

// The kinds of merges.
const (
	// MergeWhole: the winner's whole machine takes over the parent's id.
	MergeWhole MergeKind = "whole"
	// MergeFiles: what the winner changed since the fork is applied to the
	// files of the running parent.
	MergeFiles MergeKind = "files"
)

// MergePolicy says who wins where both sides changed a path.
type MergePolicy string

// The merge policies. Without one a conflict stops the merge.
const (
	PolicyNone   MergePolicy = ""
	PolicyOurs   MergePolicy = "ours"   // the parent's version stays
	PolicyTheirs MergePolicy = "theirs" // the winner's version is taken
)

// MergeRequest says what is merged into a parent.
type MergeRequest struct {
	// Winner is the sandbox, by id or name, that is merged.
	Winner string `json:"winner"`
	// Kind is "whole", the default, or "files".
	Kind MergeKind `json:"kind,omitempty"`
	// Policy is for "files" only.
	Policy MergePolicy `json:"policy,omitempty"`
	// Resolve says, for "files", who wins at or below each of these absolute paths:
	// "ours" or "theirs", whatever Policy says. The deepest one counts.
	Resolve map[string]MergePolicy `json:"resolve,omitempty"`
	// Paths selects, for "files", changes at or below these absolute paths.
	Paths []string `json:"paths,omitempty"`
	// KillWinner ends the winner after a merge of files.
	KillWinner bool `json:"kill_winner,omitempty"`
}

// Conflict is a path that both sides changed differently.
type Conflict struct {
	Path string `json:"path"`
	// Ours and Theirs say what the parent and the winner did to it.
	Ours   ChangeKind `json:"ours"`
	Theirs ChangeKind `json:"theirs"`
}

// MergeResult tells what a merge did. Merged is false if conflicts stopped it: nothing
// was changed then, and Conflicts are those that nobody wins.
type MergeResult struct {
	Merged    bool       `json:"merged"`
	Kind      MergeKind  `json:"kind"`
	Sandbox   *Sandbox   `json:"sandbox"`
	Applied   []Change   `json:"applied,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
}
