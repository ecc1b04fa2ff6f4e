package tiered

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// continues makes an instance of a family from a checkpoint.
func (m *machine) continues(ctx context.Context, id, family string) error {
	_, err := m.e.Create(ctx, engine.Spec{Checkpoint: id, Family: family, Root: engine.Root{Digest: rootDigest}})
	return err
}

// moved checks how often checkpoints have moved.
func (m *machine) moved(when string, want int) {
	m.t.Helper()
	if got := m.spread.moves(); got != want {
		m.t.Errorf("%s: it has moved %d times, not %d", when, got, want)
	}
}

// holds keeps checkpoints from being stored until the function that it returns is called.
func (s *spreadEngine) holds() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = make(chan struct{})
	return sync.OnceFunc(func() { close(s.hold) })
}

// A checkpoint on a machine of another family is stored first, and then brought to one that
// takes the instance. Who reads it does not wait, and it does not move for that.
func TestForeignWaits(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.spread.dedicate("f1")
		release := m.spread.holds()
		defer release()
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		wantPlace(t, m.e, "ckp-one", engine.PlacePending)
		if err := m.continues(t.Context(), "ckp-one", "f1"); err != nil {
			t.Errorf("of its own family: %v", err)
		}
		read := func(when string) {
			t.Helper()
			done, err := m.e.acquire(t.Context(), "ckp-one", need{})
			if err != nil {
				t.Fatal(err)
			}
			done()
			m.moved(when, 0)
		}
		read("read, and not stored yet")
		done := make(chan error, 1)
		go func() { done <- m.continues(t.Context(), "ckp-one", "f2") }()
		wait(time.Minute)
		select {
		case err := <-done:
			t.Errorf("it did not wait until it is stored: %v", err)
		default:
		}
		read("read, and awaited by another")
		release()
		if err := <-done; err != nil {
			t.Errorf("when it is stored: %v", err)
		}
		m.moved("when it is stored", 1)
		m.spread.dedicate("f1")
		if _, err := m.e.Export(t.Context(), "ckp-one"); err != nil {
			t.Error(err)
		}
		m.moved("read", 1)
		if err := m.continues(t.Context(), "ckp-one", ""); err != nil {
			t.Errorf("of no family: %v", err)
		}
		m.moved("of no family", 2)
		if err := m.e.Admit(t.Context(), 1, engine.Source{Checkpoint: "ckp-one"}, &engine.Spec{Family: "f3"}); err != nil {
			t.Error(err)
		}
		m.moved("to ask for room", 3)
		if !m.spread.Takes("ckp-one", "f3") {
			t.Error("it was brought to a machine of another family")
		}
	})
}

// What cannot be stored is refused at once where it is: nobody would wait to any purpose.
func TestForeignRefused(t *testing.T) {
	for name, prepare := range map[string]func(b *memoryBucket, m *machine){
		"the bucket does not work": func(b *memoryBucket, m *machine) {
			b.breaks(errors.New("connection refused"))
			m.add("ckp-one", "red", content("one", 1))
		},
		"it has no owner": func(_ *memoryBucket, m *machine) { m.add("ckp-one", "", content("one", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			withSpread(t, func(t *testing.T, b *memoryBucket, m *machine) {
				m.spread.dedicate("f1")
				prepare(b, m)
				synctest.Wait()
				began := time.Now()
				if err := m.continues(t.Context(), "ckp-one", "f2"); !errors.Is(err, engine.ErrNoRoom) {
					t.Errorf("got %v, want that there is no room", err)
				}
				if took := time.Since(began); took > 0 {
					t.Errorf("it took %v", took)
				}
				m.moved("refused", 0)
				if err := m.continues(t.Context(), "ckp-one", "f1"); err != nil {
					t.Errorf("of its own family: %v", err)
				}
			})
		})
	}
}

// Instances of several families that continue from one checkpoint at the same time do not take
// it away from each other: each has its turn.
func TestForeignTurns(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		m.spread.dedicate("")
		m.spread.mu.Lock()
		m.spread.took = time.Second
		m.spread.mu.Unlock()
		const n = 8
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := m.continues(t.Context(), "ckp-one", fmt.Sprint("f", i)); err != nil {
					t.Errorf("family %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		m.moved("for each family", n)
		if m.spread.most != 1 {
			t.Errorf("%d were made at once", m.spread.most)
		}
		// Those of the family that has it need no turn.
		family := *m.spread.only
		for range n {
			wg.Go(func() {
				if err := m.continues(t.Context(), "ckp-one", family); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		m.moved("for one family", n)
		if m.spread.most != n {
			t.Errorf("at most %d of one family were made at once", m.spread.most)
		}
	})
}

// Nobody waits for a checkpoint to be stored whose machine is away, or is away by now: nobody
// knows when it is back.
func TestForeignAway(t *testing.T) {
	for name, before := range map[string]bool{"away": true, "goes away": false} {
		t.Run(name, func(t *testing.T) {
			withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
				m.spread.dedicate("f1")
				release := m.spread.holds()
				defer release()
				m.add("ckp-one", "red", content("one", 1))
				synctest.Wait()
				if before {
					m.spread.set(engine.StandingAway)
				} else {
					time.AfterFunc(time.Minute, func() { m.spread.set(engine.StandingAway) })
				}
				began := time.Now()
				if err := m.continues(t.Context(), "ckp-one", "f2"); err == nil {
					t.Error("it was made")
				}
				if took := time.Since(began); before && took > 0 || took > time.Minute+lookAgain {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// Who finds that the checkpoint is being fetched for another family waits for that, and then has
// it fetched anew: where it was brought, the other family is.
func TestForeignFetch(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		m.spread.set(engine.StandingNone)
		m.spread.dedicate("")
		m.spread.mu.Lock()
		m.spread.took = time.Second
		m.spread.mu.Unlock()
		var wg sync.WaitGroup
		for _, family := range []string{"f1", "f2"} {
			wg.Go(func() {
				done, err := m.e.acquire(t.Context(), "ckp-one", need{spec: &engine.Spec{Family: family}})
				if err != nil {
					t.Error(err)
					return
				}
				defer done()
				if !m.spread.Takes("ckp-one", family) {
					t.Errorf("%s gets it on the machine of another family", family)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		m.moved("for two families", 2)
	})
}

// Who does not want to wait any longer hears why, and keeps nobody from its turn.
func TestForeignCancelled(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.spread.dedicate("f1")
		release := m.spread.holds()
		defer release()
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		cause := errors.New("the caller has gone")
		// The first one waits until it is stored, and the second one for the first.
		for _, tt := range []struct{ family, want string }{{"f2", "is being stored"}, {"f3", "is being brought to other nodes"}} {
			wg.Go(func() {
				err := m.continues(ctx, "ckp-one", tt.family)
				if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !errors.Is(err, cause) || !strings.Contains(sandbox.MessageOf(err), tt.want) {
					t.Errorf("%s: got %v (%s), want that it %s", tt.family, err, sandbox.CodeOf(err), tt.want)
				}
			})
			synctest.Wait()
		}
		cancel(cause)
		wg.Wait()
		m.moved("cancelled", 0)
		release()
		if err := m.continues(t.Context(), "ckp-one", "f4"); err != nil {
			t.Errorf("the next one: %v", err)
		}
		m.moved("the next one", 1)
	})
}
