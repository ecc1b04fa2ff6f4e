// Package engine is the contract between the service and whatever runs
// sandboxes: on one machine package cells, in tests package memory.
//
// The life of an instance: [Engine.Create] makes it and returns when its agent
// answers. From then on it exists without the process that made it: a new
// engine over the same state finds it with [Engine.Open]. It ends by
// [Engine.Destroy], or by failing; a failed instance holds no processes and is
// reported once through the function given to [Engine.Notify] and in
// [Engine.List] until it is destroyed.
//
// Commands, files and everything else inside a sandbox go over one connection
// to its agent, so they are written once for all engines; an engine only
// carries bytes. Abilities that not every engine has are interfaces of their
// own that an Engine may implement too.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net"

	"github.com/cove-sh/cove/sandbox"
)

// ErrNotFound says that the engine knows no such instance.
var ErrNotFound = errors.New("no such instance")

// ErrNoRoom says that the machine has no memory or disk for an instance now. It
// is the cause of a [sandbox.Error] with the figures.
var ErrNoRoom = errors.New("no room for another instance")

// Spec describes an instance to be made.
type Spec struct {
	// ID is unique for ever; see [sandbox.Sandbox].
	ID        string
	Root      Root
	Resources sandbox.Resources
	Hostname  string
	// Env, User and WorkDir are defaults of commands inside.
	Env     map[string]string
	User    string
	WorkDir string
	// Checkpoint is what the instance continues from; empty is a fresh boot
	// of Root. Only a [Checkpointer] takes it. Root and Resources must be
	// those of the checkpoint, but for processors, memory and processes.
	Checkpoint string
	// FilesOnly boots afresh with the files of the checkpoint.
	FilesOnly bool
	// Fresh says of a checkpoint that nobody has used the instance it was
	// taken of: the new one gets secrets of its own, such as a machine id.
	Fresh bool
	// Fork says which child of a fork the instance is; nil leaves what the
	// checkpoint says.
	Fork *Fork
	// Network is what its gateway does; nil denies everything.
	Network *Network
	// Mounts are shown in it, above the root. With a Checkpoint that is not
	// FilesOnly they must have the targets and kinds of those that the
	// checkpoint was taken with.
	Mounts []Mount
	// Label is kept with the instance, see [Status]; nil is none. The instance
	// does not see it.
	Label json.RawMessage `json:"-"`
}

// Mount shows a directory of the host, or one in memory, at Target. None is
// inside another. What is in a mount is no part of checkpoints and changes, but
// that memory is of a checkpoint's.
type Mount struct {
	// Source is the directory of the host, without symbolic links; empty is a
	// file system in the instance's memory of at most SizeBytes.
	Source    string
	Target    string
	SizeBytes int64 `json:",omitempty"`
	ReadOnly  bool  `json:",omitempty"`
}

// Fork is the place of a child among the children of one fork. With a Count of
// 0 it says that the instance is no fork.
type Fork struct {
	Index, Count int
	// SandboxID is the child's sandbox, ParentID the parent's.
	SandboxID, ParentID string
}

// Root is a root file system, shared read-only by all instances made from it.
type Root struct {
	// Digest identifies the content.
	Digest string
	// Dir is the directory that becomes "/". It is never written to.
	Dir string
	// Binds are directories and files of the host shown in the sandbox,
	// read-only and in this order: a later one may cover a part of an earlier
	// one.
	Binds []Bind
}

// Bind shows the host's Source at Target, which exists, as a directory or a file
// like Source, in the root or in an earlier bind.
type Bind struct {
	Source string
	Target string
	// Mask says that it is there to hide the Target. One that the host has
	// removed since needs no hiding.
	Mask bool `json:",omitempty"`
}

// Status is what an engine knows of an instance.
type Status struct {
	ID string
	// Running is false for an instance that has failed.
	Running bool
	// Reason says, for the sandbox's owner, why it failed.
	Reason string
	// Log is what the instance wrote last, for the server's log.
	Log string
	// Label is that of a running instance's [Spec]. Only [Engine.List] tells it.
	Label json.RawMessage
}

// Engine runs sandboxes. Its methods are safe for concurrent use.
type Engine interface {
	// Create makes an instance and returns when its agent answers. On an error,
	// or when ctx is cancelled, it leaves nothing behind. An error that is a
	// [sandbox.Error] is meant for the caller. An engine that knows what there is
	// of memory and disk refuses with [ErrNoRoom] what does not fit.
	Create(ctx context.Context, spec Spec) (Instance, error)
	// Open returns a running instance, or [ErrNotFound].
	Open(ctx context.Context, id string) (Instance, error)
	// List returns all instances that have not been destroyed.
	List(ctx context.Context) ([]Status, error)
	// Destroy ends an instance and removes all traces of it: when it returns
	// nil, its processes, mounts, cgroups and directories are gone. It may be
	// repeated; an unknown instance is not an error.
	Destroy(ctx context.Context, id string) error
	// Notify sets the function that is told, within two seconds, of each
	// instance that fails. It is called before the first Create or Open, once.
	Notify(failed func(Status))
	// Close lets go of all instances, which live on.
	Close() error
}

// Admitter is an [Engine] that knows what there is of memory and disk.
type Admitter interface {
	// Admit is [ErrNoRoom] if there is no room now for n instances with these
	// resources, at once, that continue from an instance or a checkpoint. It sets
	// nothing aside: [Engine.Create] asks again.
	Admit(ctx context.Context, n int, of Source, r sandbox.Resources) error
}

// Ender is an [Engine] whose instances end sooner than all traces of them are
// gone.
type Ender interface {
	// End ends an instance: when it returns nil, nothing in it runs any more and
	// nothing reaches or leaves it. It fails no more. [Engine.Destroy] has to
	// follow. It may be repeated; an unknown instance is not an error.
	End(ctx context.Context, id string) error
}

// Instance is a running sandbox.
type Instance interface {
	ID() string
	// Dial opens a byte stream to the agent inside. The far side is hostile.
	Dial(ctx context.Context) (net.Conn, error)
	// Stats tells what it uses, as the host sees it.
	Stats(ctx context.Context) (Stats, error)
	// SetLimits changes limits of the running instance; zero fields stay. What
	// this machine cannot enforce is returned in words.
	SetLimits(ctx context.Context, r sandbox.Resources) (unenforced []string, err error)
	// Unenforced lists the limits that this machine does not enforce.
	Unenforced() []string
}

// Prober is an [Instance] whose kernel can be asked for a sign of life.
type Prober interface {
	// Probe returns nil when the kernel of the instance has answered, whatever
	// the agent and other programs in it do. It fails with ctx.
	Probe(ctx context.Context) error
}

// DeletedMeter is an [Instance] that shows directories of the host and knows
// what is in them that nobody finds any more.
type DeletedMeter interface {
	// DeletedBytes tells what deleted files that programs of the sandbox still
	// have open take on disk, in bytes by the target of their mount.
	DeletedBytes(ctx context.Context) (map[string]int64, error)
}

// Stats is what an instance uses on the host. In JSON the numbers are strings, as
// they are 64 bits long.
type Stats struct {
	CPUNanos int64 `json:",string"`
	// MemoryBytes is the memory of all processes of the sandbox on the host,
	// PrivateBytes the part of it that belongs to no other process.
	MemoryBytes  int64 `json:",string"`
	PrivateBytes int64 `json:",string"`
	DiskBytes    int64 `json:",string"`
	NetRxBytes   int64 `json:",string"`
	NetTxBytes   int64 `json:",string"`
}
