package sandbox

import (
	"context"
	"slices"
	"time"
)

// EventsKept is how many events the server remembers for those who follow them again.
// It remembers none across a restart.
const EventsKept = 4096

// EventKind says what an [Event] tells of.
type EventKind string

// The kinds of events.
const (
	// EventBegun is the first of a stream: what is listed after it misses nothing that
	// the stream does not tell.
	EventBegun EventKind = "begun"
	// EventSandbox tells of a sandbox that was made or changed: its state, its name, its
	// limits. Forks, merges, pauses and ends are such changes.
	EventSandbox EventKind = "sandbox"
	// EventSandboxDeleted tells that a sandbox has no record any more, as when its
	// creation has failed.
	EventSandboxDeleted EventKind = "sandbox_deleted"
	// EventSnapshot tells of a snapshot that was made.
	EventSnapshot EventKind = "snapshot"
	// EventSnapshotDeleted tells of one that was removed.
	EventSnapshotDeleted EventKind = "snapshot_deleted"
	// EventJob tells of a job that has begun or ended. The end is not told if it comes
	// while no server runs.
	EventJob EventKind = "job"
	// EventBuild tells of a template's build that was made or changed.
	EventBuild EventKind = "build"
	// EventComputer tells what a call has done with a computer: see [ComputerAction].
	EventComputer EventKind = "computer"
	// EventStats tells what a running sandbox uses, every [StatsInterval].
	EventStats EventKind = "stats"
	// EventNetwork tells what a sandbox tried to reach. Only streams of one sandbox
	// have these, and those that were missed are in the sandbox's network log.
	EventNetwork EventKind = "network"
	// EventApprovalAsked tells of a question that a network policy asks,
	// EventApprovalAnswered that somebody has answered it, and EventApprovalExpired that
	// it has ended without an answer.
	EventApprovalAsked    EventKind = "approval.asked"
	EventApprovalAnswered EventKind = "approval.answered"
	EventApprovalExpired  EventKind = "approval.expired"
)

// EventKinds are the kinds that can be asked for.
var EventKinds = []EventKind{EventSandbox, EventSandboxDeleted, EventSnapshot, EventSnapshotDeleted, EventJob, EventBuild, EventComputer, EventStats, EventNetwork,
	EventApprovalAsked, EventApprovalAnswered, EventApprovalExpired}

// Event is something that has happened. Of the fields after SandboxID one is set, by
// its kind, but for deletions and [EventBegun].
type Event struct {
	// ID is where the stream can be taken up again: see [FollowEventsRequest]. Events of
	// the network have none, since they are not remembered.
	ID   string    `json:"id,omitempty"`
	At   time.Time `json:"at"`
	Kind EventKind `json:"kind"`
	// Missed is set in [EventBegun] if there were events after the asked one that are
	// not remembered: what the caller knows is to be listed anew.
	Missed bool `json:"missed,omitempty"`
	// SandboxID is the sandbox of the event, if it is of one.
	SandboxID string `json:"sandbox_id,omitempty"`
	// SnapshotID is of deleted snapshots too.
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

// EventsOldest, as [FollowEventsRequest].After, begins with the oldest event that is
// remembered.
const EventsOldest = "oldest"

// FollowEventsRequest says which events are followed.
type FollowEventsRequest struct {
	// Sandbox selects the events of one sandbox, by id or name.
	Sandbox string `json:"sandbox,omitempty" query:"sandbox"`
	// Kinds selects kinds; empty is all.
	Kinds []EventKind `json:"kinds,omitempty" query:"kind"`
	// After is the id of the last event that is known, or [EventsOldest]; empty is from
	// now on.
	After string `json:"after,omitempty" query:"after"`
	// Once ends the stream after what is remembered.
	Once bool `json:"once,omitempty" query:"once"`
}

// Wants reports whether events of a kind are asked for.
func (r *FollowEventsRequest) Wants(k EventKind) bool {
	return len(r.Kinds) == 0 || slices.Contains(r.Kinds, k)
}

// Events tells what happens.
type Events interface {
	// FollowEvents passes events to sink as they come, the first of which is
	// [EventBegun], until ctx is cancelled, which is not an error, or sink fails, whose
	// error is returned. The caller's sandboxes and snapshots are told of, and all
	// builds. A caller that is slower than what happens gets another [EventBegun] with
	// Missed. Scope: sandboxes:read.
	FollowEvents(ctx context.Context, req FollowEventsRequest, sink func(Event) error) error
}
