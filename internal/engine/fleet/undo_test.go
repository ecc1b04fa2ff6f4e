package fleet_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
)

// TestUnanswered checks that an instance that was made is ended if the call ends without an
// answer, and the connection does not.
func TestUnanswered(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	a.state.Trap(memory.StepCreate, memory.After, func(context.Context) error { panic(http.ErrAbortHandler) })
	if _, err := w.Create(t.Context(), engine.Spec{ID: "one", Root: engine.Root{Digest: "d"}}); err == nil {
		t.Fatal("Create succeeded without an answer")
	}
	if got := a.state.IDs(); len(got) > 0 {
		t.Errorf("the node has %v", got)
	}
	if err := w.Destroy(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}
