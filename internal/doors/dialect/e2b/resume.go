package e2b

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// awake returns a sandbox that runs: a paused one is resumed if it was created
// to be, and does not exist otherwise.
func (d *Door) awake(ctx context.Context, box *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	switch {
	case box.State == sandbox.StateRunning:
		return box, nil
	case box.State == sandbox.StatePaused && box.Metadata[access.TagAutoResume] != "":
		return d.cfg.Service.Resume(ctx, box.ID, sandbox.ResumeRequest{})
	}
	return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run")
}
