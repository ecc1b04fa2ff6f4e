package tiered

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/objects"
)

// errForeign means that the bucket is another installation's.
var errForeign = errors.New("the object store has the checkpoints of another installation, or the key of this one is another; " +
	"use another bucket or prefix, or restore the database and the key of secrets that belong to it")

// errReplaced means that another daemon has taken over the bucket.
var errReplaced = errors.New("another daemon uses the object store now")

// grace is how old an object must be before it is collected. Uploads of this process and
// sweeps exclude each other; this is for what a killed process has uploaded, which its
// successor continues.
const grace = time.Hour

// holderObject says whose bucket it is; clockObject tells the bucket's time.
const (
	holderObject = "installation"
	clockObject  = "clock"
	maxHolder    = 4 << 10
)

// holder is the content of holderObject.
type holder struct {
	Version      int    `json:"version"`
	Installation string `json:"installation"`
	// Token identifies the process that uses the bucket.
	Token string `json:"token"`
}

// readHolder returns who has the bucket, or a zero value if nobody has.
func (e *Engine) readHolder(ctx context.Context) (holder, error) {
	var h holder
	sealed, err := e.vessel.bucket.Get(ctx, holderObject, maxHolder)
	switch {
	case errors.Is(err, objects.ErrNotFound):
		return h, nil
	case errors.Is(err, objects.ErrTooLarge):
		return h, errForeign
	case err != nil:
		return h, err
	}
	s, err := e.vessel.keys.of("")
	if err != nil {
		return h, err
	}
	data, err := s.open(holderObject, sealed)
	if err != nil {
		return h, errForeign
	}
	if err := json.Unmarshal(data, &h); err != nil || h.Installation != e.cfg.Installation {
		return h, errForeign
	}
	if h.Version != manifestVersion {
		return h, fmt.Errorf("the object store has the format %d, this program knows %d", h.Version, manifestVersion)
	}
	return h, nil
}

// connect takes the bucket, and learns what it has.
func (e *Engine) connect(ctx context.Context) error {
	before, err := e.readHolder(ctx)
	if err != nil {
		return err
	}
	s, err := e.vessel.keys.of("")
	if err != nil {
		return err
	}
	data, err := json.Marshal(holder{manifestVersion, e.cfg.Installation, e.token})
	if err != nil {
		return err
	}
	if err := e.vessel.bucket.Put(ctx, holderObject, s.seal(holderObject, data)); err != nil {
		return err
	}
	if before.Token != e.token { // this is no second try
		// Another server may have removed checkpoints meanwhile.
		e.alone = before.Token == "" || e.files.wasLast(before.Token)
	}
	has := map[string]bool{}
	for info, err := range e.vessel.bucket.List(ctx, "checkpoints/") {
		if err != nil {
			return err
		}
		if id := path.Base(info.Name); validID.MatchString(id) && checkpointObject(id) == info.Name {
			has[id] = true
		}
	}
	if err := e.learn(ctx, has); err != nil {
		return err
	}
	if err := e.files.setLast(e.token); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.connected = true
	e.announce()
	return nil
}

// learn compares the bucket with what this machine remembers of it.
func (e *Engine) learn(ctx context.Context, has map[string]bool) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(requests)
	for _, id := range e.unknown(has) {
		g.Go(func() error {
			m, err := e.manifestOf(gctx, id)
			if errors.Is(err, errDamaged) {
				e.cfg.Log.Error("a checkpoint in the object store cannot be used", "checkpoint", id, "error", err)
				return nil
			}
			if err == nil {
				e.mu.Lock()
				defer e.mu.Unlock()
				ent := e.entries[id]
				if ent == nil {
					ent = &entry{used: m.Checkpoint.CreatedAt}
					e.entries[id] = ent
				}
				if !ent.local {
					ent.Checkpoint = *m.Checkpoint
				}
				ent.stored = true
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return e.dropLost(has)
}

// unknown returns the checkpoints of the bucket that this machine does not know.
func (e *Engine) unknown(has map[string]bool) (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range has {
		if ent := e.entries[id]; ent == nil || !ent.removed && (!ent.stored || ent.Owner == "") {
			ids = append(ids, id)
		}
	}
	return ids
}

// dropLost forgets the manifests that the bucket does not have any more. What is still on
// the disk is uploaded again.
func (e *Engine) dropLost(has map[string]bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, ent := range e.entries {
		if has[id] || !ent.stored || ent.removed {
			continue
		}
		if e.alone || ent.local {
			e.cfg.Log.Error("the object store has lost a checkpoint", "checkpoint", id, "kept", ent.local)
		}
		if err := e.files.forget(id); err != nil {
			return err
		}
		ent.stored = false
		if !ent.local && ent.pins == 0 {
			delete(e.entries, id)
		}
	}
	return nil
}

// reconnect connects unless that was done. It reports whether it used the bucket.
func (e *Engine) reconnect() (used bool, err error) {
	e.mu.Lock()
	connected := e.connected
	e.mu.Unlock()
	if connected {
		return false, nil
	}
	return true, e.connect(e.ctx)
}

// removeBuried removes the manifests of checkpoints that were removed, and then their
// tombstones. Their chunks are swept later. It reports whether it used the bucket, and
// whether it has skipped some that their machine did not remove.
func (e *Engine) removeBuried(ctx context.Context) (used, skipped bool, err error) {
	buried := e.buried()
	gone := e.removeInner(ctx, buried)
	for _, id := range gone {
		used = true
		if err := e.vessel.bucket.Delete(ctx, []string{checkpointObject(id)}); err != nil {
			return used, true, err
		}
		if err := errors.Join(e.files.forget(id), e.files.dig(id)); err != nil {
			return used, true, err
		}
		e.mu.Lock()
		delete(e.entries, id)
		e.dirty = true
		e.mu.Unlock()
	}
	return used, len(gone) < len(buried), nil
}

// removeInner removes checkpoints from the machines that have them, several at the same
// time: a node may be silent. It returns those that are gone.
func (e *Engine) removeInner(ctx context.Context, ids []string) (gone []string) {
	done := make([]bool, len(ids))
	var g errgroup.Group
	g.SetLimit(requests)
	for i, id := range ids {
		g.Go(func() error {
			err := e.Inner.RemoveCheckpoint(ctx, id)
			if done[i] = err == nil; err != nil && ctx.Err() == nil {
				e.cfg.Log.Warn("a checkpoint is removed from the object store later, because its machine has not removed it", "checkpoint", id, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait()
	for i, id := range ids {
		if done[i] {
			gone = append(gone, id)
		}
	}
	return gone
}

// buried returns the checkpoints whose manifests are to be removed from the bucket.
func (e *Engine) buried() (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unsure {
		return nil
	}
	for id, ent := range e.entries {
		if ent.removed && ent.cancel == nil && ent.pins == 0 && !ent.cut {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweep removes what no manifest refers to: first what is shared, then chunks. If a
// manifest cannot be read, it removes nothing.
func (e *Engine) sweep(ctx context.Context) error {
	e.mu.Lock()
	dirty := e.dirty
	e.dirty = false
	e.mu.Unlock()
	if !dirty {
		return nil
	}
	e.collecting.Lock()
	defer e.collecting.Unlock()
	again := true
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.dirty = e.dirty || again
	}()
	now, err := e.bucketTime(ctx)
	if err != nil {
		return err
	}
	used, shared, err := e.used(ctx)
	if err != nil {
		return err
	}
	gone, err := e.sweepShared(ctx, shared, now.Add(-grace))
	if err != nil {
		return err
	}
	if err := e.forgetRoots(ctx, shared); err != nil {
		return err
	}
	n, err := e.sweepChunks(ctx, used, now.Add(-grace))
	if err != nil {
		return err
	}
	again = gone.young || n.young
	if n.removed+gone.removed > 0 {
		e.cfg.Log.Info("removed what no checkpoint needs from the object store", "objects", n.removed+gone.removed)
	}
	return nil
}

// bucketTime returns the present time by the clock that also dates objects.
func (e *Engine) bucketTime(ctx context.Context) (time.Time, error) {
	if err := e.vessel.bucket.Put(ctx, clockObject, nil); err != nil {
		return time.Time{}, err
	}
	info, err := e.vessel.bucket.Stat(ctx, clockObject)
	return info.Modified, err
}

// used reads all manifests: it returns the chunks and shared objects that they, recent builds
// and the roots of sandboxes need.
func (e *Engine) used(ctx context.Context) (chunks map[sum]bool, shared map[string]bool, err error) {
	chunks, shared = map[sum]bool{}, map[string]bool{}
	for info, err := range e.vessel.bucket.List(ctx, "checkpoints/") {
		if err != nil {
			return nil, nil, err
		}
		id := path.Base(info.Name)
		m, err := e.files.manifest(e.vessel, id)
		if err != nil {
			m, _, err = e.vessel.manifest(ctx, info.Name, id)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("nothing is removed from the object store: %w", err)
		}
		names := []string{m.Root}
		for i := range m.Files {
			names = append(names, m.Files[i].Shared)
			mark(chunks, &m.Files[i])
		}
		for _, name := range names {
			if name == "" {
				continue
			}
			if err := e.markShared(ctx, name, chunks, shared); err != nil {
				return nil, nil, fmt.Errorf("nothing is removed from the object store: %w", err)
			}
		}
	}
	if err := e.markRoots(ctx, chunks, shared); err != nil {
		return nil, nil, err
	}
	return chunks, shared, e.markBuilds(ctx, chunks, shared)
}

// markShared marks something shared, and its chunks.
func (e *Engine) markShared(ctx context.Context, name string, chunks map[sum]bool, shared map[string]bool) error {
	object, err := e.vessel.sharedObject(name)
	if err != nil || shared[object] {
		return err
	}
	f, err := e.vessel.shared(ctx, name)
	if err != nil {
		return err
	}
	shared[object] = true
	mark(chunks, f)
	return nil
}

func mark(chunks map[sum]bool, f *file) {
	_ = f.chunks(func(_ int64, _ int, name sum) error {
		chunks[name] = true
		return nil
	})
}

// swept says how many objects were removed, and whether some were too young for it.
type swept struct {
	removed int
	young   bool
}

func (e *Engine) sweepShared(ctx context.Context, shared map[string]bool, before time.Time) (swept, error) {
	return e.sweepObjects(ctx, "shared/", before, func(name string) bool { return shared[name] })
}

func (e *Engine) sweepChunks(ctx context.Context, used map[sum]bool, before time.Time) (swept, error) {
	return e.sweepObjects(ctx, "chunks/", before, func(name string) bool {
		var s sum
		b, err := hex.DecodeString(path.Base(name))
		if err != nil || len(b) != sumSize {
			return true // it is nothing of ours
		}
		copy(s[:], b)
		return used[s]
	})
}

// sweepObjects removes the objects with a prefix that are not kept and are old enough.
func (e *Engine) sweepObjects(ctx context.Context, prefix string, before time.Time, keep func(name string) bool) (out swept, err error) {
	var batch []string
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		// A daemon that was cut off, and has been replaced, must not remove anything.
		h, err := e.readHolder(ctx)
		if err != nil {
			return err
		}
		if h.Token != e.token {
			return errReplaced
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(requests)
		for _, name := range batch {
			g.Go(func() error { return e.vessel.bucket.Delete(gctx, []string{name}) })
		}
		out.removed += len(batch)
		batch = batch[:0]
		return g.Wait()
	}
	for info, err := range e.vessel.bucket.List(ctx, prefix) {
		switch {
		case err != nil:
			return out, err
		case keep(info.Name):
			continue
		case info.Modified.After(before):
			out.young = true
			continue
		}
		if batch = append(batch, info.Name); len(batch) >= objects.MaxDelete {
			if err := flush(); err != nil {
				return out, err
			}
		}
	}
	return out, flush()
}
