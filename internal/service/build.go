package service

import (
	"context"
	"strings"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// ListTemplates implements [sandbox.Templates].
func (s *Service) ListTemplates(ctx context.Context, page sandbox.Page) (_ *sandbox.List[sandbox.Template], err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	all, err := s.cfg.Templates.List(v.ctx)
	if err != nil {
		return nil, err
	}
	list, err := pageOf("templates", all, page, func(t *sandbox.Template) store.Place { return store.Place{Text: t.Name} })
	if err != nil {
		return nil, err
	}
	sizes, err := s.goldenSizes(v.ctx)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		s.tellWarm(v.ctx, list.Items[i].Name, &list.Items[i], sizes)
	}
	return list, nil
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
	t, err := s.cfg.Templates.Get(v.ctx, name)
	if err != nil {
		return nil, err
	}
	sizes, err := s.goldenSizes(v.ctx)
	if err != nil {
		return nil, err
	}
	s.tellWarm(v.ctx, name, t, sizes)
	return t, nil
}

// goldenSizes returns what golden checkpoints take on disk, by id.
func (s *Service) goldenSizes(ctx context.Context) (map[string]int64, error) {
	if s.keeper == nil || s.cfg.Warm <= 0 {
		return nil, nil
	}
	kept, err := s.keeper.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, c := range kept {
		if strings.HasPrefix(c.ID, goldenPrefix) {
			sizes[c.ID] = c.SizeBytes
		}
	}
	return sizes, nil
}

// tellWarm says of a template what the checkpoint takes that its sandboxes begin
// with. One that was deleted just now has none.
func (s *Service) tellWarm(ctx context.Context, name string, t *sandbox.Template, sizes map[string]int64) {
	if len(sizes) == 0 || t.State != sandbox.TemplateReady || t.Digest == "" {
		return
	}
	k, err := s.defaults(ctx, name)
	if err != nil {
		return
	}
	if id, err := s.goldenID(k); err == nil {
		t.WarmBytes = sizes[id]
	}
}
