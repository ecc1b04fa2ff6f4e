package tiered

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// spreadEngine is an engine with machines. It has one content, but says where it is.
type spreadEngine struct {
	*plainEngine

	mu       sync.Mutex
	standing engine.Standing // guarded by mu; of all checkpoints
	full     bool            // guarded by mu; the machine that has the checkpoint has no room
	moved    int             // guarded by mu; imports
	exports  int             // guarded by mu
	hold     chan struct{}   // guarded by mu; exports wait until it is closed, if it is set
	reached  func()
	stays    string        // guarded by mu; a checkpoint that is not removed
	why      error         // guarded by mu
	only     *string       // guarded by mu; the family that the machine that has the checkpoints takes; nil is all
	took     time.Duration // guarded by mu; how long it takes to make an instance, and to import
	making   int           // guarded by mu; instances
	most     int           // guarded by mu; instances that were made at once
}

// dedicate makes the machine that has the checkpoints one that takes a family only.
func (s *spreadEngine) dedicate(family string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.only = &family
}

// refuse makes the removal of a checkpoint fail.
func (s *spreadEngine) refuse(id string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stays, s.why = id, why
}

func (s *spreadEngine) RemoveCheckpoint(ctx context.Context, id string) error {
	s.mu.Lock()
	stays, why := s.stays, s.why
	s.mu.Unlock()
	if id == stays {
		return why
	}
	return s.plainEngine.RemoveCheckpoint(ctx, id)
}

func (s *spreadEngine) set(standing engine.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing = standing
}

func (s *spreadEngine) moves() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

func (s *spreadEngine) Standing(string) engine.Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standing
}

func (s *spreadEngine) Takes(_, family string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.only == nil || *s.only == family
}

func (s *spreadEngine) OnReach(reached func()) { s.reached = reached }

func (s *spreadEngine) ImportFor(ctx context.Context, spec *engine.Spec, c engine.Checkpoint, description []byte, fetch engine.Fetch, _ func(engine.Checkpoint)) (engine.Checkpoint, error) {
	s.mu.Lock()
	took := s.took
	s.mu.Unlock()
	wait(took)
	c, err := s.Import(ctx, c, description, fetch)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moved++
		s.standing, s.full = engine.StandingReady, false
		if s.only != nil && spec != nil {
			s.only = &spec.Family
		}
	}
	return c, err
}

func (s *spreadEngine) Create(ctx context.Context, spec engine.Spec) (engine.Instance, error) {
	s.mu.Lock()
	took := s.took
	s.making++
	s.most = max(s.most, s.making)
	s.mu.Unlock()
	wait(took)
	s.mu.Lock()
	full := s.full
	s.making--
	s.mu.Unlock()
	if full || !s.Takes(spec.Checkpoint, spec.Family) {
		return nil, sandbox.Wrap(sandbox.CodeQuotaExceeded, engine.ErrNoRoom, "there is no room")
	}
	return s.plainEngine.Create(ctx, spec)
}

func (s *spreadEngine) Admit(_ context.Context, _ int, of engine.Source, spec *engine.Spec) error {
	if !s.Takes(of.Checkpoint, spec.Family) {
		return sandbox.Wrap(sandbox.CodeUnavailable, engine.ErrNoRoom, "the machine takes another family")
	}
	return nil
}

func (s *spreadEngine) Export(ctx context.Context, id string) (*engine.Export, error) {
	s.mu.Lock()
	s.exports++
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return s.plainEngine.Export(ctx, id)
}

func (s *spreadEngine) Place(sandbox.Resources) string { return "a" }

func (s *spreadEngine) PlaceOf(engine.Source) string { return "a" }

func withSpread(t *testing.T, f func(t *testing.T, b *memoryBucket, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		m := newMachine(t, b)
		m.roots.root = content("root", 1)
		m.spread = &spreadEngine{plainEngine: m.inner, standing: engine.StandingReady}
		m.must(m.start())
		f(t, b, m)
		m.stop()
	})
}

// A checkpoint is used where it is, and moves only if that is not possible.
func TestMoves(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
		wants := func(moves int) {
			t.Helper()
			m.wants("ckp-one", content("one", 1))
			if got := m.spread.moves(); got != moves {
				t.Errorf("it has moved %d times, not %d", got, moves)
			}
		}
		wants(0)
		m.spread.set(engine.StandingAway)
		wantPlace(t, m.e, "ckp-one", engine.PlaceRemote)
		if got := m.e.PlaceOf(engine.Source{Checkpoint: "ckp-one"}); got != "" {
			t.Errorf("it is said to be on %q", got)
		}
		wants(1)
		if got := m.e.PlaceOf(engine.Source{Checkpoint: "ckp-one"}); got != "a" {
			t.Errorf("it is said to be on %q", got)
		}
		m.spread.set(engine.StandingDraining)
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
		if _, err := m.e.Export(t.Context(), "ckp-one"); err != nil || m.spread.moves() != 1 {
			t.Errorf("to be read it has moved %d times, %v", m.spread.moves(), err)
		}
		wants(2)
		m.spread.set(engine.StandingNone)
		wants(3)
		m.spread.mu.Lock()
		m.spread.full = true
		m.spread.mu.Unlock()
		wants(4)
	})
}

// What is not in the bucket yet waits for it where that helps, and is used where it is
// otherwise.
func TestMovesWhenStored(t *testing.T) {
	withSpread(t, func(t *testing.T, b *memoryBucket, m *machine) {
		b.breaks(errors.New("connection refused"))
		m.spread.set(engine.StandingLeaving)
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		if waits, failure := m.e.Waits("ckp-one"); !waits || failure == nil {
			t.Errorf("it waits: %v, %v", waits, failure)
		}
		if err := m.e.Reach(t.Context()); err == nil {
			t.Error("the bucket can be reached")
		}
		m.wants("ckp-one", content("one", 1)) // the bucket does not work
		if got := m.spread.moves(); got != 0 {
			t.Errorf("it has moved %d times", got)
		}
		b.breaks(nil)
		wait(lastPause + time.Minute)
		if waits, failure := m.e.Waits("ckp-one"); waits || failure != nil || m.e.Reach(t.Context()) != nil {
			t.Errorf("it still waits: %v, %v", waits, failure)
		}
		hold := make(chan struct{})
		m.spread.mu.Lock()
		m.spread.hold = hold
		m.spread.mu.Unlock()
		m.add("ckp-two", "red", content("two", 1))
		synctest.Wait()
		done := make(chan error, 1)
		go func() {
			_, err := m.read("ckp-two")
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("it did not wait until it is stored: %v", err)
		default:
		}
		close(hold)
		if err := <-done; err != nil || m.spread.moves() != 1 {
			t.Errorf("it has moved %d times, %v", m.spread.moves(), err)
		}
	})
}

// Nothing is uploaded from a machine that is away, and at once when it is back.
func TestUploadWaitsForMachine(t *testing.T) {
	withSpread(t, func(t *testing.T, _ *memoryBucket, m *machine) {
		m.spread.set(engine.StandingAway)
		m.add("ckp-one", "red", content("one", 1))
		wait(30 * time.Minute)
		m.spread.mu.Lock()
		tries := m.spread.exports
		m.spread.mu.Unlock()
		wantPlace(t, m.e, "ckp-one", engine.PlacePending)
		if tries > 0 {
			t.Errorf("it was tried %d times", tries)
		}
		m.spread.set(engine.StandingReady)
		m.spread.reached()
		synctest.Wait()
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
	})
}
