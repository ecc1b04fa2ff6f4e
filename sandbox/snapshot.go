package sandbox

import "time"

// SnapshotKind says what a snapshot holds.
type SnapshotKind string

// The kinds of snapshots. Memory is the default: memory, processes and files.
// Files has only the changed files; a sandbox made from it boots.
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
	// Namespace is the sandbox's namespace.
	Namespace string `json:"namespace"`
	// SandboxID is the sandbox whose state this is; it may have ended.
	SandboxID string       `json:"sandbox_id"`
	Kind      SnapshotKind `json:"kind"`
	// Automatic is set for a step of a sandbox's history. Such a snapshot is removed
	// when newer ones have filled the history, or when the sandbox ends.
	Automatic bool `json:"automatic,omitempty"`
	// Label is free text of the caller. For an automatic snapshot, it is what the
	// snapshot was made before.
	Label string `json:"label,omitempty"`
	// ParentID is the snapshot that the sandbox was made from or last restored
	// to, or empty.
	ParentID string `json:"parent_id,omitempty"`
	// Template is what the sandbox, or its first ancestor, was made from.
	Template  string    `json:"template"`
	Resources Resources `json:"resources"`
	// SizeBytes is the disk space that it takes.
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	// Stored says where the content is kept, on a server with an object store.
	Stored Stored `json:"stored,omitempty"`
}

// Stored says where the content of a snapshot or a paused sandbox is kept, on a server
// with an object store.
type Stored string

// Where content can be.
const (
	// StoredPending means that the content is on the server's disk and not in the object
	// store yet.
	StoredPending Stored = "pending"
	// StoredBoth means that the content is in the object store and on the server's disk.
	StoredBoth Stored = "stored"
	// StoredRemote means that the content is in the object store only. It is fetched when
	// it is needed.
	StoredRemote Stored = "remote"
)

// MadeFrom is the kept state that a sandbox began with. It does not change when the
// snapshot is deleted, or when the new sandbox is restored to another snapshot.
type MadeFrom struct {
	// SandboxID is the sandbox whose state it was; it may have ended.
	SandboxID string `json:"sandbox_id"`
	// Snapshot is the snapshot or step of a history. It may have been deleted since.
	Snapshot string `json:"snapshot"`
	// StateAt is when the state was kept.
	StateAt time.Time `json:"state_at"`
}

// CreateSnapshotRequest describes a snapshot to be made.
type CreateSnapshotRequest struct {
	// Name is unique among the namespace's snapshots, with the rules for names of
	// sandboxes. Empty is none.
	Name string `json:"name,omitempty"`
	// Kind is "memory", the default, or "files".
	Kind SnapshotKind `json:"kind,omitempty"`
	// Label is any text of at most [MaxSnapshotLabel] bytes.
	Label string `json:"label,omitempty"`
}

// ListSnapshotsRequest selects snapshots of the caller's team, and of the caller's
// namespace if it is in one.
type ListSnapshotsRequest struct {
	// Sandbox selects the snapshots of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox" doc:"Only snapshots of this sandbox, by id or name."`
	// Automatic adds the steps of histories, which are left out otherwise.
	Automatic bool `json:"automatic,omitempty" query:"automatic" doc:"Include the steps of histories."`
	Page
}

// RestoreRequest says which state a sandbox goes back to. Exactly one field is set.
type RestoreRequest struct {
	// Snapshot is the id or name of a snapshot of the team.
	Snapshot string `json:"snapshot,omitempty"`
	// Step is a step of the sandbox's history, counted from its end: -1 is the state
	// before the last command.
	Step int `json:"step,omitempty"`
}

// ResumeRequest says how a paused sandbox comes back.
type ResumeRequest struct {
	// FilesOnly boots the sandbox with its files, without its memory and
	// processes. Use it if this machine's processor cannot run the paused memory.
	FilesOnly bool `json:"files_only,omitempty"`
}

// ForkRequest describes the children of a fork.
type ForkRequest struct {
	// Count is 1 to [MaxForks]; 0 is 1.
	Count int `json:"count,omitempty"`
	// Name is the child's name. Several children have "-" and their index added to
	// it. Empty is none.
	Name string `json:"name,omitempty"`
	// Env is added to the environment of each child's commands.
	Env map[string]string `json:"env,omitempty"`
	// Metadata is added to the parent's.
	Metadata map[string]string `json:"metadata,omitempty"`
	// LifetimeSeconds and IdleTimeoutSeconds: nil is the parent's setting.
	LifetimeSeconds    *int64 `json:"lifetime_seconds,omitempty"`
	IdleTimeoutSeconds *int64 `json:"idle_timeout_seconds,omitempty"`
}

// DiffRequest says what a sandbox's or snapshot's files are compared with.
type DiffRequest struct {
	// Against is a sandbox or a snapshot, by id or name; empty is the
	// template. The changes are those that lead from it to the subject.
	Against string `json:"against,omitempty"`
	// Paths selects changes at or below these absolute paths; empty is all.
	Paths []string `json:"paths,omitempty"`
	// Patch adds unified diffs of text files of at most [MaxPatchFileBytes].
	Patch bool `json:"patch,omitempty"`
	// Limit bounds the changes that are returned, at most [MaxDiffLimit]; 0 is
	// [DefaultDiffLimit]. All changes are counted.
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

// Aspect is a property of a modified path that differs.
type Aspect string

// The aspects of a modification. A path whose type differs has only AspectType.
const (
	AspectContent Aspect = "content"
	AspectMode    Aspect = "mode"
	AspectOwner   Aspect = "owner"
	AspectType    Aspect = "type"
	AspectTarget  Aspect = "target" // of a symbolic link, or a device's number
)

// Change is one path that differs. A removed directory stands for everything that
// was in it.
type Change struct {
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	// Type is the type now, or before the path was removed.
	Type FileType `json:"type"`
	// Aspects is set for modified paths.
	Aspects []Aspect `json:"aspects,omitempty"`
	// OldSize and NewSize are the sizes of regular files, in bytes.
	OldSize int64 `json:"old_size,omitempty"`
	NewSize int64 `json:"new_size,omitempty"`
	// OldMode and NewMode are octal, as "0644".
	OldMode string `json:"old_mode,omitempty"`
	NewMode string `json:"new_mode,omitempty"`
	// Patch is a unified diff of a text file, if the request asked for patches.
	Patch string `json:"patch,omitempty"`
}

// Diff is what differs between two file systems, sorted by path. /tmp, /dev and
// /dev/shm are memory and are not compared, nor is /run/cove. Files that Cove writes
// in every sandbox (/etc/hosts, /etc/resolv.conf, the machine id, the SSH host
// keys and the bundles of certificates) are compared only if Paths names the file
// itself.
type Diff struct {
	Changes []Change `json:"changes"`
	// Added, Removed and Modified count all changes, returned or not.
	Added    int `json:"added"`
	Removed  int `json:"removed"`
	Modified int `json:"modified"`
	// Truncated says that there are more changes than Limit.
	Truncated bool `json:"truncated,omitempty"`
}

// MergeKind says what a merge takes from the winner.
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

// The merge policies. With PolicyNone, a conflict stops the merge.
const (
	PolicyNone   MergePolicy = ""
	PolicyOurs   MergePolicy = "ours"   // the parent's version stays
	PolicyTheirs MergePolicy = "theirs" // the winner's version is taken
)

// MergeRequest says what is merged into a parent.
type MergeRequest struct {
	// Winner is the child to merge, by id or name.
	Winner string `json:"winner"`
	// Kind is "whole", the default, or "files".
	Kind MergeKind `json:"kind,omitempty"`
	// Policy is for "files" only.
	Policy MergePolicy `json:"policy,omitempty"`
	// Resolve says, for "files", who wins at or below each of these absolute paths:
	// "ours" or "theirs", whatever Policy says. The deepest path counts.
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

// MergeResult is the outcome of a merge. Merged is false if conflicts stopped it: then
// nothing was changed, and Conflicts are those that neither policy nor Resolve decides.
type MergeResult struct {
	Merged    bool       `json:"merged"`
	Kind      MergeKind  `json:"kind"`
	Sandbox   *Sandbox   `json:"sandbox"`
	Applied   []Change   `json:"applied,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
}
