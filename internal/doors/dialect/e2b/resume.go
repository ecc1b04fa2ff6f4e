package e2b

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/control"
	"github.com/cove-sh/cove/sandbox"
)

// leastLifetime is how long a sandbox that a request has resumed runs at least, in seconds. With
// less, it could be paused again before it has answered. E2B's servers have such a minimum, too.
const leastLifetime = 30

// resumed returns a running sandbox. It resumes a paused one that was created with
// auto-resume; any other does not exist for clients.
func (d *Door) resumed(ctx context.Context, box *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	switch {
	case box.State == sandbox.StateRunning:
		return box, nil
	case box.State == sandbox.StatePaused && box.Metadata[access.TagAutoResume] != "":
		box, err := d.cfg.Service.Resume(ctx, box.ID, sandbox.ResumeRequest{})
		if err != nil {
			return nil, err
		}
		seconds := box.LifetimeSeconds
		if box.ExpiresAt == nil { // the pause removed the bound of its lifetime
			seconds = control.DefaultTimeout
		} else if seconds >= leastLifetime {
			return box, nil
		}
		seconds = max(seconds, leastLifetime)
		return d.cfg.Service.Update(ctx, box.ID, sandbox.UpdateRequest{LifetimeSeconds: &seconds})
	}
	return nil, errNotRunning
}

var errNotRunning = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run")
