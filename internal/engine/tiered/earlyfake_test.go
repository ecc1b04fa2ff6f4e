package tiered

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cove-sh/cove/internal/engine"
)

// earlyEngine is a plainEngine whose checkpoints can be used before their content is there. It
// outlives the daemon.
type earlyEngine struct {
	*plainEngine

	mu       sync.Mutex
	needed   map[string]bool  // guarded by mu; instances need the rest of these
	partials map[string]*rest // guarded by mu
	// got are the contents that were completed, also of checkpoints that were removed then, and
	// ends how imports have ended after they were usable. Guarded by mu.
	got      map[string][]byte
	ends     []error
	imports  int // guarded by mu
	finishes int // guarded by mu
	full     int // guarded by mu; so many writes fail
	away     error
}

// rest is the file of a checkpoint that is in use while it is fetched.
type rest struct {
	e        *earlyEngine
	wanted   chan engine.Part
	unneeded chan struct{}

	// Guarded by e.mu.
	data    []byte
	written []int64       // the offsets
	running chan struct{} // closed when nobody fetches it any more; nil if nobody does
	removed bool
	dropped bool
}

func newEarlyEngine(p *plainEngine) *earlyEngine {
	return &earlyEngine{plainEngine: p, needed: map[string]bool{}, partials: map[string]*rest{}, got: map[string][]byte{}}
}

// newRest returns a file whose bytes are not zero.
func (e *earlyEngine) newRest(size int64) *rest {
	return &rest{e: e, wanted: make(chan engine.Part), unneeded: make(chan struct{}), data: bytes.Repeat([]byte{0xff}, int(size))}
}

func (r *rest) Wanted() <-chan engine.Part { return r.wanted }

func (r *rest) Unneeded() <-chan struct{} { return r.unneeded }

func (r *rest) WriteAt(p []byte, at int64) (int, error) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if r.e.full > 0 {
		r.e.full--
		return 0, errors.New("the disk does not work")
	}
	r.written = append(r.written, at)
	return copy(r.data[at:], p), nil
}

// content returns what was written so far, and the offsets in order.
func (r *rest) content() ([]byte, []int64) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	return bytes.Clone(r.data), slices.Clone(r.written)
}

func (e *earlyEngine) ImportEarly(_ context.Context, as engine.Checkpoint, description []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (c engine.Checkpoint, err error) {
	if err := json.Unmarshal(description, &c); err != nil || c.ID != as.ID {
		return c, errors.Join(errors.New("it is another checkpoint"), err)
	}
	if _, err := e.fetch("program", int64(len(program)), fetch); err != nil {
		return engine.Checkpoint{}, err
	}
	r := e.newRest(c.SizeBytes)
	e.mu.Lock()
	e.imports++
	if e.partials[c.ID] != nil {
		e.mu.Unlock()
		return engine.Checkpoint{}, fs.ErrExist
	}
	r.running = make(chan struct{})
	e.partials[c.ID] = r
	e.mu.Unlock()
	if err := errors.Join(os.WriteFile(filepath.Join(e.dir, c.ID), nil, 0o600), os.WriteFile(filepath.Join(e.dir, c.ID+".json"), description, 0o600)); err != nil {
		return engine.Checkpoint{}, err
	}
	usable(c)
	return c, e.complete(c.ID, r, fetch)
}

// complete fetches the rest of a checkpoint.
func (e *earlyEngine) complete(id string, r *rest, fetch engine.Fetch) error {
	err := fetch(engine.ExportFile{Name: "content", Size: int64(len(r.data))}, r)
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.dropped {
		err = errors.Join(engine.ErrUnneeded, err)
	}
	e.ends = append(e.ends, err)
	close(r.running)
	r.running = nil
	switch {
	case err == nil:
		e.got[id] = bytes.Clone(r.data)
		delete(e.partials, id)
		if r.removed {
			return e.plainEngine.RemoveCheckpoint(context.Background(), id)
		}
		return os.WriteFile(filepath.Join(e.dir, id), r.data, 0o600)
	case errors.Is(err, engine.ErrLost) || errors.Is(err, engine.ErrUnneeded):
		delete(e.partials, id)
		return errors.Join(err, e.plainEngine.RemoveCheckpoint(context.Background(), id))
	}
	return err
}

func (e *earlyEngine) Unfinished(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.partials)), e.away
}

func (e *earlyEngine) FinishImport(_ context.Context, id string, fetch engine.Fetch) error {
	e.mu.Lock()
	e.finishes++
	r := e.partials[id]
	for r != nil && r.running != nil {
		running := r.running
		e.mu.Unlock()
		<-running
		e.mu.Lock()
		r = e.partials[id]
	}
	if r == nil {
		e.mu.Unlock()
		return engine.ErrNotFound
	}
	r.running = make(chan struct{})
	e.mu.Unlock()
	return e.complete(id, r, fetch)
}

// RemoveCheckpoint keeps what is needed, and waits until what is not has ended.
func (e *earlyEngine) RemoveCheckpoint(ctx context.Context, id string) error {
	e.mu.Lock()
	r := e.partials[id]
	if r == nil {
		e.mu.Unlock()
		return e.plainEngine.RemoveCheckpoint(ctx, id)
	}
	r.removed = true
	if e.needed[id] {
		e.mu.Unlock()
		return nil
	}
	running := r.running
	if !r.dropped {
		r.dropped = true
		close(r.unneeded)
	}
	if running == nil {
		delete(e.partials, id)
		e.mu.Unlock()
		return e.plainEngine.RemoveCheckpoint(ctx, id)
	}
	e.mu.Unlock()
	<-running
	return nil
}

func (e *earlyEngine) Changes(_ context.Context, of engine.Source) (io.ReadCloser, error) {
	_, content, err := e.find(of.Checkpoint)
	return io.NopCloser(bytes.NewReader(content)), err
}

// need says whether instances need the rest of a checkpoint.
func (e *earlyEngine) need(id string, needed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.needed[id] = needed
}

// counts returns how many imports there were, and how many were finished later.
func (e *earlyEngine) counts() (imports, finishes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.imports, e.finishes
}

// lastEnd returns how the last import has ended that was usable, and how many have.
func (e *earlyEngine) lastEnd() (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n = len(e.ends); n > 0 {
		err = e.ends[n-1]
	}
	return n, err
}

// completed returns the content that was completed.
func (e *earlyEngine) completed(id string) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[id]
}

// heldBucket answers for some objects only when it is told to.
type heldBucket struct {
	*memoryBucket

	mu    sync.Mutex
	held  map[string]chan struct{} // guarded by mu
	asked []string                 // guarded by mu; those of the held, in order
}

func (b *heldBucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	b.mu.Lock()
	gate := b.held[name]
	if gate != nil {
		b.asked = append(b.asked, name)
	}
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return b.memoryBucket.Get(ctx, name, limit)
}

// hold makes it not answer for chunks.
func (b *heldBucket) hold(chunks []placed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held, b.asked = map[string]chan struct{}{}, nil
	for _, c := range chunks {
		b.held[chunkObject(c.name)] = make(chan struct{})
	}
}

// release makes it answer for one chunk, or for all.
func (b *heldBucket) release(chunks ...placed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range chunks {
		name := chunkObject(c.name)
		if b.held[name] != nil {
			close(b.held[name])
			delete(b.held, name)
		}
	}
}

// indexes returns which chunks were asked for since the last call, in order.
func (b *heldBucket) indexes(chunks []placed) (is []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range b.asked {
		is = append(is, slices.IndexFunc(chunks, func(c placed) bool { return chunkObject(c.name) == name }))
	}
	b.asked = nil
	return is
}

// waiting is a machine on which a checkpoint can be used whose content is not there yet.
type waiting struct {
	*machine
	b      *heldBucket
	chunks []placed
	state  []byte
}

const waitingID = "ckp-one"

// withWaiting runs a test on such a machine.
func withWaiting(t *testing.T, f func(t *testing.T, w *waiting)) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		w := &waiting{b: &heldBucket{memoryBucket: b}, state: random(7, 8<<20)}
		m.add(waitingID, "red", w.state)
		synctest.Wait()
		stored, err := m.e.files.manifest(m.e.vessel, waitingID)
		m.must(err)
		w.chunks = newAgenda(stored.file("content")).chunks
		if len(w.chunks) < inOrder+2 {
			t.Fatalf("%d chunks are too few", len(w.chunks))
		}
		w.machine = newMachine(t, w.b)
		w.early = newEarlyEngine(w.inner)
		w.b.hold(w.chunks)
		w.must(w.start())
		w.early.need(waitingID, true)
		if _, err := w.read(waitingID); err != nil {
			t.Fatalf("it cannot be used: %v", err)
		}
		if w.early.completed(waitingID) != nil {
			t.Fatal("it was fetched to its end")
		}
		f(t, w)
		w.stop()
	})
}

// inBucket reports whether the bucket has the manifest.
func (w *waiting) inBucket() bool {
	return len(w.b.names(checkpointObject(waitingID))) > 0
}

// wantWhole checks that the content was completed.
func (w *waiting) wantWhole() {
	w.t.Helper()
	if got := w.early.completed(waitingID); !bytes.Equal(got, w.state) {
		w.t.Errorf("%d bytes were completed, which are not the %d that it has", len(got), len(w.state))
	}
}

// isCut reports whether the entry of the checkpoint says that its fetch was cut off.
func (w *waiting) isCut() bool {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	ent := w.e.entries[waitingID]
	return ent != nil && ent.cut
}
