package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// A sandbox that is used while it is being paused for being idle continues, and the
// call does not notice. The next check pauses it.
func TestUsedWhileIdleIsPaused(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{IdleTimeoutSeconds: ptr(int64(60)), OnTimeout: sandbox.ActionPause})
	unused := func() {
		t.Helper()
		_, err := w.store.UpdateSandbox(t.Context(), sbx.ID, store.Change{Apply: func(r *store.Record) error {
			r.LastActiveAt = time.Now().Add(-time.Hour)
			return nil
		}})
		must(t, err)
	}
	unused()
	w.restart()
	w.state.Trap(memory.StepCheckpoint, memory.Before, func(context.Context) error {
		if got := w.shell(sbx.ID, "echo used"); got != "used" {
			t.Errorf("the call returned %q", got)
		}
		return nil
	})
	must(t, w.Expire(t.Context(), sbx.ID))
	if got := w.get(sbx.ID); got.State != sandbox.StateRunning {
		t.Fatalf("it is %s (%s)", got.State, got.Reason)
	}
	w.agree()
	w.restart()
	unused()
	must(t, w.Expire(t.Context(), sbx.ID))
	// Its job ended a moment ago.
	if got := w.get(sbx.ID); got.State != sandbox.StateRunning {
		t.Fatalf("it is %s (%s)", got.State, got.Reason)
	}
}

// A call that comes while it is decided whether an idle sandbox is paused waits for the
// decision, and then opens the sandbox again.
func TestCallsWaitForRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newOne := func() *handle {
			return &handle{client: agentclient.New("sbx-1", nil), gone: make(chan struct{}), active: time.Now()}
		}
		s := &Service{}
		first, second := newOne(), newOne()
		now := first
		enter := func(ctx context.Context) (*handle, error) {
			return s.acquireHandle(ctx, func() (*handle, error) { return now, nil })
		}
		if _, ok := first.rest(first.active.Add(-time.Second)); ok {
			t.Fatal("one that was used since is put to rest")
		}
		wake, ok := first.rest(first.active)
		if !ok {
			t.Fatal("an idle one is not put to rest")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("whoever leaves meanwhile gets %v", err)
		}
		got := make(chan *handle)
		go func() {
			h, err := enter(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		synctest.Wait()
		now = second // the first was paused, and the call resumes it
		first.end(errors.New("paused"))
		wake()
		if h := <-got; h != second {
			t.Error("the call is on the handle of before")
		}
		if _, ok := second.rest(second.active); ok {
			t.Error("one with a call is put to rest")
		}
		second.release()
		if wake, ok = second.rest(second.active); !ok {
			t.Fatal("it is not put to rest when the call has ended")
		}
		wake()
		if h, err := enter(t.Context()); h != second || err != nil {
			t.Errorf("after a rest that came to nothing: %v", err)
		}
	})
}
