// Package tiered keeps the checkpoints of an engine in a bucket as well as on the local
// disk, which then is a cache of them.
//
// A checkpoint with an owner is uploaded in the background once it is safe on the local
// disk: its chunks first, its manifest last. The queue is not stored anywhere: what is on
// the disk and has no manifest in the bucket is to be uploaded. A local copy of each
// manifest tells what was uploaded, also while the bucket cannot be reached. A checkpoint
// that was uploaded can be evicted from the disk, and is fetched when it is needed. It is
// removed by a tombstone on the local disk, which lasts until its manifest is gone from the
// bucket. A sweep removes the chunks that no manifest has.
//
// Nothing that comes from the bucket is trusted: all of it is encrypted and authenticated
// with keys that the bucket's owner does not have.
package tiered

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/objects"
	"github.com/cove-sh/cove/sandbox"
)

// Inner is an engine whose checkpoints can be kept in a bucket. Its other abilities are
// passed on.
type Inner interface {
	engine.Engine
	engine.Portable
	engine.Admitter
	engine.Ender
	engine.Switch
	engine.Inquirer
	engine.NetworkLogger
}

// Roots has the root file systems of this machine.
type Roots interface {
	// Here returns a root as it is on this machine.
	Here(r engine.Root) engine.Root
	HasRoot(digest string) bool
	PackRoot(ctx context.Context, digest string, w io.Writer) error
	UnpackRoot(ctx context.Context, digest string, r io.Reader, check func() error) error
}

// Config configures an [Engine].
type Config struct {
	Engine Inner
	// Roots are copied too; nil copies none.
	Roots  Roots
	Bucket objects.Bucket
	// Key has [KeySize] bytes. Whoever has it and the bucket can read everything. It is not
	// retained.
	Key []byte
	// Installation identifies whose bucket it is.
	Installation string
	// Dir is the directory of what is known about the bucket; it is created if needed.
	Dir string
	// CacheBytes is how much of the disk checkpoints with an owner may take, as far as they
	// can be evicted; 0 is no bound.
	CacheBytes int64
	// UploadBytes bounds uploads, in bytes a second; 0 is no bound.
	UploadBytes int64
	// Build returns what checkpoints of this build of Cove share. It is stored ahead of need,
	// so that the next build of the server can store checkpoints of nodes that still run this
	// one; nil stores nothing.
	Build func() ([]Shared, error)
	Log   *slog.Logger

	// step is called before each change of the disk or the bucket; its error prevents it.
	// Tests set it.
	step func(name string) error
}

// Engine is an engine whose checkpoints are in a bucket too.
type Engine struct {
	Inner
	scattered engine.Scattered     // Inner, if it has several machines, or nil
	early     engine.EarlyImporter // Inner, if it is one, or nil
	cfg       Config
	vessel    *vessel
	files     files
	token     string // identifies this process in the bucket
	// alone says that no other machine has used the bucket since this one did. It is for
	// [Engine.connect], of which there is one at a time.
	alone bool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // wakes the loop of [Engine.run]; has room for one
	ahead  chan struct{} // wakes [Engine.storeAhead]; has room for one
	cutOff chan struct{} // wakes [Engine.finishLoop]; has room for one
	looks  atomic.Bool   // finishLoop will be woken after a while

	// collecting is held by a sweep, and shared by uploads: neither sees half of the other.
	collecting sync.RWMutex

	mu       sync.Mutex
	entries  map[string]*entry // by checkpoint; guarded by mu
	fetching map[string]*fetch // guarded by mu
	// fetchingRoots are those of templates, by digest. Guarded by mu.
	fetchingRoots map[string]*rootFetch
	// more is closed and replaced when there may be more to upload. Guarded by mu.
	more chan struct{}
	// progress is closed and replaced when an upload has ended, in whichever way. Guarded by
	// mu.
	progress chan struct{}
	dirty    bool // guarded by mu; the bucket may have something to be collected
	// unsure says that it is not known yet of which checkpoints instances need a rest. Guarded
	// by mu.
	unsure bool
	// connected says that the bucket is known to be this installation's, and what it has.
	// Guarded by mu.
	connected bool
	// rootsInUse returns the roots that sandboxes need; nil if nobody knows. Guarded by mu.
	rootsInUse func(context.Context) (map[string]bool, error)
	// roots are those that sandboxes of this process have, by digest, and builds those that the
	// bucket is to keep. Guarded by mu.
	roots  map[string]usedRoot
	builds [][]string
	// since is when the bucket was found unreachable, and failure why. Guarded by mu.
	since   time.Time
	failure error
}

// entry is a checkpoint with an owner.
type entry struct {
	engine.Checkpoint
	local, stored, removed bool
	// pins is how many use it, so that it must stay on the disk, and in the bucket.
	pins int
	// cut says that instances need the rest of it, and that the fetch of it was cut off; cuts
	// is how often, one after another.
	cut  bool
	cuts int
	used time.Time
	// turns has one place, for an instance for which the checkpoint is brought to its machine;
	// nil until there is such an instance.
	turns *semaphore.Weighted
	// evicting is closed when its eviction from the disk is over; nil if there is none.
	evicting chan struct{}
	// cancel ends the upload in progress; it is nil if there is none.
	cancel   context.CancelFunc
	failures int
	failure  error     // the last of them
	again    time.Time // when the next upload may be tried
}

var (
	_ engine.Engine       = (*Engine)(nil)
	_ engine.Checkpointer = (*Engine)(nil)
	_ engine.Replicator   = (*Engine)(nil)
	_ engine.Placer       = (*Engine)(nil)
	_ engine.RootFetcher  = (*Engine)(nil)
)

// New returns an engine over another one, which it closes. [Engine.Start] must be called
// before it is used.
func New(cfg Config) (*Engine, error) {
	keys, err := newKeyring(cfg.Key)
	if err != nil {
		return nil, err
	}
	zip, err := newPress()
	if err != nil {
		return nil, err
	}
	if cfg.step == nil {
		cfg.step = func(string) error { return nil }
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	e := &Engine{
		Inner: cfg.Engine, cfg: cfg, token: newToken(), files: files{dir: cfg.Dir, step: cfg.step},
		vessel: &vessel{bucket: stepped{cfg.Bucket, cfg.step}, keys: keys, press: zip, slots: semaphore.NewWeighted(requests), urgent: semaphore.NewWeighted(urgent)},
		wake:   make(chan struct{}, 1), entries: map[string]*entry{}, roots: map[string]usedRoot{}, ahead: make(chan struct{}, 1), cutOff: make(chan struct{}, 1), fetching: map[string]*fetch{}, fetchingRoots: map[string]*rootFetch{}, dirty: true, more: make(chan struct{}), progress: make(chan struct{}),
	}
	if cfg.UploadBytes > 0 {
		e.vessel.limit = rate.NewLimiter(rate.Limit(cfg.UploadBytes), int(max(cfg.UploadBytes, maxSealedChunk)))
	}
	if e.scattered, _ = cfg.Engine.(engine.Scattered); e.scattered != nil {
		e.scattered.OnReach(func() {
			e.finishSoon()
			e.mu.Lock()
			defer e.mu.Unlock()
			e.announce()
		})
	}
	e.early, _ = cfg.Engine.(engine.EarlyImporter)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if err := e.files.open(); err != nil {
		return nil, err
	}
	return e, nil
}

// stepped announces changes of a bucket.
type stepped struct {
	objects.Bucket
	step func(string) error
}

func (b stepped) Put(ctx context.Context, name string, data []byte) error {
	if err := b.step("put " + filepath.Dir(name)); err != nil {
		return err
	}
	return b.Bucket.Put(ctx, name, data)
}

func (b stepped) Delete(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := b.step("delete " + filepath.Dir(name)); err != nil {
			return err
		}
		if err := b.Bucket.Delete(ctx, []string{name}); err != nil {
			return err
		}
	}
	return nil
}

// Start finds what is on the disk, and connects with the bucket in the background. It
// fails if the bucket is known to be of another installation.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.load(ctx); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, connectTimeout)
	err := e.connect(short)
	cancel()
	switch {
	case errors.Is(err, errForeign):
		return err
	case err != nil && ctx.Err() == nil:
		e.note(err)
	}
	e.wg.Go(e.run)
	if e.early != nil {
		e.finishSoon()
		e.wg.Go(e.finishLoop)
	}
	for range uploads {
		e.wg.Go(e.uploadLoop)
	}
	if e.cfg.Build != nil || e.cfg.Roots != nil {
		e.wg.Go(e.storeAhead)
	}
	return ctx.Err()
}

// load makes the entries of what is on the disk.
func (e *Engine) load(ctx context.Context) error {
	stored, err := e.files.manifests(e.vessel)
	if err != nil {
		return err
	}
	removed, err := e.files.tombstones()
	if err != nil {
		return err
	}
	kept, err := e.Inner.Checkpoints(ctx)
	if err != nil {
		return err
	}
	var cut []string
	unsure := false
	if e.early != nil {
		cut, err = e.early.Unfinished(ctx)
		unsure = err != nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, m := range stored {
		e.entries[id] = &entry{Checkpoint: *m.Checkpoint, stored: true, used: m.used}
	}
	for _, c := range kept {
		if c.Owner == "" {
			continue
		}
		if e.entries[c.ID] == nil {
			e.entries[c.ID] = &entry{Checkpoint: c, used: c.CreatedAt}
		}
		e.entries[c.ID].local = true
	}
	for _, id := range removed {
		if e.entries[id] == nil {
			e.entries[id] = &entry{Checkpoint: engine.Checkpoint{ID: id}}
		}
		e.entries[id].removed = true
	}
	e.unsure = unsure
	for _, id := range cut {
		if ent := e.entries[id]; ent != nil {
			ent.local, ent.cut = false, true
		}
	}
	return nil
}

// Close implements [engine.Engine].
func (e *Engine) Close() error {
	e.cancel()
	e.wg.Wait()
	return e.Inner.Close()
}

// Create implements [engine.Engine]. An instance continues from a checkpoint where the
// checkpoint is. If that machine is away, is being emptied or has no room, and the bucket
// has the checkpoint, it continues on another one.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (i engine.Instance, err error) {
	defer func() {
		if err == nil && e.scattered != nil {
			e.KeepRoot(spec.Root.Digest)
		}
	}()
	if spec.Checkpoint == "" {
		return e.Inner.Create(ctx, spec)
	}
	// The checkpoint may move, for somebody else, just when it is used.
	for try, elsewhere := 0, false; try < createTries; try++ {
		var again bool
		i, again, err = e.createFrom(ctx, spec, elsewhere)
		if err == nil || !again || ctx.Err() != nil {
			break
		}
		// A machine may have lost it without the knowledge of the engine.
		elsewhere = errors.Is(err, engine.ErrNoRoom) || try > 0 && sandbox.CodeOf(err) == sandbox.CodeNotFound
	}
	return i, err
}

// createTries is how many machines are tried for an instance.
const createTries = 3

// createFrom makes an instance from a checkpoint. Again reports whether that may succeed on
// another machine.
func (e *Engine) createFrom(ctx context.Context, spec engine.Spec, elsewhere bool) (i engine.Instance, again bool, err error) {
	next, err := e.turn(ctx, spec.Checkpoint, need{spec: &spec})
	if err != nil {
		return nil, false, err
	}
	defer next()
	release, err := e.acquire(ctx, spec.Checkpoint, need{&spec, elsewhere})
	if err != nil {
		return nil, false, err
	}
	defer release()
	if spec.Root, err = e.root(ctx, spec.Root); err != nil {
		return nil, false, err
	}
	i, err = e.Inner.Create(ctx, spec)
	again = err != nil && e.scattered != nil && e.isStored(spec.Checkpoint) &&
		(errors.Is(err, engine.ErrNoRoom) || sandbox.CodeOf(err) == sandbox.CodeNotFound || e.astray(spec.Checkpoint, need{spec: &spec}))
	return i, again, err
}

func (e *Engine) isStored(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	ent := e.entries[id]
	return ent != nil && ent.stored && !ent.removed
}

// Admit implements [engine.Admitter].
func (e *Engine) Admit(ctx context.Context, n int, of engine.Source, spec *engine.Spec) error {
	if of.Checkpoint == "" {
		return e.Inner.Admit(ctx, n, of, spec)
	}
	release, err := e.acquire(ctx, of.Checkpoint, need{spec: spec})
	if err != nil {
		return err
	}
	defer release()
	return e.Inner.Admit(ctx, n, of, spec)
}

// Fence implements [engine.Fencer].
func (e *Engine) Fence(ctx context.Context, instanceID string) error {
	if f, ok := e.Inner.(engine.Fencer); ok {
		return f.Fence(ctx, instanceID)
	}
	return nil
}

// Lost implements [engine.Fencer].
func (e *Engine) Lost(instanceID string) (lost, stopped bool) {
	if f, ok := e.Inner.(engine.Fencer); ok {
		return f.Lost(instanceID)
	}
	return false, false
}

// Changes implements [engine.Checkpointer].
func (e *Engine) Changes(ctx context.Context, of engine.Source) (io.ReadCloser, error) {
	if of.Checkpoint == "" {
		return e.Inner.Changes(ctx, of)
	}
	release, err := e.acquire(ctx, of.Checkpoint, need{})
	if err != nil {
		return nil, err
	}
	defer release()
	return e.Inner.Changes(ctx, of)
}

// Checkpoint implements [engine.Checkpointer].
func (e *Engine) Checkpoint(ctx context.Context, instance, id string, opts engine.CheckpointOptions) (engine.Checkpoint, error) {
	c, err := e.Inner.Checkpoint(ctx, instance, id, opts)
	if err == nil && c.Owner != "" {
		e.added(c)
	}
	return c, err
}

// added notes a checkpoint on the disk that is not in the bucket.
func (e *Engine) added(c engine.Checkpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.Owner != "" && e.entries[c.ID] == nil {
		e.entries[c.ID] = &entry{Checkpoint: c, local: true, used: time.Now()}
		e.announce()
	}
}

// Export implements [engine.Portable].
func (e *Engine) Export(ctx context.Context, id string) (*engine.Export, error) {
	release, err := e.acquire(ctx, id, need{})
	if err != nil {
		return nil, err
	}
	defer release()
	return e.Inner.Export(ctx, id)
}

// Checkpoints implements [engine.Checkpointer]. It lists those that are only in the bucket,
// too.
func (e *Engine) Checkpoints(ctx context.Context) ([]engine.Checkpoint, error) {
	list, err := e.Inner.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	here := make(map[string]bool, len(list))
	for _, c := range list {
		here[c.ID] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, ent := range e.entries {
		if ent.stored && !ent.removed && !here[id] {
			list = append(list, ent.Checkpoint)
		}
	}
	return list, nil
}

// Kept implements [engine.Replicator].
func (e *Engine) Kept(id string) engine.Place {
	e.mu.Lock()
	defer e.mu.Unlock()
	ent := e.entries[id]
	switch {
	case ent == nil && !e.connected:
		return engine.PlaceUnknown
	case ent == nil || ent.removed:
		return ""
	case !ent.stored && e.scattered != nil && e.scattered.Standing(id) == engine.StandingNone:
		return "" // the machine that had it has lost it
	case !ent.stored:
		return engine.PlacePending
	case ent.local && !e.astray(id, need{}):
		return engine.PlaceStored
	}
	return engine.PlaceRemote
}

// Waits implements [engine.Replicator].
func (e *Engine) Waits(id string) (waits bool, failure error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ent := e.entries[id]
	if ent == nil || ent.stored || ent.removed {
		return false, nil
	}
	return true, errors.Join(e.failure, ent.failure)
}

// Reach implements [engine.Replicator].
func (e *Engine) Reach(ctx context.Context) error {
	_, err := e.readHolder(ctx)
	if ctx.Err() == nil {
		e.note(err)
	}
	return err
}

// RemoveCheckpoint implements [engine.Checkpointer]. What is in the bucket is removed
// later, even if the bucket cannot be reached now.
func (e *Engine) RemoveCheckpoint(ctx context.Context, id string) error {
	if err := e.bury(id); err != nil {
		return err
	}
	return e.Inner.RemoveCheckpoint(ctx, id)
}

// bury notes that a checkpoint is to be removed from the bucket.
func (e *Engine) bury(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ent := e.entries[id]
	if ent == nil {
		return nil // it has no owner
	}
	if !ent.removed {
		if err := e.files.bury(id); err != nil {
			return err
		}
	}
	ent.removed, ent.local = true, false
	if ent.cancel != nil {
		ent.cancel()
	}
	e.poke()
	return nil
}

// SetAside implements [engine.Checkpointer].
func (e *Engine) SetAside(ctx context.Context, id, to string) error {
	release, err := e.acquire(ctx, id, need{})
	if err != nil {
		return err
	}
	defer release()
	if err := e.Inner.SetAside(ctx, id, to); err != nil {
		return err
	}
	return e.bury(id)
}

// BringBack implements [engine.Checkpointer].
func (e *Engine) BringBack(ctx context.Context, id, from string) (engine.Checkpoint, error) {
	if e.isRemoved(id) {
		return engine.Checkpoint{}, sandbox.Errorf(sandbox.CodeUnavailable, "the checkpoint is still being removed from the object store; try again when that can be reached")
	}
	c, err := e.Inner.BringBack(ctx, id, from)
	if err == nil {
		e.added(c)
	}
	return c, err
}

func (e *Engine) isRemoved(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	ent := e.entries[id]
	return ent != nil && ent.removed
}

// announce wakes the loops of uploads. The caller holds mu.
func (e *Engine) announce() {
	close(e.more)
	e.more = make(chan struct{})
}

// poke wakes the loop of [Engine.run].
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
