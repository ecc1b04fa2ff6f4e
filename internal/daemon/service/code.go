package service

import (
	"context"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/sandbox"
)

// RunCode implements [sandbox.Interpreters]. On its path there is one call to
// the agent, and nothing is written, unless the sandbox has a history.
func (s *Service) RunCode(ctx context.Context, ref string, req sandbox.RunCodeRequest, f sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "code.run"), func(c *call.Call) (*sandbox.CodeResult, error) {
		if err := validate.Code(&req); err != nil {
			return nil, err
		}
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		c.Detail = fmt.Sprintf("%s %s, %d bytes", req.Language, req.Context, len(req.Code))
		if err := s.takeStep(c.Ctx, h, "before "+string(req.Language)+" code"); err != nil {
			return nil, err
		}
		result, err := h.runCode(c.Ctx, &req, f)
		if err != nil && s.gate.Context().Err() != nil && ctx.Err() == nil && sandbox.CodeOf(err) == sandbox.CodeCancelled {
			err = call.Unavailable(err, "the server is shutting down and interrupted the code; run it again when the server is back")
		}
		return result, err
	})
}

// runCode runs checked code and passes its events to f, including the result.
func (h *handle) runCode(ctx context.Context, req *sandbox.RunCodeRequest, f sandbox.CodeSink) (*sandbox.CodeResult, error) {
	var pass sandbox.CodeSink
	if f != nil {
		pass = func(e sandbox.CodeEvent) error {
			if err := f(e); err != nil {
				return &call.CallbackError{Err: err}
			}
			return nil
		}
	}
	result, err := h.client.RunCode(ctx, req, pass)
	if err != nil {
		return nil, h.explain(ctx, err)
	}
	if req.Fresh {
		result.Context = ""
	}
	if pass != nil {
		err = pass(sandbox.CodeEvent{Result: result})
	}
	return result, err
}

// ListContexts implements [sandbox.Interpreters].
func (s *Service) ListContexts(ctx context.Context, ref string) (*sandbox.List[sandbox.CodeContext], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.CodeContext], error) {
		h, err := s.openFor(c, ref)
		if err != nil {
			return nil, err
		}
		contexts, err := h.client.ListContexts(c.Ctx)
		if err != nil {
			return nil, h.explain(c.Ctx, err)
		}
		return &sandbox.List[sandbox.CodeContext]{Items: contexts}, nil
	})
}

// context opens the caller's sandbox for a verb on one of its contexts.
func (s *Service) context(c *call.Call, name string, ref *sandbox.ContextRef) (*handle, error) {
	if err := validate.ContextRef(ref); err != nil {
		return nil, err
	}
	c.Detail = string(ref.Language) + " " + ref.Name
	return s.openFor(c, name)
}

// InterruptContext implements [sandbox.Interpreters].
func (s *Service) InterruptContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "code.interrupt"), func(c *call.Call) (*sandbox.CodeContext, error) {
		h, err := s.context(c, name, &ref)
		if err != nil {
			return nil, err
		}
		now, err := h.client.InterruptContext(c.Ctx, ref)
		return now, h.explain(c.Ctx, err)
	})
}

// RestartContext implements [sandbox.Interpreters].
func (s *Service) RestartContext(ctx context.Context, name string, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return call.Do(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "code.restart"), func(c *call.Call) (*sandbox.CodeContext, error) {
		h, err := s.context(c, name, &ref)
		if err != nil {
			return nil, err
		}
		now, err := h.client.RestartContext(c.Ctx, ref)
		return now, h.explain(c.Ctx, err)
	})
}

// DeleteContext implements [sandbox.Interpreters].
func (s *Service) DeleteContext(ctx context.Context, name string, ref sandbox.ContextRef) error {
	return call.Run(ctx, s.gate, call.Audited(sandbox.ScopeSandboxesWrite, "code.delete"), func(c *call.Call) error {
		h, err := s.context(c, name, &ref)
		if err != nil {
			return err
		}
		err = h.client.DeleteContext(c.Ctx, ref)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		return h.explain(c.Ctx, err)
	})
}
