// Package store is the contract of Cove's durable record: sandboxes,
// snapshots, keys, audit events and templates. Package sqlite implements it, with the queries
// of package sqlstore; package storetest is the suite that every implementation passes.
//
// Errors that a caller's request can cause are [sandbox.Error] values:
// not_found for an absent record, conflict for a taken name or id,
// not_running for a change that does not fit the record's state,
// quota_exceeded, and invalid for a cursor that this package did not make.
// All other errors are failures of the store itself.
//
// A method that returned nil has stored its change: it survives the end of
// this process. Times are kept to the nanosecond, in UTC.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// ErrInDoubt is the cause of an error after which it is not known whether a change was stored.
// Whoever must know reads the record again, by a change: that waits until the outcome is known.
var ErrInDoubt = errors.New("the change may or may not be stored")

// Store keeps everything that outlives the daemon. It is safe for concurrent
// use.
type Store interface {
	Sandboxes
	Snapshots
	Secrets
	Volumes
	Named
	Previews
	Deliveries
	Keys
	Sessions
	Audit
	Templates
	Builds
	limits.Requests
	Clock
	ObjectKey
	Files
	Close() error
}

// Record is a sandbox with what only the server knows of it.
type Record struct {
	sandbox.Sandbox
	// BaseEnv is the template's environment at the time of creation; the
	// sandbox's own Env lies above it.
	BaseEnv map[string]string
	// BootID identifies the run of the machine in which it was started.
	BootID string
	// Held says that the engine may still hold something of it: it is set
	// from the start and cleared when the engine has destroyed it.
	Held bool
	// Applying says that an update was recorded and may not be in effect yet.
	Applying bool
	// Instance is the engine's id of the machine that runs the sandbox. It is
	// the sandbox's id at creation, also when the record was added without
	// one, and another one after a restore, a resume or a merge.
	Instance string
	// Checkpoint is the engine's checkpoint that holds the state of a paused
	// sandbox, and empty otherwise.
	Checkpoint string
	// ForkPoint is the engine's checkpoint of the instant of the fork that the
	// sandbox came from, or empty. Merges of files compare with it.
	ForkPoint string
	// Origin is the digest of the content of the template that the sandbox, or
	// its first ancestor, was made from. It is empty in records of before it
	// was kept.
	Origin string
	// Root is the engine's description of the root file system that the
	// sandbox was made from. The store does not look into it; empty is
	// returned as nil.
	Root json.RawMessage
	// Bindings are the secrets attached to it. The store keeps these, and not
	// what [sandbox.Sandbox] says of secrets.
	Bindings []Binding
	// Answers are those that hold, of questions that its policy has asked. They are of
	// this sandbox only: snapshots and forks do not have them.
	Answers []Answer
	// Kept are the engine's checkpoints that the sandbox's checkpoint interval keeps.
	Kept Kept
	// Family is the id of the dedicated sandbox that it is or, if it is a fork, that its first
	// ancestor was. It is empty if it is not dedicated; the store keeps this, and not what
	// [sandbox.Sandbox] says.
	Family string
}

// Kept are the automatic checkpoints of a sandbox: the last complete one and, while a newer
// one is not stored everywhere yet, that one too.
type Kept struct {
	Last KeptState `json:"last,omitzero"`
	Next KeptState `json:"next,omitzero"`
	// Since is when the interval began to count if there is no checkpoint; zero is long ago.
	Since time.Time `json:"since,omitzero"`
	// FailedAt is when a checkpoint last failed after the newest one, and Failure why.
	FailedAt time.Time `json:"failed_at,omitzero"`
	Failure  string    `json:"failure,omitempty"`
	// Restores is how often the sandbox has gone back to the newest checkpoint.
	Restores int `json:"restores,omitempty"`
}

// KeptState is one automatic checkpoint.
type KeptState struct {
	// Checkpoint is the engine's id; empty if there is none.
	Checkpoint string    `json:"checkpoint"`
	At         time.Time `json:"at"`
	SizeBytes  int64     `json:"size_bytes"`
}

// Newest returns the newest checkpoint; it is zero if there is none.
func (k *Kept) Newest() KeptState {
	if k.Next.Checkpoint != "" {
		return k.Next
	}
	return k.Last
}

// Bytes is the disk space of all checkpoints.
func (k *Kept) Bytes() int64 { return k.Last.SizeBytes + k.Next.SizeBytes }

// Answer is an answer to a question of a network policy that holds longer than for the
// connections that waited for it.
type Answer struct {
	// ID is of the question.
	ID string `json:"id"`
	sandbox.ApprovalSubject
	Allow bool `json:"allow"`
	// Until is when it ends; zero is never.
	Until time.Time `json:"until,omitzero"`
	// By is the id of the key that answered.
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Binding is a secret attached to a sandbox, without its value.
type Binding struct {
	// Env is the environment variable that has the placeholder. It is empty if the secret
	// is for headers that the network policy sets: then nothing in the sandbox has it.
	Env         string `json:"env"`
	SecretID    string `json:"secret_id"`
	Secret      string `json:"secret"` // its name
	Placeholder string `json:"placeholder"`
}

// Quota bounds the [Usage] of a team. Zero is no bound.
type Quota struct {
	Sandboxes int
	VCPUs     int
	MemoryMiB int64
	DiskMiB   int64
	// Volumes and Snapshots are counted when one is made.
	Volumes   int
	Snapshots int
}

// Usage is what the sandboxes of a team that are not ended count for. A paused
// one counts as a sandbox and for its disk, but uses no vCPUs and no memory.
// The disk is also that of the team's volumes, snapshots and automatic checkpoints:
// what each volume may grow to, and what the others hold.
type Usage struct {
	Sandboxes int
	VCPUs     int
	MemoryMiB int64
	DiskMiB   int64
}

// Change is a change of one record: compare and set.
type Change struct {
	// From lists the states in which the change may be made; empty is all.
	From []sandbox.State
	// Quota must hold afterwards, if the change asks for more than before:
	// larger resources, or a paused sandbox that is to run again.
	Quota Quota
	// Apply changes the record. It runs while the record is locked: it must
	// not call the store, and its error undoes the change and is returned.
	// If the database has undone the change for a reason that passes, it runs
	// again, with the record as it is then.
	Apply func(*Record) error
}

// SandboxFilter selects sandboxes. Zero fields select all, in every team and
// state.
type SandboxFilter struct {
	Team      string
	Namespace string
	States    []sandbox.State
	Metadata  map[string]string
	Name      string
	Template  string
	// Held selects those that the engine may still hold something of.
	Held bool
	// SecretID selects those that a secret is attached to.
	SecretID string
	// VolumeID selects those that have a volume mounted.
	VolumeID string
	// Mounted selects those that have any mounts.
	Mounted bool
}

// Sandboxes is the record of sandboxes.
type Sandboxes interface {
	// CreateSandbox adds a record if the quota of its team still holds with
	// it. A name that a sandbox of the namespace that is not ended has is a
	// conflict. A volume among its mounts that the team does not have is
	// not_found.
	CreateSandbox(ctx context.Context, r Record, q Quota) error
	// CreateSandboxes adds all of the records or, with an error as of
	// CreateSandbox, none. The quota must hold with all of them.
	CreateSandboxes(ctx context.Context, records []Record, q Quota) error
	// Sandbox returns the record with this id.
	Sandbox(ctx context.Context, id string) (Record, error)
	// SandboxByName returns the namespace's sandbox of this name that is not
	// ended, or else the newest that is. For "", it looks in all namespaces of
	// the team, and of those that are not ended takes the one of the default
	// namespace; if there is none, and there are several, that is a conflict.
	SandboxByName(ctx context.Context, team, namespace, name string) (Record, error)
	// SandboxByInstance returns the sandbox that is not ended whose machine has
	// this id, or else the newest that is.
	SandboxByInstance(ctx context.Context, instance string) (Record, error)
	// UpdateSandbox changes a record at once, and returns it as it is then.
	// In a state that c.From does not list it returns the unchanged record and
	// a not_running error.
	UpdateSandbox(ctx context.Context, id string, c Change) (Record, error)
	// UpdateSandboxes changes several records at once: all of them or none. It
	// passes apply the records of these ids by id. Apply checks their states
	// itself, changes what the pointers lead to, and may move a name or a
	// machine from one to another. It runs while the records are locked: it must
	// not call the store, and its error undoes the change and is returned. It may
	// run again, as that of a [Change].
	// There is no quota: the change may not ask for more than before.
	//
	// It returns the records as they are then, and with an error of apply as
	// they were. If an id has no record, the error is not_found and apply is
	// not called.
	UpdateSandboxes(ctx context.Context, ids []string, apply func(map[string]*Record) error) (map[string]Record, error)
	// TouchSandboxes moves LastActiveAt of records that are not ended forward.
	TouchSandboxes(ctx context.Context, active map[string]time.Time) error
	// ListSandboxes returns one page, newest first, and the cursor of the next.
	ListSandboxes(ctx context.Context, f SandboxFilter, p sandbox.Page) ([]Record, string, error)
	// DueSandboxes returns the ids of running sandboxes whose lifetime or idle
	// time has passed by their record, and of paused ones whose lifetime has.
	// A paused one whose timeout action is to pause is never due: its lifetime
	// begins anew when it is resumed.
	DueSandboxes(ctx context.Context, now time.Time) ([]string, error)
	// SandboxUsage sums up the sandboxes of a team, or of all for "", that are
	// not ended.
	SandboxUsage(ctx context.Context, team string) (Usage, error)
	// DeleteSandbox removes a record with its previews, if it is there.
	DeleteSandbox(ctx context.Context, id string) error
	// DeleteEndedSandboxes removes records that ended before the given time
	// and that the engine holds nothing of, with their previews, and says how
	// many.
	DeleteEndedSandboxes(ctx context.Context, before time.Time) (int, error)
}

// SnapshotRecord is a snapshot with what only the server knows of it.
type SnapshotRecord struct {
	sandbox.Snapshot
	// Checkpoint is the engine's checkpoint that holds the state.
	Checkpoint string
	// Root and Origin are those of the sandbox: see [Record].
	Root   json.RawMessage
	Origin string
	// BaseEnv, Env, User and WorkDir are those of the sandbox at the instant of
	// the snapshot. A sandbox that is made from it begins with them.
	BaseEnv map[string]string
	Env     map[string]string
	User    string
	WorkDir string
	// Network, Bindings and Mounts are those of the sandbox too; see [Record].
	Network  *sandbox.NetworkPolicy
	Bindings []Binding
	Mounts   []sandbox.Mount
	// Step orders the automatic snapshots of a sandbox, whatever the clock
	// does: each has a larger one than those before it. It is 0 on others.
	Step int64
}

// SnapshotFilter selects snapshots. Zero fields select all, in every team.
type SnapshotFilter struct {
	Team      string
	Namespace string
	SandboxID string
	// Automatic selects the automatic ones or the others; nil is both.
	Automatic *bool
}

// Snapshots is the record of snapshots.
type Snapshots interface {
	// CreateSnapshot adds a record. A name that another snapshot of the namespace
	// has is a conflict. If the team has max snapshots that are not automatic,
	// one more of those is quota_exceeded; 0 is no bound.
	CreateSnapshot(ctx context.Context, r SnapshotRecord, q Quota) error
	// Snapshot returns the record with this id.
	Snapshot(ctx context.Context, id string) (SnapshotRecord, error)
	// SnapshotByName returns the namespace's snapshot of this name. For "", it
	// looks in all namespaces of the team as SandboxByName does.
	SnapshotByName(ctx context.Context, team, namespace, name string) (SnapshotRecord, error)
	// ListSnapshots returns one page, newest first, and the cursor of the next.
	ListSnapshots(ctx context.Context, f SnapshotFilter, p sandbox.Page) ([]SnapshotRecord, string, error)
	// DeleteSnapshot removes a record, if it is there.
	DeleteSnapshot(ctx context.Context, id string) error
	// Checkpoints returns the ids of all checkpoints of the engine that a
	// snapshot, or a sandbox that is not ended, refers to: each once, in order,
	// as of one instant. Any other checkpoint may be removed, unless it is so
	// new that its record is not written yet.
	Checkpoints(ctx context.Context) ([]string, error)
}

// Keys is the record of API keys.
type Keys interface {
	// CreateKey adds a key whose secret has this hash.
	CreateKey(ctx context.Context, k sandbox.Key, hash []byte) error
	// KeyByHash returns a key, expired and revoked ones too, with its hash as
	// it is stored.
	KeyByHash(ctx context.Context, hash []byte) (sandbox.Key, []byte, error)
	// KeyByID returns a key, expired and revoked ones too, or not_found.
	KeyByID(ctx context.Context, id string) (sandbox.Key, error)
	// ListKeys returns one page of a team's keys, or all for "", newest first.
	ListKeys(ctx context.Context, team string, p sandbox.Page) ([]sandbox.Key, string, error)
	// RevokeKey revokes a key of a team, or of any for "". It may be repeated;
	// the first time counts.
	RevokeKey(ctx context.Context, team, id string, at time.Time) (sandbox.Key, error)
	// TouchKey moves a key's LastUsedAt forward.
	TouchKey(ctx context.Context, id string, at time.Time) error
}

// AuditFilter selects audit events. Zero fields select all.
type AuditFilter struct {
	Team      string
	SandboxID string
}

// Audit is the append-only record of who did what.
type Audit interface {
	// AppendAudit adds events in order and gives them ids.
	AppendAudit(ctx context.Context, events []sandbox.AuditEvent) error
	// ListAudit returns one page, newest first.
	ListAudit(ctx context.Context, f AuditFilter, p sandbox.Page) ([]sandbox.AuditEvent, string, error)
	// TrimAudit removes events older than before, and of the others the oldest
	// over keep, and says how many.
	TrimAudit(ctx context.Context, before time.Time, keep int) (int, error)
}

// Template is the record of a template that was built, or is being.
type Template struct {
	Name   string
	Source string
	// Digest identifies the build in use; empty if there is none.
	Digest    string
	State     sandbox.TemplateState
	Reason    string
	SizeBytes int64
	BuiltAt   *time.Time
	// Definition is what it is built from, in the form of package image.
	Definition json.RawMessage
	UpdatedAt  time.Time
}

// Templates is the record of templates. Their number is small.
type Templates interface {
	// PutTemplate adds a record or replaces the one of its name.
	PutTemplate(ctx context.Context, t Template) error
	Template(ctx context.Context, name string) (Template, error)
	// ListTemplates returns all records by name.
	ListTemplates(ctx context.Context) ([]Template, error)
	// DeleteTemplate removes a record, if it is there.
	DeleteTemplate(ctx context.Context, name string) error
}
