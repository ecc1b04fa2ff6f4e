package e2b

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/control"
	"github.com/cove-sh/cove/sandbox"
)

// awake returns a sandbox that runs: a paused one is resumed if it was created
// to be, and does not exist otherwise.
func (d *Door) awake(ctx context.Context, box *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	switch {
	case box.State == sandbox.StateRunning:
		return box, nil
	case box.State == sandbox.StatePaused && box.Metadata[access.TagAutoResume] != "":
		box, err := d.cfg.Service.Resume(ctx, box.ID, sandbox.ResumeRequest{})
		if err != nil || box.ExpiresAt != nil {
			return box, err
		}
		// The pause took the bound of its life away.
		seconds := int64(control.DefaultTimeout)
		return d.cfg.Service.Update(ctx, box.ID, sandbox.UpdateRequest{LifetimeSeconds: &seconds})
	}
	return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run")
}
