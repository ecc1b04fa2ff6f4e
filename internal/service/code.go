package service

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cove-sh/cove/internal/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// defaultContext is where code runs that names no context.
const defaultContext = "default"

// RunCode implements [sandbox.Interpreters]. On its path there is one call to
// the agent, and nothing is written, unless the sandbox has a history.
func (s *Service) RunCode(ctx context.Context, ref string, req sandbox.RunCodeRequest, f sandbox.CodeSink) (_ *sandbox.CodeResult, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesWrite, "code.run")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkCode(&req); err != nil {
		return nil, err
	}
	h, err := v.open(ref)
	if err != nil {
		return nil, err
	}
	v.detail = fmt.Sprintf("%s %s, %d bytes", req.Language, req.Context, len(req.Code))
	if err := s.takeStep(v.ctx, h, "before "+string(req.Language)+" code"); err != nil {
		return nil, err
	}
	result, err := h.runCode(v.ctx, &req, f)
	if err != nil && s.ctx.Err() != nil && ctx.Err() == nil && sandbox.CodeOf(err) == sandbox.CodeCancelled {
		err = unavailable(err, "the server is shutting down and has interrupted the code; run it again when the server is back")
	}
	return result, err
}

// runCode runs checked code and passes what happens to f, the result too.
func (h *handle) runCode(ctx context.Context, req *sandbox.RunCodeRequest, f sandbox.CodeSink) (*sandbox.CodeResult, error) {
	var pass sandbox.CodeSink
	if f != nil {
		pass = func(e sandbox.CodeEvent) error {
			if err := f(e); err != nil {
				return &callbackError{err}
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

// checkCode refuses what is wrong and fills in what was left out.
func checkCode(req *sandbox.RunCodeRequest) (err error) {
	if req.Language, err = sandbox.ParseLanguage(string(req.Language)); err != nil {
		return err
	}
	if err := checkCodeText("code", req.Code); err != nil {
		return err
	}
	if req.Fresh && req.Context != "" {
		return invalid("fresh code runs in no context; leave context out, or fresh")
	}
	if req.Context, err = checkContext(req.Context); err != nil {
		return err
	}
	if err := checkEnv(req.Env); err != nil {
		return err
	}
	if req.WorkDir != "" {
		if err := checkPath("workdir", req.WorkDir); err != nil {
			return err
		}
	}
	if req.User != "" {
		if err := checkUser("user", req.User); err != nil {
			return err
		}
	}
	if len(req.Stdin) > sandbox.MaxStdinBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "stdin has %d bytes; send at most %d, and more through a file", len(req.Stdin), sandbox.MaxStdinBytes)
	}
	if err := checkRange("keep_bytes", req.KeepBytes, 0, sandbox.MaxKeepBytes); err != nil {
		return err
	}
	if err := checkRange("timeout_ms", req.TimeoutMS, 0, sandbox.MaxCodeTimeout.Milliseconds()); err != nil {
		return err
	}
	req.KeepBytes = cmp.Or(req.KeepBytes, sandbox.DefaultKeepBytes)
	req.TimeoutMS = cmp.Or(req.TimeoutMS, sandbox.DefaultCodeTimeout.Milliseconds())
	return nil
}

// checkJobCode is checkCommand of a job that runs code.
func checkJobCode(req *sandbox.ExecRequest) error {
	if len(req.Command) > 0 || req.Shell != "" {
		return invalid("give exactly one of command, shell and code")
	}
	lang, err := sandbox.ParseLanguage(string(req.Code.Language))
	if err != nil {
		return err
	}
	req.Code = &sandbox.JobCode{Language: lang, Code: req.Code.Code}
	return checkCodeText("code", req.Code.Code)
}

func checkCodeText(field, code string) error {
	if code == "" {
		return invalid("%s is empty; give the code to run", field)
	}
	if len(code) > sandbox.MaxCodeBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; give at most %d, and load more from a file", field, len(code), sandbox.MaxCodeBytes)
	}
	return checkText(field, code)
}

// checkContext returns the name of a context, which defaults.
func checkContext(name string) (string, error) {
	if name == "" {
		return defaultContext, nil
	}
	if !agentclient.ValidContextName(name) {
		return "", invalid("context %s is not valid; use 1 to 63 letters, digits, dashes, underscores and dots", quote(name))
	}
	return name, nil
}

func checkContextRef(ref *sandbox.ContextRef) (err error) {
	if ref.Language, err = sandbox.ParseLanguage(string(ref.Language)); err != nil {
		return err
	}
	ref.Name, err = checkContext(ref.Name)
	return err
}

// ListContexts implements [sandbox.Interpreters].
func (s *Service) ListContexts(ctx context.Context, ref string) (_ *sandbox.List[sandbox.CodeContext], err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	h, err := v.open(ref)
	if err != nil {
		return nil, err
	}
	contexts, err := h.client.ListContexts(v.ctx)
	if err != nil {
		return nil, h.explain(v.ctx, err)
	}
	return &sandbox.List[sandbox.CodeContext]{Items: contexts}, nil
}

// context enters a verb on a context of a running sandbox.
func (s *Service) context(ctx context.Context, action, name string, ref *sandbox.ContextRef) (*visit, *handle, error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesWrite, action)
	if err != nil {
		return v, nil, err
	}
	if err := checkContextRef(ref); err != nil {
		return v, nil, err
	}
	h, err := v.open(name)
	v.detail = string(ref.Language) + " " + ref.Name
	return v, h, err
}

// InterruptContext implements [sandbox.Interpreters].
func (s *Service) InterruptContext(ctx context.Context, name string, ref sandbox.ContextRef) (_ *sandbox.CodeContext, err error) {
	v, h, err := s.context(ctx, "code.interrupt", name, &ref)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	c, err := h.client.InterruptContext(v.ctx, ref)
	return c, h.explain(v.ctx, err)
}

// RestartContext implements [sandbox.Interpreters].
func (s *Service) RestartContext(ctx context.Context, name string, ref sandbox.ContextRef) (_ *sandbox.CodeContext, err error) {
	v, h, err := s.context(ctx, "code.restart", name, &ref)
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	c, err := h.client.RestartContext(v.ctx, ref)
	return c, h.explain(v.ctx, err)
}

// DeleteContext implements [sandbox.Interpreters].
func (s *Service) DeleteContext(ctx context.Context, name string, ref sandbox.ContextRef) (err error) {
	v, h, err := s.context(ctx, "code.delete", name, &ref)
	defer v.leave(&err)
	if err != nil {
		return err
	}
	err = h.client.DeleteContext(v.ctx, ref)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	return h.explain(v.ctx, err)
}
