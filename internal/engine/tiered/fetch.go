package tiered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// fetch is a checkpoint that is being fetched, for all who wait for it.
type fetch struct {
	spec *engine.Spec // of the first who needs it, or nil
	// usable is closed when instances can continue from it, if that is before done.
	usable chan struct{}
	done   chan struct{}
	err    error // set before done is closed
}

func newFetch(spec *engine.Spec) *fetch {
	return &fetch{spec: spec, usable: make(chan struct{}), done: make(chan struct{})}
}

// early reports whether instances could continue before all was fetched.
func (f *fetch) early() bool {
	select {
	case <-f.usable:
		return true
	default:
		return false
	}
}

// whenUsable is closed when a checkpoint can be used for a need before all of it was fetched;
// nil if it cannot.
func (f *fetch) whenUsable(n need) <-chan struct{} {
	if n.spec == nil || n.spec.FilesOnly || n.elsewhere {
		return nil
	}
	return f.usable
}

// errRemoved means that a checkpoint was removed while it was fetched.
var errRemoved = errors.New("it was removed meanwhile")

// need says what a checkpoint is needed for.
type need struct {
	// spec is that of the instance that is to continue from it; nil to read it only.
	spec *engine.Spec
	// elsewhere says that the machine that has it has no room.
	elsewhere bool
}

// acquire makes sure that a checkpoint is on the disk of a machine where it can be used, and
// keeps it there until release is called. The fetch goes on if the caller leaves, so that
// the next try finds it done.
func (e *Engine) acquire(ctx context.Context, id string, n need) (release func(), err error) {
	if err := e.awaitStored(ctx, id, n); err != nil {
		return nil, err
	}
	for {
		release, again, err := e.acquireOnce(ctx, id, n)
		if err != nil || !again {
			return release, err
		}
		release()
	}
}

// acquireOnce is acquire. Again reports that somebody else has had the checkpoint fetched to a
// machine that is not for this need.
func (e *Engine) acquireOnce(ctx context.Context, id string, n need) (release func(), again bool, err error) {
	e.mu.Lock()
	ent := e.entries[id]
	if ent == nil && !e.connected && validID.MatchString(id) && !e.isHere(ctx, id) {
		// The bucket may have it: what it has is not known yet.
		ent = &entry{Checkpoint: engine.Checkpoint{ID: id}, stored: true}
		e.entries[id] = ent
	}
	if ent == nil || ent.removed {
		e.mu.Unlock()
		return func() {}, false, nil // the engine knows
	}
	ent.pins++
	ent.used = time.Now()
	e.files.touch(id, ent.used)
	release = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		ent.pins--
		e.poke() // it may be evicted now
	}
	f := e.fetching[id]
	if f == nil && ent.local && (!ent.stored || !n.elsewhere && !e.astray(id, n)) {
		e.mu.Unlock()
		return release, false, nil
	}
	mine := f == nil
	if mine {
		f = newFetch(n.spec)
		e.fetching[id] = f
		bring := e.bring
		if ent.cut && !e.astray(id, n) {
			bring = e.finish
			close(f.usable)
		}
		e.wg.Go(func() { e.fetch(id, ent, f, bring) })
	}
	// Where somebody else has it brought may not be for this need.
	suits := mine || e.suits(id, ent, f, n)
	e.mu.Unlock()
	usable := f.whenUsable(n)
	if !suits {
		usable = nil
	}
	select {
	case <-usable:
	case <-f.done:
		err = f.err
	case <-ctx.Done():
		err = sandbox.Wrap(sandbox.CodeUnavailable, context.Cause(ctx), "the kept state is still being fetched from the object store; try again in a while")
	}
	switch {
	case ctx.Err() != nil && err != nil, err != nil && suits:
		release()
		return nil, false, err
	case !suits:
		return release, true, nil
	case mine || !e.foreign(id, n):
		return release, false, nil
	}
	// It was brought to a machine that is not for this need after all: another fetch can begin
	// when this one has ended.
	select {
	case <-f.done:
		return release, true, nil
	case <-ctx.Done():
		release()
		return nil, false, sandbox.Wrap(sandbox.CodeUnavailable, context.Cause(ctx), "the kept state is still being fetched from the object store; try again in a while")
	}
}

// astray reports whether a checkpoint that the engine has cannot be used where it is.
func (e *Engine) astray(id string, n need) bool {
	if e.scattered == nil {
		return false
	}
	switch e.scattered.Standing(id) {
	case engine.StandingReady:
		return e.foreign(id, n)
	case engine.StandingDraining, engine.StandingLeaving:
		return n.spec != nil
	}
	return true
}

// isHere reports whether the engine has a checkpoint itself.
func (e *Engine) isHere(ctx context.Context, id string) bool {
	list, err := e.Inner.Checkpoints(ctx)
	return err != nil || slices.ContainsFunc(list, func(c engine.Checkpoint) bool { return c.ID == id })
}

// bringer makes a checkpoint on the disk, and calls usable if instances can continue from it
// before all of it is there.
type bringer func(ctx context.Context, id string, f *fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error)

// fetch fetches a checkpoint, and announces the result. What the entry says may be learned
// anew meanwhile, so that it is read under mu only.
func (e *Engine) fetch(id string, ent *entry, f *fetch, bring bringer) {
	e.mu.Lock()
	ent.pins++
	need, evicting := ent.SizeBytes, ent.evicting
	e.mu.Unlock()
	if evicting != nil {
		<-evicting
	}
	if !f.early() {
		e.evict(need)
	}
	began := time.Now()
	c, err := bring(e.ctx, id, f, func(c engine.Checkpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		ent.Checkpoint = c
		e.cfg.Log.Info("a checkpoint can be used, and the rest of it is fetched from the object store", "checkpoint", id, "took", time.Since(began).Round(time.Millisecond))
		close(f.usable)
	})
	if err == nil && e.isRemoved(id) { // mu is not held: a node may take its time
		err = errors.Join(errRemoved, e.Inner.RemoveCheckpoint(e.ctx, id))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ent.pins--
	delete(e.fetching, id)
	if ent.removed {
		err = cmp.Or(err, errRemoved)
		e.poke() // what is left of it is removed now that nothing pins it
	}
	switch {
	case err != nil && f.early():
		f.err = e.forCaller("the kept state", err)
		e.endEarly(ent, err)
	case err != nil:
		f.err = e.forCaller("the kept state", err)
		e.cfg.Log.Error("fetch a checkpoint from the object store", "checkpoint", id, "error", err)
		if !ent.removed && (!ent.stored || ent.Owner == "") { // it was only supposed to be there
			delete(e.entries, id)
		}
	default:
		ent.Checkpoint, ent.local, ent.cuts = c, true, 0
		if f.early() {
			e.finishSoon() // another machine may need it, too
		}
		e.cfg.Log.Info("fetched a checkpoint from the object store", "checkpoint", id, "bytes", c.SizeBytes, "took", time.Since(began).Round(time.Millisecond))
	}
	close(f.done)
}

// endEarly ends the fetch of a checkpoint that instances continue from. The caller holds mu.
func (e *Engine) endEarly(ent *entry, err error) {
	switch {
	case errors.Is(err, errRemoved) || errors.Is(err, engine.ErrUnneeded):
		e.cfg.Log.Info("the rest of a checkpoint is fetched, or not needed any more", "checkpoint", ent.ID)
		e.finishSoon() // another machine may need it
	case errors.Is(err, engine.ErrLost):
		e.cfg.Log.Error("the rest of a checkpoint is lost; sandboxes that need it end", "checkpoint", ent.ID, "error", err)
		e.finishSoon()
	case e.ctx.Err() == nil:
		ent.cut = true
		e.cfg.Log.Warn("fetch the rest of a checkpoint; it is tried again", "checkpoint", ent.ID, "error", err)
		time.AfterFunc(min(longestFinishPause, finishPause<<min(ent.cuts, 16)), e.finishSoon)
		ent.cuts++
	}
}

// manifestOf returns the manifest of a checkpoint.
func (e *Engine) manifestOf(ctx context.Context, id string) (*manifest, error) {
	m, err := e.files.manifest(e.vessel, id)
	if err == nil {
		return m, nil
	}
	object := checkpointObject(id)
	m, sealed, err := e.vessel.manifest(ctx, object, id)
	if err != nil {
		return nil, err
	}
	if m.Checkpoint == nil {
		return nil, damaged(object, errors.New("it is of no checkpoint"))
	}
	return m, e.files.keep(id, sealed)
}

// bring fetches a checkpoint with what it needs. Each chunk is checked. If anything is
// missing or changed, nothing is kept.
func (e *Engine) bring(ctx context.Context, id string, f *fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	m, err := e.manifestOf(ctx, id)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	if m.Root != "" && e.cfg.Roots != nil {
		if err := e.fetchRoot(ctx, m.Root, m.Checkpoint.Root.Digest); err != nil {
			return engine.Checkpoint{}, err
		}
	}
	if err := e.cfg.step("import"); err != nil {
		return engine.Checkpoint{}, err
	}
	fetch := func(want engine.ExportFile, to io.WriterAt) error { return e.fetchFile(ctx, m, want, to) }
	var c engine.Checkpoint
	switch {
	case e.scattered != nil:
		c, err = e.scattered.ImportFor(ctx, f.spec, *m.Checkpoint, m.Description, fetch, usable)
	case e.early != nil:
		c, err = e.early.ImportEarly(ctx, *m.Checkpoint, m.Description, fetch, usable)
	default:
		c, err = e.Inner.Import(ctx, *m.Checkpoint, m.Description, fetch)
	}
	if err == nil && (c.ID != id || c.Owner != m.Checkpoint.Owner) {
		err = errors.Join(fmt.Errorf("%w: it is another checkpoint", errDamaged), e.Inner.RemoveCheckpoint(ctx, c.ID))
	}
	return c, err
}

// fetchFile writes a file of a checkpoint. The error is an [engine.ErrLost] if the file is in
// use and damaged.
func (e *Engine) fetchFile(ctx context.Context, m *manifest, want engine.ExportFile, to io.WriterAt) error {
	err := e.writeFile(ctx, m, want, to)
	if _, used := to.(engine.PartWriter); used && errors.Is(err, errDamaged) {
		return fmt.Errorf("%w: %w", engine.ErrLost, err)
	}
	return err
}

// writeFile is fetchFile. A file that is to be a shared one must be: what is shared was stored
// by a machine that all trust.
func (e *Engine) writeFile(ctx context.Context, m *manifest, want engine.ExportFile, to io.WriterAt) error {
	f, team := m.file(want.Name), m.Checkpoint.Owner
	if f == nil || f.Shared != want.Shared {
		return fmt.Errorf("%w: %w: %q", errDamaged, engine.ErrNoFile, want.Name)
	}
	if f.Shared != "" {
		team = ""
		shared, err := e.vessel.shared(ctx, f.Shared)
		if err != nil {
			return err
		}
		f = shared
	}
	if f.Size != want.Size {
		return fmt.Errorf("%w: %w: the file %q has %d bytes instead of %d", errDamaged, engine.ErrNoFile, want.Name, f.Size, want.Size)
	}
	if w, ok := to.(engine.PartWriter); ok {
		return e.getEarly(ctx, team, f, w)
	}
	return e.vessel.get(ctx, team, f, to)
}

// forCaller explains why something could not be fetched.
func (e *Engine) forCaller(what string, err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, errDamaged):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, what+" in the object store is damaged or missing and cannot be restored; use another snapshot, see the server's log for details")
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full, so that "+what+" cannot be fetched: delete snapshots or sandboxes and try again")
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, what+" is in the object store, which could not be read; try again, see the server's log for details")
}

// evictTimeout bounds one call of evict: a fetch waits for it, and a node may be silent.
const evictTimeout = 2 * time.Minute

// evict removes checkpoints from the disk that are in the bucket and were not used
// recently, until those on the disk and more bytes fit into the cache. One that cannot be
// removed is left out.
func (e *Engine) evict(more int64) {
	if e.cfg.CacheBytes <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, evictTimeout)
	defer cancel()
	failed := map[string]bool{}
	for ctx.Err() == nil {
		id := e.evictable(more, failed)
		if id == "" {
			return
		}
		err := e.cfg.step("evict")
		if err == nil {
			err = e.Inner.RemoveCheckpoint(ctx, id)
		}
		e.mu.Lock()
		ent := e.entries[id]
		close(ent.evicting)
		ent.evicting, ent.local = nil, err != nil
		e.mu.Unlock()
		if err != nil {
			e.cfg.Log.Error("remove a checkpoint from the cache of the object store", "checkpoint", id, "error", err)
			failed[id] = true
			continue
		}
		e.cfg.Log.Debug("removed a checkpoint from the cache of the object store", "checkpoint", id)
	}
}

// evictable returns the checkpoint to be evicted next, which from now on counts as not on
// the disk; or "" if there is none but those that failed, or no need.
func (e *Engine) evictable(more int64, failed map[string]bool) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := more
	var all []*entry
	for _, ent := range e.entries {
		if ent.local {
			total += ent.SizeBytes
		}
		if ent.local && ent.stored && ent.pins == 0 && ent.cancel == nil && !ent.removed && !failed[ent.ID] {
			all = append(all, ent)
		}
	}
	if total <= e.cfg.CacheBytes || len(all) == 0 {
		return ""
	}
	oldest := slices.MinFunc(all, func(a, b *entry) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.ID, b.ID))
	})
	oldest.local, oldest.evicting = false, make(chan struct{})
	return oldest.ID
}
