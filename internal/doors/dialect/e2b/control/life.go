package control

import (
	"context"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

type connectBody struct {
	Timeout   *int64 `json:"timeout"`
	Memory    *bool  `json:"memory"`
	AutoPause *bool  `json:"autoPause"`
}

// connect leads to a sandbox, and resumes a paused one. It never makes the rest
// of a lifetime shorter.
func (p *plane) connect(w http.ResponseWriter, r *http.Request, args []string) error {
	var body connectBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	timeout := int64(DefaultTimeout)
	if body.Timeout != nil {
		timeout = *body.Timeout
	}
	if err := checkTimeout(timeout); err != nil {
		return err
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	status := http.StatusOK
	if box.State == sandbox.StatePaused {
		status = http.StatusCreated
		req := sandbox.ResumeRequest{FilesOnly: body.Memory != nil && !*body.Memory}
		if box, err = p.cfg.Service.Resume(r.Context(), box.ID, req); err != nil {
			return about(args[0], err)
		}
		box, err = p.setLifetime(r.Context(), box, timeout, nil)
	} else {
		box, err = p.extend(r.Context(), box, timeout)
	}
	if err != nil {
		return about(args[0], err)
	}
	caller, _ := sandbox.CallerOf(r.Context())
	answer.JSON(w, status, p.created(caller, box))
	return nil
}

// resume is the deprecated way to resume a paused sandbox.
func (p *plane) resume(w http.ResponseWriter, r *http.Request, args []string) error {
	var body connectBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	timeout := int64(timeoutV1)
	if body.Timeout != nil {
		timeout = *body.Timeout
	}
	if err := checkTimeout(timeout); err != nil {
		return err
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if box.State == sandbox.StateRunning {
		return sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is already running", args[0])
	}
	if box, err = p.cfg.Service.Resume(r.Context(), box.ID, sandbox.ResumeRequest{FilesOnly: body.Memory != nil && !*body.Memory}); err != nil {
		return about(args[0], err)
	}
	if box, err = p.setLifetime(r.Context(), box, timeout, body.AutoPause); err != nil {
		return about(args[0], err)
	}
	caller, _ := sandbox.CallerOf(r.Context())
	answer.JSON(w, http.StatusCreated, p.created(caller, box))
	return nil
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

// extend has a sandbox live for so long from now at least.
func (p *plane) extend(ctx context.Context, box *sandbox.Sandbox, seconds int64) (*sandbox.Sandbox, error) {
	if box.ExpiresAt == nil || time.Until(*box.ExpiresAt) >= time.Duration(seconds)*time.Second {
		return box, nil
	}
	return p.setLifetime(ctx, box, seconds, nil)
}

type pauseBody struct {
	Memory *bool `json:"memory"`
}

func (p *plane) pause(w http.ResponseWriter, r *http.Request, args []string) error {
	var body pauseBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if body.Memory != nil && !*body.Memory {
		return refused("memory")
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if box.State != sandbox.StateRunning {
		return sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is already %s", args[0], box.State)
	}
	if _, err := p.cfg.Service.Pause(r.Context(), box.ID); err != nil {
		return about(args[0], err)
	}
	if box.OnTimeout != sandbox.ActionPause {
		// E2B keeps a paused sandbox until it is deleted; a lifetime would end it.
		if _, err := p.setLifetime(r.Context(), box, 0, nil); err != nil {
			return about(args[0], err)
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type timeoutBody struct {
	Timeout *int64 `json:"timeout"`
}

// setTimeout ends a sandbox so many seconds from now; 0 and less is at once.
func (p *plane) setTimeout(w http.ResponseWriter, r *http.Request, args []string) error {
	var body timeoutBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if body.Timeout == nil {
		return invalid("validation error: timeout is missing; give seconds from now")
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if box.State != sandbox.StateRunning {
		return notIn(args[0], box)
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
		return about(args[0], err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type refreshBody struct {
	Duration int64 `json:"duration"`
}

// The bounds of a refresh, in seconds.
const (
	minRefresh = 15
	maxRefresh = 3600
)

func (p *plane) refresh(w http.ResponseWriter, r *http.Request, args []string) error {
	var body refreshBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if body.Duration < 0 || body.Duration > maxRefresh {
		return invalid("validation error: duration is not 0 to %d seconds", maxRefresh)
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if box.State != sandbox.StateRunning {
		return notIn(args[0], box)
	}
	if _, err := p.extend(r.Context(), box, max(body.Duration, minRefresh)); err != nil {
		return about(args[0], err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type forkBody struct {
	Timeout *int64 `json:"timeout"`
	Count   *int   `json:"count"`
}

type forked struct {
	Sandbox *created `json:"sandbox,omitempty"`
}

func (p *plane) fork(w http.ResponseWriter, r *http.Request, args []string) error {
	var body forkBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	timeout, count := int64(DefaultTimeout), 1
	if body.Timeout != nil {
		timeout = *body.Timeout
	}
	if body.Count != nil {
		count = *body.Count
	}
	if err := checkTimeout(timeout); err != nil {
		return err
	}
	if count < 1 || count > sandbox.MaxForks {
		return invalid("count is %d; Cove makes 1 to %d forks in a call", count, sandbox.MaxForks)
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if box.State != sandbox.StateRunning {
		return sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is %s and cannot be forked; resume it first", args[0], box.State)
	}
	children, err := p.cfg.Service.Fork(r.Context(), box.ID, sandbox.ForkRequest{Count: count, LifetimeSeconds: &timeout})
	if err != nil {
		return about(args[0], err)
	}
	caller, _ := sandbox.CallerOf(r.Context())
	out := make([]forked, len(children.Items))
	for i := range children.Items {
		child := p.created(caller, &children.Items[i])
		out[i].Sandbox = &child
	}
	answer.JSON(w, http.StatusCreated, out)
	return nil
}
