package cells

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
)

var _ engine.Leaser = (*Engine)(nil)

// LeaseTime implements [engine.Leaser].
func (e *Engine) LeaseTime() (time.Duration, error) { return cell.BootTime() }

// Lease implements [engine.Leaser].
func (e *Engine) Lease(ctx context.Context, name string, until time.Duration) error {
	i, err := e.Open(ctx, name)
	if err != nil {
		return err
	}
	return i.(*instance).control.Fence(ctx, until)
}
