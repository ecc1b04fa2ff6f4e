// Package store is the contract of Cove's durable record: sandboxes, keys,
// audit events and templates. Package sqlite implements it; package storetest
// is the suite that every implementation passes.
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
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Store keeps everything that outlives the daemon. It is safe for concurrent
// use.
type Store interface {
	Sandboxes
	Keys
	Audit
	Templates
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
}

// Quota bounds the sandboxes of a team that are not ended. Zero is no bound.
type Quota struct {
	Sandboxes int
	VCPUs     int
	MemoryMiB int64
}

// Usage is what the sandboxes of a team that are not ended count for.
type Usage struct {
	Sandboxes int
	VCPUs     int
	MemoryMiB int64
}

// Change is a change of one record: compare and set.
type Change struct {
	// From lists the states in which the change may be made; empty is all.
	From []sandbox.State
	// Quota must hold afterwards, if the change asks for more than before.
	Quota Quota
	// Apply changes the record. It runs while the store is locked: it must
	// not call the store, and its error undoes the change and is returned.
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
}

// Sandboxes is the record of sandboxes.
type Sandboxes interface {
	// CreateSandbox adds a record if the quota of its team still holds with
	// it. A name that a sandbox of the team that is not ended has is a
	// conflict.
	CreateSandbox(ctx context.Context, r Record, q Quota) error
	// Sandbox returns the record with this id.
	Sandbox(ctx context.Context, id string) (Record, error)
	// SandboxByName returns the team's sandbox of this name that is not ended,
	// or else the newest that is.
	SandboxByName(ctx context.Context, team, name string) (Record, error)
	// UpdateSandbox changes a record at once, and returns it as it is then.
	// In a state that c.From does not list it returns the unchanged record and
	// a not_running error.
	UpdateSandbox(ctx context.Context, id string, c Change) (Record, error)
	// TouchSandboxes moves LastActiveAt of records that are not ended forward.
	TouchSandboxes(ctx context.Context, active map[string]time.Time) error
	// ListSandboxes returns one page, newest first, and the cursor of the next.
	ListSandboxes(ctx context.Context, f SandboxFilter, p sandbox.Page) ([]Record, string, error)
	// DueSandboxes returns the ids of running and paused sandboxes whose
	// lifetime, or running ones whose idle time, has passed by their record.
	DueSandboxes(ctx context.Context, now time.Time) ([]string, error)
	// SandboxUsage sums up the sandboxes of a team, or of all for "", that are
	// not ended.
	SandboxUsage(ctx context.Context, team string) (Usage, error)
	// DeleteSandbox removes a record, if it is there.
	DeleteSandbox(ctx context.Context, id string) error
	// DeleteEndedSandboxes removes records that ended before the given time
	// and that the engine holds nothing of, and says how many.
	DeleteEndedSandboxes(ctx context.Context, before time.Time) (int, error)
}

// Keys is the record of API keys.
type Keys interface {
	// CreateKey adds a key whose secret has this hash.
	CreateKey(ctx context.Context, k sandbox.Key, hash []byte) error
	// KeyByHash returns a key, expired and revoked ones too, with its hash as
	// it is stored.
	KeyByHash(ctx context.Context, hash []byte) (sandbox.Key, []byte, error)
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
