package service

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// storedEngine is an engine with one node, a, and an object store.
type storedEngine struct {
	*memory.Keeper

	mu     sync.Mutex
	broken error // guarded by mu; of the object store
	stored bool  // guarded by mu; all checkpoints are there
	// unknown says that the object store will not have any. Guarded by mu.
	unknown bool
	node    string // guarded by mu; where all is, if not on a
}

func (e *storedEngine) set(broken error, stored bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken, e.stored = broken, stored
}

func (e *storedEngine) Place(sandbox.Resources) string { return "a" }

func (e *storedEngine) PlaceOf(engine.Source) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return cmp.Or(e.node, "a")
}

func (e *storedEngine) Kept(string) engine.Place {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.unknown:
		return ""
	case e.stored:
		return engine.PlaceStored
	}
	return engine.PlacePending
}

func (e *storedEngine) Waits(string) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.stored && !e.unknown, nil
}

func (e *storedEngine) Holds(context.Context, []string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stored && e.broken == nil
}

func (e *storedEngine) Reach(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken
}

// noNodes are nodes of which nothing is wanted.
type noNodes struct{ otherNodes }

type otherNodes = Nodes

func (noNodes) Moving() map[string]sandbox.DrainRequest { return nil }

func (noNodes) Nodes(context.Context) []sandbox.Node { return nil }

// wanted returns the emptying of node a, which a test does step by step.
func (w *harness) wanted(resume bool) *move {
	mv := &move{node: "a", again: map[string]string{}, resume: resume}
	w.moves.mu.Lock()
	defer w.moves.mu.Unlock()
	w.moves.active = map[string]*move{"a": mv}
	return mv
}

// stored returns a harness with one node and an object store.
func stored(t *testing.T) (*harness, *storedEngine) {
	t.Helper()
	var e *storedEngine
	w := (&harness{wrap: func(k *memory.Keeper) engine.Engine { e = &storedEngine{Keeper: k}; return e }}).begin(t, func(c *Config) { c.Nodes = noNodes{} })
	return w, e
}

func (w *harness) wantState(id string, want sandbox.State) {
	w.t.Helper()
	if got, err := w.Get(asRed(w.t), id); err != nil || got.State != want {
		w.t.Errorf("the sandbox is %+v, %v, want %s", got, err, want)
	}
}

// TestMoveSome follows a sandbox from a node: it stays while the object store does not work,
// is paused, waits until it is stored, and continues.
func TestMoveSome(t *testing.T) {
	w, e := stored(t)
	sbx := w.create(sandbox.CreateRequest{})
	mv := w.wanted(true)
	step := func(want sandbox.NodeMove, state sandbox.State) {
		t.Helper()
		must(t, w.moveSome(t.Context(), mv))
		if mv.now.Moved != want.Moved || mv.now.Left != want.Left || !strings.Contains(mv.now.Waiting, want.Waiting) || len(mv.now.Stay) > 0 {
			t.Errorf("the move is at %+v, want %+v", mv.now, want)
		}
		w.wantState(sbx.ID, state)
	}
	e.set(errors.New("connection refused"), false)
	step(sandbox.NodeMove{Left: 1, Waiting: "object store does not work: connection refused"}, sandbox.StateRunning)
	e.set(nil, false)
	step(sandbox.NodeMove{Moved: 1, Left: 1}, sandbox.StatePaused)
	step(sandbox.NodeMove{Moved: 1, Left: 1}, sandbox.StatePaused)
	e.set(nil, true)
	step(sandbox.NodeMove{Moved: 1}, sandbox.StateRunning)
}

// TestMoveOthersPause checks that a sandbox that somebody has paused after it was moved stays
// paused.
func TestMoveOthersPause(t *testing.T) {
	w, e := stored(t)
	sbx := w.create(sandbox.CreateRequest{})
	mv := w.wanted(true)
	must(t, w.moveSome(t.Context(), mv))
	w.wantState(sbx.ID, sandbox.StatePaused)
	_, err := w.Resume(asRed(t), sbx.ID, sandbox.ResumeRequest{})
	must(t, err)
	w.pause(sbx.ID)
	e.set(nil, true)
	must(t, w.moveSome(t.Context(), mv))
	w.wantState(sbx.ID, sandbox.StatePaused)
	if len(mv.again) > 0 {
		t.Errorf("to continue are %v", mv.again)
	}
}

// TestMoveGivenUp checks that sandboxes that wait until they are stored continue if the node
// takes sandboxes again, and that nothing more is paused.
func TestMoveGivenUp(t *testing.T) {
	w, _ := stored(t)
	first := w.create(sandbox.CreateRequest{})
	mv := w.wanted(true)
	must(t, w.moveSome(t.Context(), mv))
	w.wantState(first.ID, sandbox.StatePaused)
	second := w.create(sandbox.CreateRequest{})
	w.beginMoves() // nothing is wanted
	must(t, w.moveSome(t.Context(), mv))
	w.wantState(second.ID, sandbox.StateRunning)
	if mv.now.Moved != 1 || len(mv.now.Stay) > 0 {
		t.Errorf("the move is at %+v", mv.now)
	}
	w.runMove(mv)
	w.wantState(first.ID, sandbox.StateRunning)
}

// TestMoveElsewhere checks that a sandbox that has continued on another node since it was
// listed is not paused there.
func TestMoveElsewhere(t *testing.T) {
	w, e := stored(t)
	sbx := w.create(sandbox.CreateRequest{})
	r, err := w.store.Sandbox(t.Context(), sbx.ID)
	must(t, err)
	e.mu.Lock()
	e.node = "b"
	e.mu.Unlock()
	if stay := w.pauseAll(t.Context(), w.wanted(false), e, []store.Record{r}); len(stay) > 0 {
		t.Errorf("what stays is %+v", stay)
	}
	w.wantState(sbx.ID, sandbox.StateRunning)
}

// TestMoveUnknown checks that what the object store will not have counts as left.
func TestMoveUnknown(t *testing.T) {
	w, e := stored(t)
	sbx := w.create(sandbox.CreateRequest{})
	snap, err := w.CreateSnapshot(asRed(t), sbx.ID, sandbox.CreateSnapshotRequest{})
	must(t, err)
	w.pause(sbx.ID)
	e.mu.Lock()
	e.unknown = true
	e.mu.Unlock()
	mv := w.wanted(false)
	must(t, w.moveSome(t.Context(), mv))
	if mv.now.Left != 2 || !strings.Contains(mv.now.Waiting, snap.ID) {
		t.Errorf("the move is at %+v", mv.now)
	}
	_, err = w.DeleteSnapshot(asRed(t), snap.ID)
	must(t, err)
	must(t, w.moveSome(t.Context(), mv))
	if mv.now.Left != 1 || !strings.Contains(mv.now.Waiting, sbx.ID) {
		t.Errorf("the move is at %+v", mv.now)
	}
}

// TestMoveWithoutObjects checks what a server says that has started without its object store.
func TestMoveWithoutObjects(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Nodes = noNodes{} })
	mv := w.wanted(false)
	must(t, w.moveSome(t.Context(), mv))
	if !strings.Contains(mv.now.Waiting, "cove node undrain a") {
		t.Errorf("the move is at %+v", mv.now)
	}
}

// TestMoveStays moves many sandboxes of which some stay.
func TestMoveStays(t *testing.T) {
	w, e := stored(t)
	for range 3 {
		w.create(sandbox.CreateRequest{})
	}
	r, err := w.store.Sandbox(t.Context(), w.create(sandbox.CreateRequest{}).ID)
	must(t, err)
	_, err = w.store.UpdateSandbox(t.Context(), r.ID, store.Change{From: []sandbox.State{sandbox.StateRunning}, Apply: func(r *store.Record) error {
		r.Mounts = []sandbox.Mount{{Target: "/data", Volume: "data"}}
		return nil
	}})
	must(t, err)
	e.set(nil, true)
	mv := w.wanted(false)
	must(t, w.moveSome(t.Context(), mv))
	if mv.now.Moved != 3 || len(mv.now.Stay) != 1 || mv.now.Stay[0].Sandbox != r.ID {
		t.Errorf("the move is at %+v", mv.now)
	}
}

// TestImmovable checks what stays on its node.
func TestImmovable(t *testing.T) {
	for want, m := range map[string]sandbox.Mount{
		"the volume at /a": {Target: "/a", Volume: "data"}, "the directory of the host at /b": {Target: "/b", Host: "/srv"}, "": {Target: "/c", Tmpfs: true},
	} {
		got := immovable(&store.Record{Sandbox: sandbox.Sandbox{Mounts: []sandbox.Mount{m}}})
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q", m, got)
		}
	}
}

// TestDrainRequests checks what is refused.
func TestDrainRequests(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Nodes = noNodes{} })
	admin := asRed(t)
	_, err := w.DrainNode(admin, "a", sandbox.DrainRequest{Resume: true})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.DrainNode(admin, "a", sandbox.DrainRequest{Move: true})
	wantCode(t, err, sandbox.CodeUnsupported)
	_, err = w.LeaveNode(t.Context(), "a")
	wantCode(t, err, sandbox.CodeUnsupported)
}

// TestQuiet checks that a sandbox that is about to move ends its calls first, for a while,
// and that others wait.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handle{gone: make(chan struct{})}
		if again := h.acquire(); again != nil {
			t.Fatal("the first call waits")
		}
		began := time.Now()
		got := make(chan func())
		go func() {
			wake, ok := h.quiet(t.Context())
			if !ok {
				t.Error("it is not quiet")
			}
			got <- wake
		}()
		synctest.Wait()
		again := h.acquire()
		if again == nil {
			t.Fatal("a call begins")
		}
		if _, ok := h.quiet(t.Context()); ok {
			t.Error("it is quiet twice")
		}
		<-time.After(time.Second)
		h.release()
		wake := <-got
		if took := time.Since(began); took < time.Second || took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		wake()
		<-again

		h.acquire() // one that never ends
		short, cancel := context.WithTimeout(t.Context(), moveGrace)
		defer cancel()
		began = time.Now()
		wake, ok := h.quiet(short)
		if !ok || time.Since(began) != moveGrace {
			t.Errorf("it waited for %s", time.Since(began))
		}
		wake()
	})
}
