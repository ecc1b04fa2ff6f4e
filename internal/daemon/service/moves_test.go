package service

import (
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
}

func (e *storedEngine) set(broken error, stored bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken, e.stored = broken, stored
}

func (e *storedEngine) Place(sandbox.Resources) string { return "a" }

func (e *storedEngine) PlaceOf(engine.Source) string { return "a" }

func (e *storedEngine) Kept(string) engine.Place { return engine.PlacePending }

func (e *storedEngine) Waits(string) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.stored, nil
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

// TestMoveSome follows a sandbox from a node: it stays while the object store does not work,
// is paused, waits until it is stored, and continues.
func TestMoveSome(t *testing.T) {
	var e *storedEngine
	w := (&harness{wrap: func(k *memory.Keeper) engine.Engine { e = &storedEngine{Keeper: k}; return e }}).begin(t, func(c *Config) { c.Nodes = noNodes{} })
	sbx := w.create(sandbox.CreateRequest{})
	mv := &move{node: "a", again: map[string]bool{}, resume: true}
	step := func(want sandbox.NodeMove, state sandbox.State) {
		t.Helper()
		must(t, w.moveSome(t.Context(), mv))
		if mv.now.Moved != want.Moved || mv.now.Left != want.Left || !strings.Contains(mv.now.Waiting, want.Waiting) || len(mv.now.Stay) > 0 {
			t.Errorf("the move is at %+v, want %+v", mv.now, want)
		}
		if got, err := w.Get(asRed(t), sbx.ID); err != nil || got.State != state {
			t.Errorf("the sandbox is %+v, %v, want %s", got, err, state)
		}
	}
	e.set(errors.New("connection refused"), false)
	step(sandbox.NodeMove{Left: 1, Waiting: "object store does not work: connection refused"}, sandbox.StateRunning)
	e.set(nil, false)
	step(sandbox.NodeMove{Moved: 1, Left: 1}, sandbox.StatePaused)
	step(sandbox.NodeMove{Moved: 1, Left: 1}, sandbox.StatePaused)
	e.set(nil, true)
	step(sandbox.NodeMove{Moved: 1}, sandbox.StateRunning)
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
