package engine

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Checkpointer is an Engine that can keep the state of instances: memory,
// processes and files. Its methods are safe for concurrent use.
type Checkpointer interface {
	// Checkpoint keeps the state of a running instance under an id that is
	// unique for ever. The instance stands still while its state is written,
	// and then goes on, whether or not that succeeded. On an error nothing is
	// kept.
	//
	// With opts.Commit, the instance stands still until that has returned: nil
	// destroys the instance, an error lets it go on and removes the
	// checkpoint, and is returned.
	Checkpoint(ctx context.Context, instance, checkpoint string, opts CheckpointOptions) (Checkpoint, error)
	// Checkpoints lists what is kept.
	Checkpoints(ctx context.Context) ([]Checkpoint, error)
	// RemoveCheckpoint removes a checkpoint; an unknown one is not an error.
	// Instances made from it are unharmed.
	RemoveCheckpoint(ctx context.Context, id string) error
	// SetAside moves a checkpoint, whole or damaged, out of the engine to a
	// directory, on the same file system, that is not there yet, with all that a
	// restore of it needs beside its root. The engine does not know it any more.
	SetAside(ctx context.Context, id, to string) error
	// BringBack makes a checkpoint again of what SetAside has moved away. It
	// fails with an error for the caller if that is damaged, and then it stays
	// where it is. It survives a loss of power.
	BringBack(ctx context.Context, id, from string) (Checkpoint, error)
	// Changes returns what an instance, or the one that a checkpoint was taken
	// of, has changed above its root: a tar stream in which a character device
	// 0:0 stands for what was removed. A running instance stands still while it
	// is read. The stream is hostile; one that was cut off ends with an error.
	Changes(ctx context.Context, of Source) (io.ReadCloser, error)
	// Warm keeps instances ready that continue from these checkpoints, so that
	// a Create with one of them, the same Root and Resources takes one over.
	// It replaces what an earlier call has asked for.
	Warm(specs []WarmSpec)
}

// Source is an instance or a checkpoint: exactly one of the two.
type Source struct {
	Instance   string
	Checkpoint string
}

// CheckpointOptions says what of an instance is kept.
type CheckpointOptions struct {
	// FilesOnly leaves out memory and processes.
	FilesOnly bool
	// Durable waits until the checkpoint would survive a loss of power, and
	// has its content verified before it is restored.
	Durable bool
	// Label is kept with the checkpoint for its owner, who can tell by it what it
	// was when their record of it is lost.
	Label json.RawMessage
	// Commit ends the instance; see [Checkpointer].
	Commit func(Checkpoint) error
}

// Checkpoint is the kept state of an instance.
type Checkpoint struct {
	ID        string            `json:"id"`
	FilesOnly bool              `json:"files_only,omitempty"`
	Root      Root              `json:"root"`
	Resources sandbox.Resources `json:"resources"`
	// SizeBytes is what it takes on disk.
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	// Label is that of the options.
	Label json.RawMessage `json:"label,omitempty"`
	// Stopped is how long the instance stood still, if it went on.
	Stopped time.Duration `json:"-"`
}

// WarmSpec asks for instances that are ready ahead of need.
type WarmSpec struct {
	// Checkpoint was taken of an instance that nobody has used yet.
	Checkpoint string
	Root       Root
	Resources  sandbox.Resources
	// Max bounds how many wait at a time. The engine keeps fewer when few are
	// taken or memory is short.
	Max int
	// Failed, if not nil, is told why no instance can be made of the checkpoint:
	// it is damaged, or does not start. It may be called more than once.
	Failed func(err error)
}
