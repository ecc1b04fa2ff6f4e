package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Checkpointer is an Engine that can save the state of instances: memory, processes and
// files. Its methods are safe for concurrent use.
type Checkpointer interface {
	// Checkpoint saves the state of a running instance under an id, which must never be
	// reused. The instance is paused while its state is written and then continues, whether
	// or not that succeeded. After an error nothing is kept.
	//
	// With opts.Commit, the instance stays paused until Commit has returned. If it returns
	// nil, the instance is destroyed. If it returns an error, the instance continues, the
	// checkpoint is removed, and the error is returned. If that is [ErrUndecided], the
	// checkpoint stays: whoever knows ends the one or removes the other.
	Checkpoint(ctx context.Context, instance, checkpoint string, opts CheckpointOptions) (Checkpoint, error)
	// Checkpoints lists all checkpoints.
	Checkpoints(ctx context.Context) ([]Checkpoint, error)
	// RemoveCheckpoint removes a checkpoint; an unknown one is not an error. Instances made
	// from it are unaffected.
	RemoveCheckpoint(ctx context.Context, id string) error
	// SetAside moves a checkpoint, intact or damaged, out of the engine to a new directory
	// on the same file system, with everything that a restore needs except the root. The
	// engine then no longer has the checkpoint.
	SetAside(ctx context.Context, id, to string) error
	// BringBack undoes SetAside, durably. If the checkpoint is damaged, it stays where it
	// is, and the error is for the caller.
	BringBack(ctx context.Context, id, from string) (Checkpoint, error)
	// Changes returns what an instance, or the instance of a checkpoint, has changed above
	// its root: a tar stream in which a character device 0:0 stands for a removed file. A
	// running instance is paused while it is read. The stream is not trusted; a truncated
	// stream ends with an error.
	Changes(ctx context.Context, of Source) (io.ReadCloser, error)
	// Warm keeps instances ready that continue from these checkpoints. A Create with one of
	// them and the same Root and Resources uses such an instance. Each call replaces the
	// previous one.
	Warm(specs []WarmSpec)
}

// Source is either an instance or a checkpoint.
type Source struct {
	Instance   string
	Checkpoint string
}

// CheckpointOptions are the options of [Checkpointer.Checkpoint].
type CheckpointOptions struct {
	// FilesOnly leaves out memory and processes.
	FilesOnly bool
	// Durable waits until the checkpoint would survive a power failure, and has its content
	// verified before each restore.
	Durable bool
	// Label is kept with the checkpoint, so that its owner can identify it even if the
	// owner's record is lost.
	Label json.RawMessage
	// Owner is the team that the state belongs to. An engine that also keeps checkpoints
	// elsewhere, encrypts those of each owner with a key of their own, and leaves those
	// without an owner on this machine. Only durable checkpoints can have one.
	Owner string
	// Commit ends the instance; see [Checkpointer].
	Commit func(Checkpoint) error
	// Early makes Checkpoint return when the instance continues, although memory and files
	// may still be missing. Instances that continue from the checkpoint have these when they
	// need them, even if the instance ends or is destroyed meanwhile; if they are lost
	// nevertheless, these instances end. Changes, and a Create with FilesOnly, wait until all
	// is written, and fail if it never will be. Early cannot be combined with Durable or
	// Commit.
	Early bool
}

// Checkpoint is the saved state of an instance.
type Checkpoint struct {
	ID        string            `json:"id"`
	FilesOnly bool              `json:"files_only,omitempty"`
	Root      Root              `json:"root"`
	Resources sandbox.Resources `json:"resources"`
	// SizeBytes is the size on disk.
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	// Label and Owner are those of the options.
	Label json.RawMessage `json:"label,omitempty"`
	Owner string          `json:"owner,omitempty"`
	// Family is that of the instance, as far as the engine knows it.
	Family string `json:"family,omitempty"`
	// Stopped is how long the instance was paused, if it continued.
	Stopped time.Duration `json:"-"`
}

// Portable is a [Checkpointer] whose checkpoints can be copied, to come back on this machine
// or on another one.
type Portable interface {
	Checkpointer
	// Export opens a checkpoint to be copied. The caller closes the result, which stays
	// readable until then, also if the checkpoint is removed.
	Export(ctx context.Context, id string) (*Export, error)
	// Import makes a checkpoint again from the description of its export, durably. The ID,
	// Root, Resources, Label and Owner of the result are those of c. It calls fetch for each
	// file that it lacks, one after another. After an error nothing is kept. A description is
	// not trusted: the caller must only fetch a file with Shared from whom it trusts, because
	// the program that will run the checkpoint is one of them.
	Import(ctx context.Context, c Checkpoint, description []byte, fetch Fetch) (Checkpoint, error)
}

// EarlyImporter is a [Portable] whose checkpoints can be used before all of their content was
// fetched.
type EarlyImporter interface {
	// ImportEarly is Import, but calls usable as soon as instances can continue from the
	// checkpoint, if that is before it returns. What they need meanwhile is fetched first: the
	// last call of fetch gets a [PartWriter]. If it fails then, with an error that is not
	// [ErrLost], instances that need the rest wait for FinishImport. After an ErrLost they end.
	//
	// A checkpoint that is removed meanwhile stays while instances need it; then the error is
	// [ErrUnneeded].
	ImportEarly(ctx context.Context, c Checkpoint, description []byte, fetch Fetch, usable func(Checkpoint)) (Checkpoint, error)
	// Unfinished returns the checkpoints that are in use and not complete.
	Unfinished(ctx context.Context) ([]string, error)
	// FinishImport goes on with an import that has failed, in this process or an earlier one.
	// The error is [ErrNotFound] if the checkpoint is complete or gone.
	FinishImport(ctx context.Context, id string, fetch Fetch) error
}

// PartWriter receives a file that is in use while it is fetched. All of it must be written,
// including zeros.
type PartWriter interface {
	io.WriterAt
	// Wanted receives the parts that somebody waits for, which should be written first. It is
	// never closed.
	Wanted() <-chan Part
	// Unneeded is closed when nobody needs the rest.
	Unneeded() <-chan struct{}
}

// Part is a part of a file.
type Part struct{ Offset, Size int64 }

// ErrUnneeded means that a checkpoint was removed while it was fetched, and that no instance
// needs the rest.
var ErrUnneeded = errors.New("the checkpoint was removed before all of it was fetched")

// ErrLost means that the content of a checkpoint is lost for ever.
var ErrLost = errors.New("the content of the checkpoint is lost")

// ErrNoFile means that an export has no file of the name and size that is asked for.
var ErrNoFile = errors.New("it has no such file")

// Fetch writes the content of a file of an export into a new file of f.Size bytes, which is
// full of zeros. Of f, the ReadCloser is nil. Parts can be written at the same time and in
// any order. The error is [ErrNoFile] if there is no such file.
type Fetch func(f ExportFile, to io.WriterAt) error

// Export is a checkpoint that is being copied.
type Export struct {
	Checkpoint
	// Description is for [Portable].Import.
	Description []byte
	Files       []ExportFile
}

// ExportFile is one file of a checkpoint, or one that it needs.
type ExportFile struct {
	Name string
	Size int64
	// Shared, if not empty, identifies the content of a file that other checkpoints need
	// too, such as the program: it holds letters and digits.
	Shared string
	io.ReadCloser
}

// Close closes all files.
func (e *Export) Close() {
	for _, f := range e.Files {
		f.Close()
	}
}

// Place is where the content of a checkpoint is kept.
type Place string

// The places.
const (
	// PlacePending means that the content is only on this machine yet.
	PlacePending Place = "pending"
	// PlaceStored means that it is both on this machine and elsewhere.
	PlaceStored Place = "stored"
	// PlaceUnknown means that it may be elsewhere, which nobody could ask yet.
	PlaceUnknown Place = "unknown"
	// PlaceRemote means that it is elsewhere only: it is fetched when it is needed.
	PlaceRemote Place = "remote"
)

// Replicator is a [Checkpointer] that also keeps checkpoints elsewhere.
type Replicator interface {
	// Kept returns where a checkpoint is kept. It is empty for one that stays on this machine
	// or is unknown.
	Kept(id string) Place
	// Holds reports whether checkpoints are all kept elsewhere, and asks there.
	Holds(ctx context.Context, ids []string) bool
	// Waits reports whether a checkpoint is to be kept elsewhere but is not yet, and why, if
	// that has failed so far.
	Waits(id string) (waits bool, failure error)
	// Reach returns nil if what is elsewhere can be reached now.
	Reach(ctx context.Context) error
}

// Standing says what can be done with a checkpoint where it is.
type Standing string

// The standings.
const (
	// StandingReady means that it can be read, and that instances can continue from it.
	StandingReady Standing = "ready"
	// StandingLeaving means that it can be read, but that instances should continue on
	// another machine, because this one is being emptied.
	StandingLeaving Standing = "leaving"
	// StandingDraining means that instances should rather continue on another machine.
	StandingDraining Standing = "draining"
	// StandingAway means that its machine cannot be reached.
	StandingAway Standing = "away"
	// StandingNone means that no machine has it.
	StandingNone Standing = ""
)

// Scattered is a [Portable] that consists of several machines. Each checkpoint is on one of
// them. Import makes a checkpoint on a machine where instances can continue from it, also if
// another machine has it: that one removes its own, at the latest before anything else is
// done there.
type Scattered interface {
	// ImportFor is Import on a machine that has room for an instance, whose spec may be nil.
	// If another machine has the checkpoint, it is not chosen. usable is that of
	// [EarlyImporter]; it is called only if that machine can do so.
	ImportFor(ctx context.Context, spec *Spec, c Checkpoint, description []byte, fetch Fetch, usable func(Checkpoint)) (Checkpoint, error)
	// Standing returns the standing of a checkpoint.
	Standing(id string) Standing
	// Takes reports whether the machine that has a checkpoint takes instances of a family, ""
	// being none. If no machine has the checkpoint, it is true.
	Takes(id, family string) bool
	// OnReach sets the function that is called when a machine can be reached again, and its
	// checkpoints with it. It is called once, before any other method.
	OnReach(reached func())
}

// WarmSpec asks for instances that are made before they are needed.
type WarmSpec struct {
	// Checkpoint was taken of an instance that was never used.
	Checkpoint string
	Root       Root
	Resources  sandbox.Resources
	// Max limits how many instances wait. The engine keeps fewer if few are used or memory
	// is short.
	Max int
	// Failed, if not nil, is called with the reason why no instance can be made from the
	// checkpoint: it is damaged, or does not start. It may be called more than once.
	Failed func(err error)
}
