// Package engine is the contract between the service and whatever runs sandboxes: package
// cells on one machine, package memory in tests.
//
// The life of an instance: [Engine.Create] makes it and returns when its agent answers.
// From then on it does not depend on the process that made it: a new engine over the same
// state finds it with [Engine.Open]. It ends with [Engine.Destroy], or by failing. A
// failed instance has no processes; it is reported once to the function given to
// [Engine.Notify], and by [Engine.List] until it is destroyed.
//
// Commands, files and everything else inside a sandbox use one connection to its agent.
// They are therefore implemented once for all engines, and an engine only carries bytes.
// Optional abilities of engines are interfaces that an Engine may also implement.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// ErrNotFound means that the engine has no such instance.
var ErrNotFound = errors.New("no such instance")

// ErrNoRoom means that the machine has too little memory or disk for an instance now. It
// is the cause of a [sandbox.Error] that states the numbers.
var ErrNoRoom = errors.New("no room for another instance")

// ErrUndecided is returned by the Commit of [CheckpointOptions] if it cannot tell whether
// the checkpoint was recorded.
var ErrUndecided = errors.New("it is not known whether the checkpoint was recorded")

// Spec describes an instance to be made.
type Spec struct {
	// ID is never reused; see [sandbox.Sandbox].
	ID        string
	Root      Root
	Resources sandbox.Resources
	Hostname  string
	// Env, User and WorkDir are the defaults of commands inside.
	Env     map[string]string
	User    string
	WorkDir string
	// Checkpoint is the checkpoint to continue from; if empty, the instance boots Root. Only
	// a [Checkpointer] supports it. Root and Resources must be those of the checkpoint,
	// except for processors, memory and processes.
	Checkpoint string
	// FilesOnly boots with the files of the checkpoint.
	FilesOnly bool
	// Fresh says that the checkpoint's instance was never used: the new one gets its own
	// secrets, such as a machine id.
	Fresh bool
	// Fork is the instance's position in a fork; nil keeps the checkpoint's.
	Fork *Fork
	// Network configures its gateway; nil denies everything.
	Network *Network
	// Mounts are mounted above the root. With a Checkpoint that is not FilesOnly, they must
	// have the targets and kinds of the checkpoint's mounts.
	Mounts []Mount
	// Place is a result of [Placer.Place], or empty: then the engine chooses.
	Place string `json:"-"`
	// Family is the family of a dedicated sandbox: the instance runs on a machine on which no
	// other family has instances. Empty is none. An engine with one place ignores it.
	Family string `json:"-"`
	// Label is kept with the instance, see [Status]; nil means none. The instance does not
	// see it.
	Label json.RawMessage `json:"-"`
}

// Mount shows a directory of the host, or one in memory, at Target. Mounts are not
// nested. Contents of mounts are not part of checkpoints and changes, except that mounts
// in memory are part of a checkpoint's memory.
type Mount struct {
	// Source is the directory of the host, without symbolic links; if empty, the mount is a
	// file system in the instance's memory of at most SizeBytes.
	Source    string
	Target    string
	SizeBytes int64 `json:",omitempty"`
	ReadOnly  bool  `json:",omitempty"`
}

// Fork is the position of a child among the children of one fork. If Count is 0, the
// instance is not a fork.
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
	// Binds are directories and files of the host that the sandbox sees read-only. They are
	// mounted in this order, so that a later one may cover a part of an earlier one.
	Binds []Bind
}

// Bind shows the host's Source at Target, which exists in the root or in an earlier bind
// and is a directory or a file, as Source is.
type Bind struct {
	Source string
	Target string
	// Mask says that the bind only hides Target. If the host has since removed Target, the
	// bind is omitted.
	Mask bool `json:",omitempty"`
}

// Status is the state of an instance.
type Status struct {
	ID string
	// Running is false for an instance that has failed.
	Running bool
	// Reason is why it failed, for the sandbox's owner.
	Reason string
	// Log is the end of the instance's log, for the server's log.
	Log string
	// Label is the Label of a running instance's [Spec]. Only [Engine.List] returns it.
	Label json.RawMessage
}

// Engine runs sandboxes. Its methods are safe for concurrent use.
type Engine interface {
	// Create makes an instance and returns when its agent answers. After an error, or if ctx
	// is cancelled, nothing is left behind. A [sandbox.Error] is meant for the caller. An
	// engine that knows the machine's memory and disk refuses instances for which there is
	// no room with [ErrNoRoom].
	Create(ctx context.Context, spec Spec) (Instance, error)
	// Open returns a running instance, or [ErrNotFound].
	Open(ctx context.Context, id string) (Instance, error)
	// List returns all instances that have not been destroyed.
	List(ctx context.Context) ([]Status, error)
	// Destroy ends an instance and removes all traces of it: when it returns nil, its
	// processes, mounts, cgroups and directories are gone. It may be repeated; an unknown
	// instance is not an error.
	Destroy(ctx context.Context, id string) error
	// Notify sets the function that is called within two seconds for each instance that
	// fails. Notify is called once, before the first Create or Open.
	Notify(failed func(Status))
	// Close releases all instances, which continue to run.
	Close() error
}

// Admitter is an [Engine] that knows the machine's memory and disk.
type Admitter interface {
	// Admit returns [ErrNoRoom] if there is no room now for n instances at once that continue
	// from an instance or a checkpoint. Of their spec, Resources and Family count. It reserves
	// nothing: [Engine.Create] checks again.
	Admit(ctx context.Context, n int, of Source, spec *Spec) error
}

// Placer is an [Engine] with several places for instances. A checkpoint is at the place of
// its instance, and instances that continue from it are made there.
type Placer interface {
	// Place chooses the place of a new instance with these resources that boots. It
	// reserves nothing, and returns "" if no place has room.
	Place(r sandbox.Resources) string
	// PlaceOf returns the place of an instance or a checkpoint, or "" if it is unknown.
	PlaceOf(of Source) string
}

// RootFetcher is an [Engine] that can bring the root of an instance that is elsewhere to this
// machine.
type RootFetcher interface {
	// LocalRoot returns a root as it is on this machine. It is fetched if it is not here.
	LocalRoot(ctx context.Context, r Root) (Root, error)
}

// Ender is an [Engine] that can end an instance before it removes all traces of it.
type Ender interface {
	// End ends an instance: when it returns nil, nothing in it runs any more, and its
	// network traffic has ended. Its end is not reported as a failure. [Engine.Destroy] must
	// follow. End may be repeated; an unknown instance is not an error.
	End(ctx context.Context, id string) error
}

// Instance is a running sandbox.
type Instance interface {
	ID() string
	// Dial opens a byte stream to the agent inside the sandbox, which is not trusted.
	Dial(ctx context.Context) (net.Conn, error)
	// Stats returns what the instance uses on the host.
	Stats(ctx context.Context) (Stats, error)
	// SetLimits changes limits of the running instance; zero fields change nothing. It
	// returns descriptions of the limits that this machine cannot enforce.
	SetLimits(ctx context.Context, r sandbox.Resources) (unenforced []string, err error)
	// Unenforced describes the limits that this machine does not enforce.
	Unenforced() []string
}

// Prober is an [Instance] whose kernel can be probed.
type Prober interface {
	// Probe returns nil if the kernel of the instance answers, whatever the agent and other
	// programs in it do. It fails when ctx ends.
	Probe(ctx context.Context) error
}

// DeletedMeter is an [Instance] that can measure deleted files in mounted directories of
// the host.
type DeletedMeter interface {
	// DeletedBytes returns the disk space of deleted files that programs of the sandbox
	// still hold open, in bytes by mount target.
	DeletedBytes(ctx context.Context) (map[string]int64, error)
}

// Stats is what an instance uses on the host. In JSON its 64-bit numbers are strings.
type Stats struct {
	CPUNanos int64 `json:",string"`
	// MemoryBytes is the memory of all processes of the sandbox on the host, and
	// PrivateBytes the part that they do not share with other processes.
	MemoryBytes  int64 `json:",string"`
	PrivateBytes int64 `json:",string"`
	// UnloadedBytes is memory that a restored sandbox has not loaded yet: it needs that
	// memory when programs touch it, or before its state is saved.
	UnloadedBytes int64 `json:",string"`
	DiskBytes     int64 `json:",string"`
	NetRxBytes    int64 `json:",string"`
	NetTxBytes    int64 `json:",string"`
}

// Fencer is an Engine whose machines can be lost while instances run on them. An instance
// that is fenced stops by itself before it is reported as ended because its machine cannot be
// reached, so that another instance can continue its sandbox.
type Fencer interface {
	// Fence makes sure that an instance is fenced from now on, and may be repeated. Instances
	// of the caller's own machine need not be.
	Fence(ctx context.Context, instanceID string) error
	// Lost reports whether an instance has ended because its machine is lost, and in that
	// case whether it was fenced. If not, it may still run there.
	Lost(instanceID string) (lost, stopped bool)
}

// Leaser is an Engine whose instances stop by themselves when their lease runs out, and go on
// when it is renewed.
type Leaser interface {
	// LeaseTime reads the clock of leases, which goes on while the machine sleeps.
	LeaseTime() (time.Duration, error)
	// Lease begins or renews the lease of an instance. A time before that of an earlier call
	// changes nothing.
	Lease(ctx context.Context, instanceID string, until time.Duration) error
}
