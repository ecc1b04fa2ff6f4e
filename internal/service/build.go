package service

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// maxPackages bounds the packages of a template.
const maxPackages = 500

// ListTemplates implements [sandbox.Templates].
func (s *Service) ListTemplates(ctx context.Context) (_ *sandbox.List[sandbox.Template], err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	all, err := s.cfg.Templates.List(v.ctx)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[sandbox.Template]{Items: append([]sandbox.Template{}, all...)}, nil
}

// GetTemplate implements [sandbox.Templates].
func (s *Service) GetTemplate(ctx context.Context, name string) (_ *sandbox.Template, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkTemplateName(name); err != nil {
		return nil, err
	}
	return s.cfg.Templates.Get(v.ctx, name)
}

// BuildTemplate implements [sandbox.Templates].
func (s *Service) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, f func(sandbox.BuildEvent) error) (_ *sandbox.Template, err error) {
	v, err := s.enter(ctx, sandbox.ScopeTemplatesWrite, "template.build")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if !newTemplateNames.MatchString(req.Name) {
		return nil, invalid("name %s is not valid; use 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", quote(req.Name))
	}
	v.detail = req.Name
	if len(req.Packages) > maxPackages {
		return nil, invalid("packages has %d entries; give at most %d", len(req.Packages), maxPackages)
	}
	for _, p := range req.Packages {
		if !packageNames.MatchString(p) {
			return nil, invalid("package %s is not a valid name of a Debian package; correct it", quote(p))
		}
	}
	tell := func(e sandbox.BuildEvent) error {
		if f == nil {
			return nil
		}
		if err := f(e); err != nil {
			return &callbackError{err}
		}
		return nil
	}
	built, err := s.cfg.Templates.Build(v.ctx, req, tell)
	if err != nil || s.keeper == nil || s.cfg.Warm <= 0 {
		return built, err
	}
	if err := tell(sandbox.BuildEvent{Step: "start a sandbox and keep its state", Fraction: -1}); err != nil {
		return nil, err
	}
	// Without one sandboxes are created too, only not as fast.
	if err := s.prepare(v.ctx, req.Name); err != nil {
		s.log.Warn("make the golden checkpoint of a template that was built", "template", req.Name, "error", err)
	}
	return built, nil
}
