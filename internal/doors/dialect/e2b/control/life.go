package control

import (
	"context"
	"net/http"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

type connectBody struct {
	Timeout   *int64 `json:"timeout"`
	Memory    *bool  `json:"memory"`
	AutoPause *bool  `json:"autoPause"`
}

// connect returns what a client needs to use a sandbox, and resumes a paused one. It
// never shortens a running sandbox's lifetime.
func (p *plane) connect(r *http.Request, args []string, body *connectBody) (*response, error) {
	timeout, err := timeoutOr(body.Timeout, DefaultTimeout)
	if err != nil {
		return nil, err
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	status := http.StatusOK
	if box.State == sandbox.StatePaused {
		status = http.StatusCreated
		box, err = p.resumeFor(r.Context(), box, timeout, body.Memory, nil)
	} else {
		box, err = p.extend(r.Context(), box, timeout)
	}
	if err != nil {
		return nil, about(args[0], err)
	}
	return &response{status, p.created(r.Context(), box)}, nil
}

// resume serves the deprecated route that resumes a paused sandbox.
func (p *plane) resume(r *http.Request, args []string, body *connectBody) (*response, error) {
	timeout, err := timeoutOr(body.Timeout, timeoutV1)
	if err != nil {
		return nil, err
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if box.State == sandbox.StateRunning {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is already running", args[0])
	}
	if box, err = p.resumeFor(r.Context(), box, timeout, body.Memory, body.AutoPause); err != nil {
		return nil, about(args[0], err)
	}
	return &response{http.StatusCreated, p.created(r.Context(), box)}, nil
}

// resumeFor resumes a paused sandbox, with its memory unless told otherwise, for so
// many seconds.
func (p *plane) resumeFor(ctx context.Context, box *sandbox.Sandbox, seconds int64, memory, autoPause *bool) (*sandbox.Sandbox, error) {
	box, err := p.cfg.Service.Resume(ctx, box.ID, sandbox.ResumeRequest{FilesOnly: memory != nil && !*memory})
	if err != nil {
		return nil, err
	}
	return p.setLifetime(ctx, box, seconds, autoPause)
}

func (p *plane) setLifetime(ctx context.Context, box *sandbox.Sandbox, seconds int64, autoPause *bool) (*sandbox.Sandbox, error) {
	req := sandbox.UpdateRequest{LifetimeSeconds: &seconds}
	if autoPause != nil {
		action := sandbox.ActionKill
		if *autoPause {
			action = sandbox.ActionPause
		}
		req.OnTimeout = &action
	}
	return p.cfg.Service.Update(ctx, box.ID, req)
}

// extend ensures that a sandbox lives for at least so many seconds from now.
func (p *plane) extend(ctx context.Context, box *sandbox.Sandbox, seconds int64) (*sandbox.Sandbox, error) {
	if box.ExpiresAt == nil || time.Until(*box.ExpiresAt) >= time.Duration(seconds)*time.Second {
		return box, nil
	}
	return p.setLifetime(ctx, box, seconds, nil)
}

type pauseBody struct {
	Memory *bool `json:"memory"`
}

func (p *plane) pause(r *http.Request, args []string, body *pauseBody) (*response, error) {
	if body.Memory != nil && !*body.Memory {
		return nil, refused("memory")
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if box.State != sandbox.StateRunning {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is already %s", args[0], box.State)
	}
	if _, err := p.cfg.Service.Pause(r.Context(), box.ID); err != nil {
		return nil, about(args[0], err)
	}
	if box.OnTimeout != sandbox.ActionPause {
		// E2B keeps a paused sandbox until it is deleted; a lifetime would end it.
		if _, err := p.setLifetime(r.Context(), box, 0, nil); err != nil {
			return nil, about(args[0], err)
		}
	}
	return noContent, nil
}

type timeoutBody struct {
	Timeout *int64 `json:"timeout"`
}

// setTimeout ends a sandbox so many seconds from now; 0 and less is at once.
func (p *plane) setTimeout(r *http.Request, args []string, body *timeoutBody) (*response, error) {
	if body.Timeout == nil {
		return nil, invalid("validation error: timeout is missing; give seconds from now")
	}
	box, err := p.running(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	switch {
	case *body.Timeout > 0:
		if err = checkTimeout(*body.Timeout); err == nil {
			_, err = p.setLifetime(r.Context(), box, *body.Timeout, nil)
		}
	case box.OnTimeout == sandbox.ActionPause:
		_, err = p.cfg.Service.Pause(r.Context(), box.ID)
	default:
		_, err = p.cfg.Service.Kill(r.Context(), box.ID)
	}
	if err != nil {
		return nil, about(args[0], err)
	}
	return noContent, nil
}

type refreshBody struct {
	Duration int64 `json:"duration"`
}

// The bounds of a refresh, in seconds.
const (
	minRefresh = 15
	maxRefresh = 3600
)

func (p *plane) refresh(r *http.Request, args []string, body *refreshBody) (*response, error) {
	if body.Duration < 0 || body.Duration > maxRefresh {
		return nil, invalid("validation error: duration is not 0 to %d seconds", maxRefresh)
	}
	box, err := p.running(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if _, err := p.extend(r.Context(), box, max(body.Duration, minRefresh)); err != nil {
		return nil, about(args[0], err)
	}
	return noContent, nil
}

type forkBody struct {
	Timeout *int64 `json:"timeout"`
	Count   *int   `json:"count"`
}

type forked struct {
	Sandbox *created `json:"sandbox,omitempty"`
}

func (p *plane) fork(r *http.Request, args []string, body *forkBody) (*response, error) {
	timeout, err := timeoutOr(body.Timeout, DefaultTimeout)
	if err != nil {
		return nil, err
	}
	count := 1
	if body.Count != nil {
		count = *body.Count
	}
	if count < 1 || count > sandbox.MaxForks {
		return nil, invalid("count is %d; Cove makes 1 to %d forks in a call", count, sandbox.MaxForks)
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if box.State != sandbox.StateRunning {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is %s and cannot be forked; resume it first", args[0], box.State)
	}
	children, err := p.cfg.Service.Fork(r.Context(), box.ID, sandbox.ForkRequest{Count: count, LifetimeSeconds: &timeout})
	if err != nil {
		return nil, about(args[0], err)
	}
	out := make([]forked, len(children.Items))
	for i := range children.Items {
		out[i].Sandbox = new(p.created(r.Context(), &children.Items[i]))
	}
	return &response{http.StatusCreated, out}, nil
}
