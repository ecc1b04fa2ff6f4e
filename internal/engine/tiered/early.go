package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cove-sh/cove/internal/engine"
)

const (
	// inOrder is how many chunks of a file that is in use are fetched at the same time although
	// nobody waits for them: only one while somebody has waited for others within calmTime,
	// because on two processors they would take the time of the sandbox that starts.
	inOrder  = 4
	calmTime = 100 * time.Millisecond
	// urgent is how many that somebody waits for are fetched at the same time, in all files.
	urgent = 4
	// longestRetry is the longest pause before a chunk that somebody may wait for is asked for
	// again.
	longestRetry = 10 * time.Second
	// finishPause is the pause before an import goes on that was cut off, and longestFinishPause
	// the one after many failures. After lookPause, machines are asked again that were away.
	finishPause        = 2 * time.Second
	longestFinishPause = time.Minute
	lookPause          = 15 * time.Second
)

// getEarly writes a file that is in use already, and what somebody waits for first. Failures
// of the bucket only delay it. The error is [errDamaged] if a chunk is missing, or is not what
// was stored.
func (e *Engine) getEarly(ctx context.Context, team string, f *file, to engine.PartWriter) error {
	s, err := e.vessel.keys.of(team)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g, ctx := errgroup.WithContext(ctx)
	go func() {
		select {
		case <-to.Unneeded():
			cancel(engine.ErrUnneeded)
		case <-ctx.Done():
		}
	}()
	todo := newAgenda(f)
	write := func(c placed, slots *semaphore.Weighted) error {
		data, err := e.getPatiently(ctx, s, c, slots)
		if err == nil {
			_, err = to.WriteAt(data, c.at)
		}
		return err
	}
	for i := range inOrder {
		g.Go(func() error {
			for {
				if i > 0 {
					todo.calm(ctx)
				}
				c, ok := todo.next()
				if !ok {
					return nil
				}
				if err := write(c, e.vessel.slots); err != nil {
					return err
				}
			}
		})
	}
	for range urgent {
		g.Go(func() error {
			for {
				select {
				case p := <-to.Wanted():
					for c, ok := todo.wanted(p); ok; c, ok = todo.wanted(p) {
						if err := write(c, e.vessel.urgent); err != nil {
							return err
						}
					}
				case <-todo.claimed:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		})
	}
	return g.Wait()
}

// getPatiently fetches a chunk, and tries again until that is of no use.
func (e *Engine) getPatiently(ctx context.Context, s *scope, c placed, slots *semaphore.Weighted) ([]byte, error) {
	if c.name == (sum{}) {
		return make([]byte, c.size), nil
	}
	for failures := 0; ; failures++ {
		data, err := e.vessel.getChunk(ctx, s, c.name, c.size, slots)
		switch {
		case err == nil || errors.Is(err, errDamaged):
			return data, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		if failures == 0 {
			e.cfg.Log.Warn("a part of a checkpoint that is in use cannot be fetched from the object store now; it is tried again", "error", err)
		}
		t := time.NewTimer(min(longestRetry, pauseAfter(failures)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// placed is a chunk of a file.
type placed struct {
	chunk
	at int64
}

// agenda are the chunks of a file that are still to be fetched.
type agenda struct {
	// claimed is closed when none is left that nobody fetches.
	claimed chan struct{}

	mu     sync.Mutex
	chunks []placed // ascending
	taken  []bool   // guarded by mu
	left   int      // guarded by mu
	from   int      // where next looks first; guarded by mu
	// asked is when somebody has last waited for a part, or the beginning. Guarded by mu.
	asked time.Time
}

func newAgenda(f *file) *agenda {
	a := &agenda{claimed: make(chan struct{}), asked: time.Now()}
	at := int64(0)
	for list := f.Chunks; len(list) > 0; list = list[entrySize:] {
		c := chunkAt(list)
		a.chunks = append(a.chunks, placed{c, at})
		at += int64(c.size)
	}
	a.left, a.taken = len(a.chunks), make([]bool, len(a.chunks))
	if a.left == 0 {
		close(a.claimed)
	}
	return a
}

// next claims the chunk after the one that was claimed last, or the first that is left after
// that.
func (a *agenda) next() (placed, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range a.chunks {
		i := a.from % len(a.chunks)
		a.from = i + 1
		if !a.taken[i] {
			return a.claim(i), true
		}
	}
	return placed{}, false
}

// calm waits until nobody has waited for a part within calmTime, or there is none left to
// claim.
func (a *agenda) calm(ctx context.Context) {
	for {
		a.mu.Lock()
		left := calmTime - time.Since(a.asked)
		a.mu.Unlock()
		if left <= 0 {
			return
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-a.claimed:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil || a.isClaimed() {
			return
		}
	}
}

func (a *agenda) isClaimed() bool {
	select {
	case <-a.claimed:
		return true
	default:
		return false
	}
}

// wanted claims a chunk that is left of a part. What follows it is fetched next: programs
// read on.
func (a *agenda) wanted(p engine.Part) (placed, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = time.Now()
	first := sort.Search(len(a.chunks), func(i int) bool { return a.chunks[i].at+int64(a.chunks[i].size) > p.Offset })
	for i := first; i < len(a.chunks) && a.chunks[i].at < p.Offset+p.Size; i++ {
		if !a.taken[i] {
			a.from = i + 1
			return a.claim(i), true
		}
	}
	return placed{}, false
}

// claim claims a chunk. The caller holds mu.
func (a *agenda) claim(i int) placed {
	a.taken[i] = true
	if a.left--; a.left == 0 {
		close(a.claimed)
	}
	return a.chunks[i]
}

// finishLoop goes on with imports that were cut off, until the engine is closed.
func (e *Engine) finishLoop() {
	for {
		select {
		case <-e.cutOff:
			e.finishCutOff()
		case <-e.ctx.Done():
			return
		}
	}
}

// finishSoon wakes finishLoop.
func (e *Engine) finishSoon() {
	select {
	case e.cutOff <- struct{}{}:
	default:
	}
}

// finishCutOff goes on with what instances need of checkpoints whose import was cut off.
func (e *Engine) finishCutOff() {
	known := e.cutOffs()
	ids, err := e.early.Unfinished(e.ctx)
	if err != nil {
		e.cfg.Log.Debug("not all machines say which checkpoints they need the rest of", "error", err)
		e.lookLater()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.unsure {
		e.unsure = false
		e.poke()
	}
	for _, id := range ids {
		if e.fetching[id] != nil {
			continue
		}
		ent := e.entries[id]
		if ent == nil { // the bucket does not have it any more, as finish will find out
			ent = &entry{Checkpoint: engine.Checkpoint{ID: id}}
		}
		f := newFetch(nil)
		close(f.usable)
		e.fetching[id] = f
		e.wg.Go(func() { e.fetch(id, ent, f, e.finish) })
	}
	for _, id := range known {
		if ent := e.entries[id]; ent != nil && ent.cut && err == nil && !slices.Contains(ids, id) {
			ent.cut = false // its instances have ended
			e.poke()
		}
	}
}

// lookLater wakes finishLoop after a while, once.
func (e *Engine) lookLater() {
	if e.looks.CompareAndSwap(false, true) {
		time.AfterFunc(lookPause, func() {
			e.looks.Store(false)
			e.finishSoon()
		})
	}
}

// cutOffs returns the checkpoints whose fetch was cut off.
func (e *Engine) cutOffs() (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, ent := range e.entries {
		if ent.cut {
			ids = append(ids, id)
		}
	}
	return ids
}

// finish goes on with an import that was cut off.
func (e *Engine) finish(ctx context.Context, id string, f *fetch, _ func(engine.Checkpoint)) (engine.Checkpoint, error) {
	m, damage := e.manifestOf(ctx, id)
	if damage != nil && !errors.Is(damage, errDamaged) {
		return engine.Checkpoint{}, damage
	}
	err := e.early.FinishImport(ctx, id, func(want engine.ExportFile, to io.WriterAt) error {
		if damage != nil {
			return fmt.Errorf("%w: %w", engine.ErrLost, damage)
		}
		return e.fetchFile(ctx, m, want, to)
	})
	if errors.Is(err, engine.ErrNotFound) { // it is complete, or gone
		err = nil
		if damage != nil || !e.isHere(ctx, id) {
			err = engine.ErrUnneeded
		}
	}
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return *m.Checkpoint, nil
}
