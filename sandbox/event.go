package sandbox

import (
	"context"
	"slices"
	"time"
)

// EventsKept is how many past events the server keeps for callers that resume a stream.
// It keeps none across a restart.
const EventsKept = 4096

// EventKind says what an [Event] is about.
type EventKind string

// The kinds of events.
const (
	// EventBegun is the first event of a stream. A caller that lists sandboxes after it
	// misses no change: each one is in the listing or in the stream.
	EventBegun EventKind = "begun"
	// EventSandbox reports that a sandbox was made or changed: its state, its name, its
	// limits. Forks, merges, pauses and ends are such changes.
	EventSandbox EventKind = "sandbox"
	// EventSandboxDeleted reports that a sandbox no longer has a record, as when its
	// creation has failed.
	EventSandboxDeleted EventKind = "sandbox_deleted"
	// EventSnapshot reports that a snapshot was made.
	EventSnapshot EventKind = "snapshot"
	// EventSnapshotDeleted reports that a snapshot was removed.
	EventSnapshotDeleted EventKind = "snapshot_deleted"
	// EventJob reports that a job has begun or ended. An end while no server runs is not
	// reported.
	EventJob EventKind = "job"
	// EventBuild reports that a template's build was made or changed.
	EventBuild EventKind = "build"
	// EventComputer reports what a call has done with a computer: see [ComputerAction].
	EventComputer EventKind = "computer"
	// EventStats reports what a running sandbox uses, every [StatsInterval].
	EventStats EventKind = "stats"
	// EventNetwork reports what a sandbox tried to reach. Only streams of one sandbox
	// have these events; missed ones are in the sandbox's network log.
	EventNetwork EventKind = "network"
	// EventApprovalAsked reports a question that a network policy asks,
	// EventApprovalAnswered that somebody has answered it, and EventApprovalExpired that
	// it has ended without an answer.
	EventApprovalAsked    EventKind = "approval.asked"
	EventApprovalAnswered EventKind = "approval.answered"
	EventApprovalExpired  EventKind = "approval.expired"
)

// EventKinds are the kinds that can be asked for.
var EventKinds = []EventKind{EventSandbox, EventSandboxDeleted, EventSnapshot, EventSnapshotDeleted, EventJob, EventBuild, EventComputer, EventStats, EventNetwork,
	EventApprovalAsked, EventApprovalAnswered, EventApprovalExpired}

// Event is something that has happened. Its kind decides which one of the records after
// SandboxID is set; deletions and [EventBegun] have none.
type Event struct {
	// ID is where the stream can be resumed: see [FollowEventsRequest]. Network events
	// have none, since the server does not keep them.
	ID   string    `json:"id,omitempty"`
	At   time.Time `json:"at"`
	Kind EventKind `json:"kind"`
	// Missed is set in [EventBegun] if events after the requested one are no longer
	// kept: the caller must list again what it follows.
	Missed bool `json:"missed,omitempty"`
	// SandboxID is the sandbox of the event, if it has one.
	SandboxID string `json:"sandbox_id,omitempty"`
	// SnapshotID is set for deleted snapshots too.
	SnapshotID string        `json:"snapshot_id,omitempty"`
	Sandbox    *Sandbox      `json:"sandbox,omitempty"`
	Snapshot   *Snapshot     `json:"snapshot,omitempty"`
	Job        *Job          `json:"job,omitempty"`
	Build      *Build        `json:"build,omitempty"`
	Stats      *StatsPoint   `json:"stats,omitempty"`
	Network    *NetworkEvent `json:"network,omitempty"`
	Approval   *Approval     `json:"approval,omitempty"`
	// Computer is what was done with the screen of a computer.
	Computer *ComputerAction `json:"computer,omitempty"`
}

// EventsOldest, as [FollowEventsRequest].After, begins with the oldest event that the
// server keeps.
const EventsOldest = "oldest"

// FollowEventsRequest selects the events to follow.
type FollowEventsRequest struct {
	// Sandbox selects the events of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox"`
	// Kinds selects kinds; empty is all.
	Kinds []EventKind `json:"kinds,omitempty" query:"kind"`
	// After is the id of the last event that the caller has seen, or [EventsOldest];
	// empty is from now on.
	After string `json:"after,omitempty" query:"after"`
	// Once ends the stream after the events that are kept, instead of waiting for new
	// ones.
	Once bool `json:"once,omitempty" query:"once"`
}

// Wants reports whether the request selects events of kind k.
func (r *FollowEventsRequest) Wants(k EventKind) bool {
	return len(r.Kinds) == 0 || slices.Contains(r.Kinds, k)
}

// Events reports what happens.
type Events interface {
	// FollowEvents passes events to sink as they come, beginning with [EventBegun]. It
	// returns nil when ctx is cancelled, and sink's error if sink fails. It reports on
	// the caller's sandboxes and snapshots, and on all builds. A caller that falls too
	// far behind gets another [EventBegun] with Missed. Scope: sandboxes:read.
	FollowEvents(ctx context.Context, req FollowEventsRequest, sink func(Event) error) error
}
