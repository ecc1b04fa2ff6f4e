package tiered

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// Instances continue before all is fetched. What reads all waits for it.
func TestEarly(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		readers := map[string]func(ctx context.Context) ([]byte, error){
			"changes": func(ctx context.Context) ([]byte, error) {
				r, err := w.e.Changes(ctx, engine.Source{Checkpoint: waitingID})
				if err != nil {
					return nil, err
				}
				return io.ReadAll(r)
			},
			"export": func(ctx context.Context) ([]byte, error) {
				out, err := w.e.Export(ctx, waitingID)
				if err != nil {
					return nil, err
				}
				defer out.Close()
				return io.ReadAll(out.Files[0])
			},
			"files only": func(ctx context.Context) ([]byte, error) {
				_, err := w.e.Create(ctx, engine.Spec{Checkpoint: waitingID, FilesOnly: true, Root: engine.Root{Digest: rootDigest}})
				w.inner.mu.Lock()
				defer w.inner.mu.Unlock()
				return w.inner.seen, err
			},
		}
		type result struct {
			name string
			data []byte
			err  error
		}
		results := make(chan result, len(readers))
		for name, read := range readers {
			go func() {
				data, err := read(t.Context())
				results <- result{name, data, err}
			}()
		}
		wait(time.Hour)
		select {
		case r := <-results:
			t.Errorf("%s does not wait: %v", r.name, r.err)
		default:
		}
		if _, err := w.read(waitingID); err != nil {
			t.Errorf("another instance: %v", err)
		}
		wantPlace(t, w.e, waitingID, engine.PlaceRemote)
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, read := range readers {
			if _, err := read(short); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("%s, for a minute: %v", name, err)
			}
		}
		w.b.release(w.chunks...)
		for range readers {
			if r := <-results; r.err != nil || !bytes.Equal(r.data, w.state) {
				t.Errorf("%s has %d bytes, %v", r.name, len(r.data), r.err)
			}
		}
		wantPlace(t, w.e, waitingID, engine.PlaceStored)
		w.wants(waitingID, w.state)
		if imports, finishes := w.early.counts(); imports != 1 || finishes != 0 {
			t.Errorf("it was imported %d times, and finished %d times", imports, finishes)
		}
	})
}

// A bucket that fails while a checkpoint is in use only delays the rest.
func TestEarlyOutage(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.b.breaks(errors.New("connection refused"))
		w.b.release(w.chunks...)
		wait(24 * time.Hour)
		if n, err := w.early.lastEnd(); n != 0 {
			t.Errorf("the fetch has ended: %v", err)
		}
		wantPlace(t, w.e, waitingID, engine.PlaceRemote)
		w.b.breaks(nil)
		wait(2 * longestRetry)
		w.wantWhole()
		wantPlace(t, w.e, waitingID, engine.PlaceStored)
		w.wants(waitingID, w.state)
		if imports, finishes := w.early.counts(); imports != 1 || finishes != 0 {
			t.Errorf("it was imported %d times, and finished %d times", imports, finishes)
		}
	})
}

// What is damaged or missing while a checkpoint is in use is lost: nobody waits for more.
func TestEarlyDamage(t *testing.T) {
	for name, damage := range map[string]func(o []byte) []byte{
		"missing":  func([]byte) []byte { return nil },
		"changed":  func(o []byte) []byte { o[len(o)/2] ^= 1; return o },
		"too long": func(o []byte) []byte { return append(o, make([]byte, maxSealedChunk)...) },
	} {
		t.Run(name, func(t *testing.T) {
			withWaiting(t, func(t *testing.T, w *waiting) {
				object := chunkObject(w.chunks[len(w.chunks)-1].name)
				data, err := w.b.memoryBucket.Get(t.Context(), object, maxSealedChunk)
				w.must(err)
				if bad := damage(bytes.Clone(data)); bad != nil {
					w.must(w.b.Put(t.Context(), object, bad))
				} else {
					w.must(w.b.Delete(t.Context(), []string{object}))
				}
				waits := make(chan error, 1)
				go func() {
					_, err := w.e.Changes(t.Context(), engine.Source{Checkpoint: waitingID})
					waits <- err
				}()
				synctest.Wait()
				w.b.release(w.chunks...)
				wait(time.Hour)
				if n, err := w.early.lastEnd(); n != 1 || !errors.Is(err, engine.ErrLost) {
					t.Errorf("%d fetches have ended, with %v", n, err)
				}
				if err := <-waits; sandbox.CodeOf(err) != sandbox.CodeUnavailable || !errors.Is(err, errDamaged) {
					t.Errorf("who waits for all gets %v", err)
				}
				if _, finishes := w.early.counts(); w.isCut() || finishes != 0 {
					t.Errorf("it is to be finished: %v, and was, %d times", w.isCut(), finishes)
				}
				wantPlace(t, w.e, waitingID, engine.PlaceRemote)
				w.must(w.b.Put(t.Context(), object, data))
				if _, err := w.read(waitingID); err != nil {
					t.Errorf("with its damage repaired: %v", err)
				}
				wait(time.Minute)
				w.wants(waitingID, w.state)
			})
		})
	}
}

// The bucket keeps a checkpoint that is removed until instances have what they need of it.
func TestEarlyRemoval(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.must(w.e.RemoveCheckpoint(t.Context(), waitingID))
		if list, err := w.e.Inner.Checkpoints(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("the engine has %v, %v", list, err)
		}
		wait(3 * time.Hour)
		if !w.inBucket() {
			t.Error("the bucket does not have it any more")
		}
		w.b.release(w.chunks...)
		wait(time.Minute)
		w.wantWhole()
		if list, err := w.e.Checkpoints(t.Context()); err != nil || len(list) != 0 || w.inBucket() {
			t.Errorf("the checkpoints are %v, %v, and the bucket has it: %v", list, err, w.inBucket())
		}
		wantPlace(t, w.e, waitingID, "")
	})
}

// A checkpoint that is removed goes at once if no instance needs it, even if the bucket does
// not answer.
func TestEarlyRemovalUnneeded(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.early.need(waitingID, false)
		began := time.Now()
		w.must(w.e.RemoveCheckpoint(t.Context(), waitingID))
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		wait(time.Minute)
		if n, err := w.early.lastEnd(); n != 1 || !errors.Is(err, engine.ErrUnneeded) || w.isCut() || w.inBucket() {
			t.Errorf("%d fetches have ended, with %v; it is cut off: %v, and in the bucket: %v", n, err, w.isCut(), w.inBucket())
		}
	})
}

// A fetch that the end of the daemon cuts off is finished by the next one, also if the
// checkpoint was removed meanwhile, which the bucket keeps for that.
func TestEarlyRestart(t *testing.T) {
	for name, removed := range map[string]bool{"kept": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			withWaiting(t, func(t *testing.T, w *waiting) {
				w.b.release(w.chunks[0])
				wait(time.Minute)
				if removed {
					w.must(w.e.RemoveCheckpoint(t.Context(), waitingID))
				}
				w.restart()
				if !removed {
					if _, err := w.read(waitingID); err != nil {
						t.Errorf("another instance: %v", err)
					}
					wantPlace(t, w.e, waitingID, engine.PlaceRemote)
				}
				wait(3 * time.Hour)
				if imports, finishes := w.early.counts(); imports != 1 || finishes != 1 || !w.inBucket() {
					t.Errorf("it was imported %d times and finished %d times, and is in the bucket: %v", imports, finishes, w.inBucket())
				}
				w.stop() // once more
				w.must(w.start())
				wait(time.Minute)
				w.b.release(w.chunks...)
				wait(time.Minute)
				w.wantWhole()
				if removed == w.inBucket() {
					t.Errorf("it is in the bucket: %v", !removed)
				}
				if removed {
					wantPlace(t, w.e, waitingID, "")
					return
				}
				wantPlace(t, w.e, waitingID, engine.PlaceStored)
				w.wants(waitingID, w.state)
			})
		})
	}
}

// An instance does not wait for a fetch that the next daemon finishes, and that is for nobody in
// particular.
func TestEarlyJoinsFinish(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.restart()
		wait(time.Minute) // the fetch goes on by now
		if _, finishes := w.early.counts(); finishes != 1 {
			t.Fatalf("it was finished %d times", finishes)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := w.e.Create(short, engine.Spec{Checkpoint: waitingID, Root: engine.Root{Digest: rootDigest}}); err != nil {
			t.Errorf("it waits: %v", err)
		}
	})
}

// What is removed stays in the bucket while a daemon does not know who needs it.
func TestEarlyUnsure(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.must(w.e.RemoveCheckpoint(t.Context(), waitingID))
		w.stop()
		w.must(os.Remove(filepath.Join(w.dir, "objects", "checkpoints", waitingID))) // so that it has only a tombstone
		w.early.mu.Lock()
		w.early.away = errors.New("a machine is away")
		w.early.mu.Unlock()
		w.must(w.start())
		wait(time.Hour)
		if !w.inBucket() {
			t.Error("it was removed")
		}
		w.b.release(w.chunks...)
		wait(time.Hour)
		w.wantWhole()
		if !w.inBucket() {
			t.Error("it was removed although another machine may need it")
		}
		w.early.mu.Lock()
		w.early.away = nil
		w.early.mu.Unlock()
		wait(time.Minute)
		if w.inBucket() {
			t.Error("it is still there")
		}
	})
}

// A fetch that fails on this machine goes on soon, for as long as instances need it.
func TestEarlyGoesOn(t *testing.T) {
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.early.mu.Lock()
		w.early.full = 3
		w.early.mu.Unlock()
		w.b.release(w.chunks...)
		wait(finishPause / 2)
		if n, err := w.early.lastEnd(); n != 1 || err == nil || errors.Is(err, engine.ErrLost) || !w.isCut() {
			t.Errorf("%d fetches have ended, with %v; it is cut off: %v", n, err, w.isCut())
		}
		wait(time.Minute)
		w.wantWhole()
		if w.isCut() {
			t.Error("it is still to be finished")
		}
		w.wants(waitingID, w.state)
		wantPlace(t, w.e, waitingID, engine.PlaceStored)
	})
	withWaiting(t, func(t *testing.T, w *waiting) {
		w.early.mu.Lock()
		w.early.full = 1 << 30
		w.early.mu.Unlock()
		w.b.release(w.chunks...)
		w.must(w.e.RemoveCheckpoint(t.Context(), waitingID))
		wait(time.Hour)
		if !w.inBucket() {
			t.Error("the bucket does not have it any more")
		}
		w.early.need(waitingID, false)
		w.must(w.early.RemoveCheckpoint(t.Context(), waitingID)) // as the engine does when the instance has ended
		wait(time.Minute)
		if w.inBucket() || w.isCut() {
			t.Errorf("nobody needs it; it is in the bucket: %v, cut off: %v", w.inBucket(), w.isCut())
		}
	})
}

// small stores small chunks, of which every fifth is zeros, as a file of the team red.
func small(t *testing.T, m *machine, n int) (f *file, content []byte) {
	t.Helper()
	s, err := m.e.vessel.keys.of("red")
	m.must(err)
	f = &file{Name: "content"}
	for i := range n {
		data := random(uint64(i), 100+i)
		if i%5 == 4 {
			clear(data)
		}
		c := chunk{size: len(data)}
		m.must(m.e.vessel.putChunk(t.Context(), s, data, &c.name))
		f.Chunks, f.Size, content = c.append(f.Chunks), f.Size+int64(len(data)), append(content, data...)
	}
	return f, content
}

// withSmall runs a test that fetches small chunks from a bucket that holds all of them.
func withSmall(t *testing.T, n int, test func(t *testing.T, m *machine, b *heldBucket, f *file, content []byte, to *rest)) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		held := &heldBucket{memoryBucket: b}
		m.e.vessel.bucket = held
		f, content := small(t, m, n)
		chunks := newAgenda(f).chunks
		held.hold(slices.DeleteFunc(slices.Clone(chunks), func(c placed) bool { return c.name == sum{} }))
		test(t, m, held, f, content, newEarlyEngine(nil).newRest(f.Size))
	})
}

// What somebody waits for is fetched before all else, and then what follows it. Each chunk is
// written once, also those of zeros.
func TestWantedFirst(t *testing.T) {
	withSmall(t, 40, func(t *testing.T, m *machine, b *heldBucket, f *file, content []byte, to *rest) {
		chunks := newAgenda(f).chunks
		got := make(chan error, 1)
		go func() { got <- m.e.getEarly(t.Context(), "red", f, to) }()
		wait(time.Minute)
		first := b.indexes(chunks)
		slices.Sort(first)
		if !slices.Equal(first, []int{0, 1, 2, 3}[:inOrder]) {
			t.Fatalf("first, %v are fetched", first)
		}
		// The end of one chunk, and the beginning of the next but one.
		part := engine.Part{Offset: chunks[21].at - 1, Size: int64(chunks[21].size) + 2}
		to.wanted <- part
		synctest.Wait()
		var order []int
		for i := 20; i <= 22; i++ {
			order = append(order, b.indexes(chunks)...)
			b.release(chunks[i])
			synctest.Wait()
		}
		if !slices.Equal(order, []int{20, 21, 22}) {
			t.Errorf("of what is wanted, %v are fetched", order)
		}
		if _, written := to.content(); !slices.Equal(written, []int64{chunks[20].at, chunks[21].at, chunks[22].at}) {
			t.Errorf("written is at %v", written)
		}
		// One that follows it, and then a chunk of zeros, which is not fetched.
		b.release(chunks[0])
		synctest.Wait()
		if next := b.indexes(chunks); len(next) == 0 || next[0] != 23 {
			t.Errorf("after what was wanted, %v are fetched, want 23", next)
		}
		b.release(chunks[23])
		wait(time.Minute)
		if next := b.indexes(chunks); len(next) == 0 || next[0] != 25 {
			t.Errorf("after that, %v are fetched, want 25", next)
		}
		to.wanted <- part // it is there
		to.wanted <- engine.Part{Offset: 0, Size: 1}
		synctest.Wait()
		if again := b.indexes(chunks); len(again) != 0 {
			t.Errorf("%v are fetched again", again)
		}
		b.release(chunks...)
		if err := <-got; err != nil {
			t.Error(err)
		}
		data, written := to.content()
		slices.Sort(written)
		if want := len(chunks); len(written) != want || len(slices.Compact(written)) != want || !bytes.Equal(data, content) {
			t.Errorf("%d chunks of %d were written, and the content is right: %v", len(written), want, bytes.Equal(data, content))
		}
	})
}

// What somebody waits for does not wait for transfers that nobody waits for.
func TestWantedNeedsNoSlot(t *testing.T) {
	withSmall(t, 40, func(t *testing.T, m *machine, b *heldBucket, f *file, _ []byte, to *rest) {
		chunks := newAgenda(f).chunks
		m.must(m.e.vessel.slots.Acquire(t.Context(), requests))
		b.release(chunks...)
		got := make(chan error, 1)
		go func() { got <- m.e.getEarly(t.Context(), "red", f, to) }()
		wait(time.Minute)
		to.wanted <- engine.Part{Offset: chunks[30].at, Size: 1}
		synctest.Wait()
		if _, written := to.content(); !slices.Contains(written, chunks[30].at) {
			t.Errorf("only what is at %v was fetched", written)
		}
		m.e.vessel.slots.Release(requests)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// A fetch that nobody needs any more ends, whatever it waits for.
func TestUnneededEnds(t *testing.T) {
	for name, prepare := range map[string]func(m *machine, b *heldBucket, chunks []placed){
		"the bucket does not answer": func(*machine, *heldBucket, []placed) {},
		"the bucket refuses": func(_ *machine, b *heldBucket, chunks []placed) {
			b.breaks(errors.New("connection refused"))
			b.release(chunks...)
		},
		"others transfer": func(m *machine, _ *heldBucket, _ []placed) {
			m.must(m.e.vessel.slots.Acquire(m.t.Context(), requests))
		},
	} {
		t.Run(name, func(t *testing.T) {
			withSmall(t, 20, func(t *testing.T, m *machine, b *heldBucket, f *file, _ []byte, to *rest) {
				prepare(m, b, newAgenda(f).chunks)
				got := make(chan error, 1)
				go func() { got <- m.e.getEarly(t.Context(), "red", f, to) }()
				wait(time.Minute)
				to.wanted <- engine.Part{Offset: f.Size - 200, Size: 1}
				wait(time.Minute)
				select {
				case err := <-got:
					t.Fatalf("it has ended: %v", err)
				default:
				}
				close(to.unneeded)
				synctest.Wait()
				select {
				case err := <-got:
					if err == nil || errors.Is(err, engine.ErrLost) {
						t.Errorf("it ends with %v", err)
					}
				default:
					t.Fatal("it goes on")
				}
			})
		})
	}
}

// An agenda has each chunk once: in order, after what was wanted last, and around the end.
func TestAgenda(t *testing.T) {
	list := func(sizes ...int) *file {
		f := &file{}
		for i, size := range sizes {
			c := chunk{sum{byte(i)}, size}
			f.Chunks = c.append(f.Chunks)
		}
		return f
	}
	if a := newAgenda(list()); !a.isClaimed() {
		t.Error("one without chunks has some left")
	}
	a := newAgenda(list(10, 20, 30, 40, 50)) // at 0, 10, 30, 60, 100
	for i, tt := range []struct {
		part engine.Part // of Size 0 for the next
		want int64       // -1 for none
	}{
		{engine.Part{}, 0},
		{engine.Part{Offset: 59, Size: 2}, 30},
		{engine.Part{Offset: 59, Size: 2}, 60},
		{engine.Part{Offset: 59, Size: 2}, -1},
		{engine.Part{Offset: 0, Size: 10}, -1},
		{engine.Part{Offset: 150, Size: 10}, -1},
		{engine.Part{}, 100},
		{engine.Part{}, 10},
		{engine.Part{}, -1},
		{engine.Part{Offset: 0, Size: 150}, -1},
	} {
		got, ok := placed{}, false
		if tt.part.Size > 0 {
			got, ok = a.wanted(tt.part)
		} else {
			got, ok = a.next()
		}
		if ok != (tt.want >= 0) || ok && got.at != tt.want {
			t.Errorf("step %d: the chunk at %d, %v; want %d", i, got.at, ok, tt.want)
		}
		if a.isClaimed() != (i >= 7) {
			t.Errorf("step %d: all are claimed: %v", i, !(i >= 7))
		}
	}

	r := rand.New(rand.NewPCG(3, 4))
	for round := range 100 {
		sizes := make([]int, 1+r.IntN(20))
		total := 0
		for i := range sizes {
			sizes[i] = 1 + r.IntN(9)
			total += sizes[i]
		}
		a := newAgenda(list(sizes...))
		seen := map[int64]bool{}
		for !a.isClaimed() {
			part := engine.Part{Offset: r.Int64N(int64(total)), Size: 1 + r.Int64N(10)}
			got, ok := a.wanted(part)
			if ok && (got.at >= part.Offset+part.Size || got.at+int64(got.size) <= part.Offset) {
				t.Fatalf("round %d: for %+v, the chunk at %d of %d bytes", round, part, got.at, got.size)
			}
			if !ok {
				got, ok = a.next()
			}
			if !ok || seen[got.at] {
				t.Fatalf("round %d: after %d of %d: the chunk at %d, %v", round, len(seen), len(sizes), got.at, ok)
			}
			seen[got.at] = true
		}
		if len(seen) != len(sizes) {
			t.Errorf("round %d: %d chunks of %d are claimed", round, len(seen), len(sizes))
		}
	}
}
