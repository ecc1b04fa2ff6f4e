package service

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// If the store does not take the end of a sandbox at first, the end is recorded as soon
// as the store works again, without a call and without the janitor.
func TestEndIsRecordedWhenTheStoreRecovers(t *testing.T) {
	w := mortalHarness(t)
	sbx := w.create(sandbox.CreateRequest{})
	var refusals atomic.Int32
	w.mortal.mu.Lock()
	w.mortal.before = func(change string) error {
		if change == "UpdateSandbox" && refusals.Add(1) <= 3 {
			return errors.New("database or disk is full (13)")
		}
		return nil
	}
	w.mortal.mu.Unlock()
	if err := w.state.Kill(sbx.ID, "it ran out of memory"); err != nil {
		t.Fatal(err)
	}
	if got := w.waitState(sbx.ID, sandbox.StateFailed); got.Reason != "it ran out of memory" {
		t.Errorf("its reason is %q", got.Reason)
	}
	if n := refusals.Load(); n <= 3 {
		t.Errorf("the store was asked %d times, want more than the 3 that it refused", n)
	}
	w.agree()
}

// Repair records the end of a sandbox that ended unnoticed, and of one whose creation
// nobody continues. It leaves others alone.
func TestRepairFindsLostSandboxes(t *testing.T) {
	w := newHarness(t)
	dead, lives := w.create(sandbox.CreateRequest{}), w.create(sandbox.CreateRequest{})
	w.engine.Notify(func(engine.Status) {}) // the service is not notified
	if err := w.state.Kill(dead.ID, "its supervisor ended"); err != nil {
		t.Fatal(err)
	}
	abandoned := w.record(lives.ID)
	abandoned.ID, abandoned.Instance, abandoned.State = ids.New(ids.Sandbox), "", sandbox.StateCreating
	if err := w.store.CreateSandbox(t.Context(), abandoned, store.Quota{}); err != nil {
		t.Fatal(err)
	}
	w.state.Trap(memory.StepCreate, memory.Before, func(ctx context.Context) error { return w.Repair(ctx) })
	busy := w.create(sandbox.CreateRequest{})
	if got := w.get(dead.ID); got.State != sandbox.StateFailed || got.Reason != "its supervisor ended" {
		t.Errorf("the dead one is %s, %q", got.State, got.Reason)
	}
	if got := w.get(abandoned.ID); got.State != sandbox.StateFailed || got.Reason != reasonAbandoned {
		t.Errorf("the abandoned one is %s, %q", got.State, got.Reason)
	}
	for _, id := range []string{lives.ID, busy.ID} {
		if got := w.get(id); got.State != sandbox.StateRunning {
			t.Errorf("%s is %s, want it running", id, got.State)
		}
	}
	w.agree()
}
