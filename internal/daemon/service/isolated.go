package service

import (
	"context"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// isolatedGrace is how much longer than its code the sandbox of isolated code may live.
// It matters if the daemon ends meanwhile.
const isolatedGrace = time.Minute

// RunIsolated implements [sandbox.Interpreters]. The verbs that it calls do the checks
// and the audit record.
func (s *Service) RunIsolated(ctx context.Context, req sandbox.RunIsolatedRequest, f sandbox.CodeSink) (result *sandbox.CodeResult, err error) {
	if err := call.Run(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesWrite), func(*call.Call) error { return nil }); err != nil {
		return nil, err
	}
	code := req.RunCodeRequest
	if code.Context != "" {
		return nil, validate.Errorf("isolated code gets a sandbox of its own; leave context out")
	}
	if err := validate.Code(&code); err != nil {
		return nil, err
	}
	// In a new sandbox the default interpreter is as good as a fresh one, and may
	// already be running.
	code.Fresh = false
	seconds := int64((time.Duration(code.TimeoutMS)*time.Millisecond + isolatedGrace) / time.Second)
	sbx, err := s.Create(ctx, sandbox.CreateRequest{
		Template: req.Template, Resources: req.Resources, Network: req.Network, Secrets: req.Secrets, LifetimeSeconds: &seconds,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if kerr := s.killSoon(context.WithoutCancel(ctx), sbx.ID); kerr != nil {
			// The sandbox ends with its lifetime, and Repair removes the rest.
			s.log.Error("remove the sandbox of isolated code", "sandbox", sbx.ID, "error", kerr)
		}
	}()
	pass := f
	if f != nil {
		pass = func(e sandbox.CodeEvent) error {
			if e.Result != nil {
				e.Result.Context = ""
			}
			return f(e)
		}
	}
	if result, err = s.RunCode(ctx, sbx.ID, code, pass); result != nil {
		result.Context = ""
	}
	return result, err
}

// maxLeaving bounds the ended sandboxes whose remains are being removed in the
// background.
const maxLeaving = 16

// killSoon is [Service.Kill] without the wait for the last remains: it returns when
// nothing runs in the sandbox any more and that is recorded. Close waits for the rest,
// and after a crash the next start removes it.
func (s *Service) killSoon(ctx context.Context, id string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.kill"), func(c *call.Call) error {
		r, err := c.Resolve(id)
		if err != nil {
			return err
		}
		reason := "killed by " + c.Caller.KeyID
		ender, ok := s.cfg.Engine.(engine.Ender)
		if !ok || !s.startLeaving() {
			_, err = s.kill(c.Ctx, r.ID, reason)
			return err
		}
		left := false
		defer func() {
			if !left {
				<-s.leaving
			}
		}()
		ctx, cancel := call.Teardown(c.Ctx)
		defer cancel()
		if r, err = s.beginKill(ctx, r.ID, reason); err != nil || r.State != sandbox.StateStopping {
			return err
		}
		if err := ender.End(ctx, r.Instance); err != nil {
			_, err = s.finish(ctx, &r)
			return err
		}
		if r, err = s.recordEnd(ctx, r.ID, true); err != nil {
			return err
		}
		left = true
		c.Go(func() {
			defer func() { <-s.leaving }()
			ctx, cancel := call.Teardown(s.gate.Context())
			defer cancel()
			if _, err := s.finish(ctx, &r); err != nil {
				s.log.Error("remove what is left of a sandbox; it is tried again", "sandbox", r.ID, "error", call.Detailed(err))
			}
		})
		return nil
	})
}

// startLeaving takes a place in leaving, and reports whether there was one.
func (s *Service) startLeaving() bool {
	select {
	case s.leaving <- struct{}{}:
		return true
	default:
		return false
	}
}
