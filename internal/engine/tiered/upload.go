package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

const (
	// uploads is how many checkpoints are uploaded at the same time.
	uploads = 2
	// firstPause is the pause after the first failure, and lastPause the longest one.
	firstPause, lastPause = time.Second, 5 * time.Minute
	connectTimeout        = 5 * time.Second
	// sweepEvery is how often chunks that nothing refers to are looked for.
	sweepEvery = time.Hour
)

// pauseAfter returns the pause after so many failures in a row.
func pauseAfter(failures int) time.Duration {
	return min(lastPause, firstPause<<min(failures, 16))
}

// errLocal means that a checkpoint cannot be read on this machine.
var errLocal = errors.New("the checkpoint on this machine cannot be read")

// run connects with the bucket, removes what is to be removed, and sweeps, until the engine
// is closed.
func (e *Engine) run() {
	failures, swept := 0, time.Now()
	for e.ctx.Err() == nil {
		used, err := e.reconnect()
		skipped := false
		if err == nil {
			var some bool
			some, skipped, err = e.removeBuried(e.ctx)
			used = used || some
		}
		if err == nil && time.Since(swept) >= sweepEvery {
			used, swept = true, time.Now()
			if err = e.sweep(e.ctx); errors.Is(err, errUse) {
				e.cfg.Log.Warn("nothing is removed from the object store now", "error", err)
				err = nil // the bucket works
			}
		}
		e.evict(0)
		if used || err != nil {
			e.note(err)
		}
		pause := sweepEvery - time.Since(swept)
		again := err != nil || skipped
		if again {
			pause = pauseAfter(failures)
			failures++
		} else {
			failures = 0
		}
		e.rest(pause, again)
	}
}

// rest waits, unless there is something to do; after a failure it waits in any case.
func (e *Engine) rest(pause time.Duration, failed bool) {
	t := time.NewTimer(max(pause, firstPause))
	defer t.Stop()
	wake := e.wake
	if failed {
		wake = nil
	}
	select {
	case <-wake:
	case <-t.C:
	case <-e.ctx.Done():
	}
}

// note remembers whether the bucket can be reached, and logs when that changes.
func (e *Engine) note(err error) {
	if e.ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.failure
	e.failure = err
	switch {
	case err != nil && was == nil:
		e.since = time.Now()
		e.cfg.Log.Warn("the object store does not work; checkpoints stay on this machine until it does", "store", e.cfg.Bucket.String(), "error", err)
	case err == nil && was != nil:
		e.cfg.Log.Info("the object store works again", "store", e.cfg.Bucket.String(), "after", time.Since(e.since).Round(time.Second))
	}
}

// Health says whether the bucket works: since when it does not, and why.
func (e *Engine) Health() (since time.Time, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since, e.failure
}

// Waiting returns how many checkpoints wait to be uploaded, and their bytes.
func (e *Engine) Waiting() (n int, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ent := range e.entries {
		if ent.local && !ent.stored && !ent.removed {
			n++
			bytes += ent.SizeBytes
		}
	}
	return n, bytes
}

// Uploaded returns how many bytes were uploaded, and how many bytes of checkpoints were in
// the bucket already.
func (e *Engine) Uploaded() (sent, found int64) { return e.vessel.sent.Load(), e.vessel.found.Load() }

// uploadLoop uploads one checkpoint after another.
func (e *Engine) uploadLoop() {
	for {
		more := e.uploadable() // before it is looked for
		ent, pause := e.next()
		if ent != nil {
			e.uploadOne(ent)
			continue
		}
		t := time.NewTimer(pause)
		select {
		case <-more:
		case <-t.C:
		case <-e.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// uploadable is closed, and replaced, when there may be something to upload.
func (e *Engine) uploadable() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.more
}

// next claims the checkpoint that is to be uploaded next, the oldest one. If there is none,
// it returns when to look again.
func (e *Engine) next() (*entry, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, pause := time.Now(), sweepEvery
	var first *entry
	for _, ent := range e.entries {
		if !e.connected || !ent.local || ent.stored || ent.removed || ent.cancel != nil || e.ctx.Err() != nil || e.astray(ent.ID, need{}) {
			continue
		}
		if wait := ent.again.Sub(now); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		if first == nil || ent.CreatedAt.Before(first.CreatedAt) {
			first = ent
		}
	}
	if first != nil {
		first.cancel = func() {} // it is claimed
	}
	return first, pause
}

// uploadOne uploads a checkpoint, or notes when to try again.
func (e *Engine) uploadOne(ent *entry) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	e.mu.Lock()
	ent.cancel = cancel
	id, gone := ent.ID, ent.removed
	e.mu.Unlock()
	began := time.Now()
	var err error
	if !gone {
		err = e.upload(ctx, id)
	}
	if err == nil && !gone || err != nil && ctx.Err() == nil && !errors.Is(err, errLocal) {
		e.note(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ent.cancel, ent.failure = nil, err
	close(e.progress)
	e.progress = make(chan struct{})
	switch {
	case ent.removed:
		e.poke() // it can be removed from the bucket now
	case err == nil:
		ent.stored, ent.failures = true, 0
		e.cfg.Log.Info("stored a checkpoint in the object store", "checkpoint", ent.ID, "bytes", ent.SizeBytes, "took", time.Since(began).Round(time.Millisecond))
		e.poke() // something may be evicted
	case e.ctx.Err() == nil:
		pause := pauseAfter(ent.failures)
		ent.failures++
		ent.again = time.Now().Add(pause)
		if errors.Is(err, errLocal) && ent.failures == 1 {
			e.cfg.Log.Error("a checkpoint cannot be stored in the object store", "checkpoint", ent.ID, "error", err)
		}
		e.cfg.Log.Debug("store a checkpoint in the object store; it is tried again", "checkpoint", ent.ID, "error", err, "in", pause)
	}
}

// upload stores a checkpoint, and its manifest last. What an earlier try has stored is not
// stored again.
func (e *Engine) upload(ctx context.Context, id string) error {
	e.collecting.RLock()
	defer e.collecting.RUnlock()
	out, err := e.Inner.Export(ctx, id)
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	defer out.Close()
	c := out.Checkpoint
	m := &manifest{Version: manifestVersion, ID: id, Checkpoint: &c, Description: out.Description}
	if err := checkSizes(out.Files); err != nil {
		return err
	}
	for _, f := range out.Files {
		part := file{Name: f.Name, Size: f.Size, Shared: f.Shared}
		if f.Shared != "" {
			err = e.vessel.share(ctx, f.Shared, localReader{f})
		} else {
			part.Chunks, part.Size, err = e.vessel.put(ctx, c.Owner, localReader{f})
		}
		if err != nil {
			return err
		}
		if err := part.check(); err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
		if part.Size != f.Size {
			return fmt.Errorf("%w: %s has another size than it should have", errLocal, f.Name)
		}
		m.Files = append(m.Files, part)
	}
	if m.Root, err = e.shareRoot(ctx, c.Root); err != nil {
		return err
	}
	sealed, err := e.vessel.sealManifest(checkpointObject(id), m)
	if err != nil {
		return err
	}
	if err := e.vessel.bucket.Put(ctx, checkpointObject(id), sealed); err != nil {
		return err
	}
	return e.files.keep(id, sealed)
}

// checkSizes checks that the files of a checkpoint are not too large together.
func checkSizes(files []engine.ExportFile) error {
	left := int64(maxFileSize)
	for _, f := range files {
		if f.Size < 0 || f.Size > left {
			return fmt.Errorf("%w: it has more than %d bytes", errLocal, int64(maxFileSize))
		}
		left -= f.Size
	}
	return nil
}

// localReader tells the errors of the machine that has a checkpoint from those of the
// bucket.
type localReader struct{ io.Reader }

func (r localReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		// The cause is text only: an [io.ErrUnexpectedEOF] would be taken for the end.
		err = fmt.Errorf("%w: %v", errLocal, err) //nolint:errorlint // see above
	}
	return n, err
}
