package postgres

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// TestInDoubtIsTold checks that callers learn that the outcome of a change is not known, also
// if they have gone meanwhile.
func TestInDoubtIsTold(t *testing.T) {
	cause := &inDoubt{io.ErrUnexpectedEOF}
	err := explained(cause)
	if !errors.Is(err, store.ErrInDoubt) || sandbox.CodeOf(err) != sandbox.CodeUnavailable || lost(cause) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&database{patience: time.Second}).retry(ctx, func() error { return cause }); !errors.Is(err, store.ErrInDoubt) {
		t.Errorf("after the caller has gone: %v", err)
	}
}
