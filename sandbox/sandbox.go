package sandbox

import "time"

// State says where in its life a sandbox is.
type State string

// The states of a sandbox. Killed and failed are final.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopping State = "stopping"
	StateKilled   State = "killed"
	StateFailed   State = "failed"
)

// Final reports whether a sandbox in state s will never run again.
func (s State) Final() bool { return s == StateKilled || s == StateFailed }

// TimeoutAction is what happens to a sandbox whose lifetime or idle timeout
// has passed.
type TimeoutAction string

// The timeout actions. Kill is the default.
const (
	ActionKill  TimeoutAction = "kill"
	ActionPause TimeoutAction = "pause"
)

// Sandbox is the record of one sandbox, as of the time it was read.
type Sandbox struct {
	// ID is opaque, unguessable, unique for ever and a valid DNS label.
	ID string `json:"id"`
	// Name is unique among a namespace's living sandboxes, or empty.
	Name string `json:"name,omitempty"`
	Team string `json:"team"`
	// Namespace is the part of the team that the sandbox is in, with its forks
	// and snapshots.
	Namespace string            `json:"namespace"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Template  string            `json:"template"`
	// ForkedFrom is the sandbox that this one is a fork of, or empty.
	ForkedFrom string `json:"forked_from,omitempty"`
	// Snapshot is the snapshot that the sandbox was made from or last restored to,
	// or empty.
	Snapshot string `json:"snapshot,omitempty"`
	// MadeFrom is the state that the sandbox began with; nil unless it was made from a
	// snapshot or a step of a history.
	MadeFrom *MadeFrom `json:"made_from,omitempty"`
	State    State     `json:"state"`
	// Reason says why a sandbox was killed or has failed, or why a running one
	// does not answer calls.
	Reason    string            `json:"reason,omitempty"`
	Resources Resources         `json:"resources"`
	Env       map[string]string `json:"env,omitempty"`
	// User is who commands run as unless they say otherwise.
	User    string `json:"user"`
	WorkDir string `json:"workdir"`
	// LifetimeSeconds bounds the sandbox's life from its creation, or from the
	// update that set it; 0 is no bound.
	LifetimeSeconds int64 `json:"lifetime_seconds"`
	// IdleTimeoutSeconds bounds the time without a command running or a call
	// made; 0 is no bound.
	IdleTimeoutSeconds int64         `json:"idle_timeout_seconds"`
	OnTimeout          TimeoutAction `json:"on_timeout"`
	// History is how many automatic snapshots are kept, one before each
	// command; 0 is none.
	History int `json:"history,omitempty"`
	// Network decides what the sandbox can reach; nil is the preset open.
	Network *NetworkPolicy `json:"network,omitempty"`
	// Secrets are the attached secrets: environment variables that have
	// placeholders, and the name of the secret of each.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Ports are ports of the host that lead to the sandbox.
	Ports []PublishedPort `json:"ports,omitempty"`
	// Mounts are the volumes and directories mounted in the sandbox.
	Mounts []Mount `json:"mounts,omitempty"`
	// Desktop is set if the sandbox is a computer.
	Desktop *Desktop `json:"desktop,omitempty"`
	// PausedLifetimeSeconds: see [CreateRequest].
	PausedLifetimeSeconds int64 `json:"paused_lifetime_seconds,omitempty"`
	// CheckpointIntervalSeconds is the time between automatic checkpoints; 0 is none.
	CheckpointIntervalSeconds int64 `json:"checkpoint_interval_seconds,omitempty"`
	// LastCheckpoint is the newest automatic checkpoint, or why there is none; nil if none
	// was tried.
	LastCheckpoint *AutomaticCheckpoint `json:"last_checkpoint,omitempty"`

	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	// PausedAt and PausedExpiresAt are set while the sandbox is paused: since when,
	// and when it ends if it is still paused by then.
	PausedAt        *time.Time `json:"paused_at,omitempty"`
	PausedExpiresAt *time.Time `json:"paused_expires_at,omitempty"`
	// Stored says where the state of a paused sandbox is kept, on a server with an object
	// store.
	Stored       Stored    `json:"stored,omitempty"`
	LastActiveAt time.Time `json:"last_active_at"`
	// ExpiresAt is when the lifetime ends; nil if it is not bounded.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Node is the node that the sandbox is on. It is empty if the sandbox has ended or
	// the server has no nodes.
	Node string `json:"node,omitempty"`
	// Dedicated says that no sandboxes but its forks run on the sandbox's node.
	Dedicated bool `json:"dedicated,omitempty"`
	// Moments are the sandbox's pauses and restores and the merges into it, oldest
	// first, at most [MaxMoments].
	Moments []Moment `json:"moments,omitempty"`
	// Unenforced lists limits that the machine could not enforce, in words.
	Unenforced []string `json:"unenforced,omitempty"`
}

// AutomaticCheckpoint is the state of a sandbox that was kept last by its checkpoint
// interval or by a pause, and from which the sandbox continues if its machine or its
// supervisor dies. With it, what has failed since.
type AutomaticCheckpoint struct {
	// At is the instant whose state is kept; nil if there is none yet.
	At *time.Time `json:"at,omitempty"`
	// SizeBytes is the disk space that it takes.
	SizeBytes int64 `json:"size_bytes,omitempty"`
	// Stored says where it is kept, on a server with an object store. While it is pending,
	// the one before it is kept too.
	Stored Stored `json:"stored,omitempty"`
	// FailedAt is when a newer one could last not be made, and Failure says why. They are
	// not set if there was no failure since At.
	FailedAt *time.Time `json:"failed_at,omitempty"`
	Failure  string     `json:"failure,omitempty"`
	// Restores is how often the sandbox has continued from it. After
	// [MaxCheckpointRestores] the sandbox fails.
	Restores int `json:"restores,omitempty"`
}

// Resources are the limits of one sandbox. MiB is 2^20 bytes.
type Resources struct {
	VCPUs     int   `json:"vcpus"`
	MemoryMiB int64 `json:"memory_mib"`
	// DiskMiB bounds what the sandbox writes, on top of its template.
	DiskMiB int64 `json:"disk_mib"`
	// MaxPIDs bounds processes and threads.
	MaxPIDs int64 `json:"max_pids"`
}

// CreateRequest describes a sandbox to be made. Zero values mean defaults:
// the template's if it has them, otherwise the server's.
type CreateRequest struct {
	// Name is unique among the namespace's living sandboxes: 1 to 63 of a-z, 0-9,
	// "_", "." and "-". Empty is none.
	Name string `json:"name,omitempty"`
	// Namespace is the part of the team that the sandbox is made in; empty is the
	// caller's, or "default". A caller who is in a namespace can name no other.
	Namespace string `json:"namespace,omitempty"`
	// Metadata are pairs to find the sandbox by, at most 64.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Template is the name of a template that is ready.
	Template  string    `json:"template,omitempty"`
	Resources Resources `json:"resources,omitzero"`
	// FitResources gives the sandbox less than Resources if the server's machine
	// has less, instead of refusing the request.
	FitResources bool `json:"fit_resources,omitempty"`
	// Env is the environment of all commands, unless they say otherwise.
	Env map[string]string `json:"env,omitempty"`
	// User is who commands run as, and who owns files that are written.
	User string `json:"user,omitempty"`
	// WorkDir is where commands start and relative paths begin.
	WorkDir string `json:"workdir,omitempty"`
	// LifetimeSeconds: nil is the server's default, 0 is no bound.
	LifetimeSeconds *int64 `json:"lifetime_seconds,omitempty"`
	// IdleTimeoutSeconds: nil is the server's default, 0 is no bound.
	IdleTimeoutSeconds *int64 `json:"idle_timeout_seconds,omitempty"`
	// OnTimeout is "kill", the default, or "pause": the end of the lifetime or
	// of the idle timeout pauses the sandbox. Its lifetime starts again when it is
	// resumed.
	OnTimeout TimeoutAction `json:"on_timeout,omitempty"`
	// Snapshot is the id or name of a snapshot to begin with, instead of a
	// template. Resources cannot be given with it.
	Snapshot string `json:"snapshot,omitempty"`
	// History is how many automatic snapshots to keep, 0 to [MaxHistory]: one
	// is made before each command that is not in the background.
	History int `json:"history,omitempty"`
	// Network decides what the sandbox can reach; nil is the server's default.
	Network *NetworkPolicy `json:"network,omitempty"`
	// Secrets attaches secrets: environment variables that get placeholders, and
	// the name of the secret of each.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Ports publishes ports on the host.
	Ports []PublishedPort `json:"ports,omitempty"`
	// Mounts are volumes and directories to mount, at most [MaxMounts].
	Mounts []Mount `json:"mounts,omitempty"`
	// PausedLifetimeSeconds ends the sandbox after this time in one pause; 0 is
	// never.
	PausedLifetimeSeconds int64 `json:"paused_lifetime_seconds,omitempty"`
	// CheckpointIntervalSeconds keeps the sandbox's memory, processes and files at this
	// interval, from [MinCheckpointInterval] to [MaxCheckpointInterval], while it is in
	// use. If its machine or its supervisor dies, it continues from the newest of these
	// states. Nil is the server's default, 0 is never.
	CheckpointIntervalSeconds *int64 `json:"checkpoint_interval_seconds,omitempty"`
	// Dedicated gives the sandbox and its forks a node on which nothing else runs. It needs
	// nodes that were started for that. Nil is the server's default.
	Dedicated *bool `json:"dedicated,omitempty"`
}

// UpdateRequest changes a living sandbox; fields that are nil stay.
type UpdateRequest struct {
	Name *string `json:"name,omitempty"`
	// Metadata replaces the whole map.
	Metadata map[string]string `json:"metadata,omitzero"`
	// Env replaces the default environment of commands started from now on.
	Env map[string]string `json:"env,omitzero"`
	// VCPUs and MemoryMiB change at once what programs get. What programs see as
	// the size of the machine stays as it was at creation, and so does the host
	// name. If memory is lowered below what is in use, the largest programs are
	// ended.
	VCPUs     *int   `json:"vcpus,omitempty"`
	MemoryMiB *int64 `json:"memory_mib,omitempty"`
	MaxPIDs   *int64 `json:"max_pids,omitempty"`
	// LifetimeSeconds counts from now.
	LifetimeSeconds    *int64         `json:"lifetime_seconds,omitempty"`
	IdleTimeoutSeconds *int64         `json:"idle_timeout_seconds,omitempty"`
	OnTimeout          *TimeoutAction `json:"on_timeout,omitempty"`
	// History 0 ends the history and removes its steps.
	History *int `json:"history,omitempty"`
	// PausedLifetimeSeconds counts from the next pause, or from now if the sandbox
	// is paused; 0 is never.
	PausedLifetimeSeconds *int64 `json:"paused_lifetime_seconds,omitempty"`
	// CheckpointIntervalSeconds counts from the last automatic checkpoint; 0 ends them and
	// removes the last one.
	CheckpointIntervalSeconds *int64 `json:"checkpoint_interval_seconds,omitempty"`
}

// ListRequest selects sandboxes of the caller's team, and of the caller's
// namespace if it is in one. Zero fields select all.
type ListRequest struct {
	// Namespace selects one; "*" and "" are all that the caller can see.
	Namespace string `json:"namespace,omitempty" query:"namespace"`
	// States: empty selects every state that is not final.
	States []State `json:"states,omitempty" query:"state"`
	// Metadata selects sandboxes that have all of these pairs.
	Metadata map[string]string `json:"metadata,omitempty" query:"metadata"`
	Name     string            `json:"name,omitempty" query:"name"`
	Template string            `json:"template,omitempty" query:"template"`
	Page
}

// Stats is what a sandbox uses now.
type Stats struct {
	SandboxID string `json:"sandbox_id"`
	// CPUSeconds is processor time since the start, as the host counts it.
	CPUSeconds      float64 `json:"cpu_seconds"`
	MemoryBytes     int64   `json:"memory_bytes"`
	MemoryMaxBytes  int64   `json:"memory_max_bytes"`
	PrivateBytes    int64   `json:"private_bytes"`
	DiskBytes       int64   `json:"disk_bytes"`
	DiskMaxBytes    int64   `json:"disk_max_bytes"`
	Processes       int64   `json:"processes"`
	NetworkInBytes  int64   `json:"network_in_bytes"`
	NetworkOutBytes int64   `json:"network_out_bytes"`
}
