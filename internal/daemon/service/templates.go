package service

import (
	"context"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// ListTemplates implements [sandbox.Templates].
func (s *Service) ListTemplates(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Template], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Template], error) {
		all, err := s.cfg.Templates.List(c.Ctx)
		if err != nil {
			return nil, err
		}
		list, err := call.PageOf("templates", all, page, func(t *sandbox.Template) store.Place { return store.Place{Text: t.Name} })
		if err != nil {
			return nil, err
		}
		sizes, err := s.goldenSizes(c.Ctx)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			s.tellWarm(&list.Items[i], sizes)
		}
		return list, nil
	})
}

// GetTemplate implements [sandbox.Templates].
func (s *Service) GetTemplate(ctx context.Context, name string) (*sandbox.Template, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Template, error) {
		if err := validate.TemplateName(name); err != nil {
			return nil, err
		}
		t, err := s.cfg.Templates.Get(c.Ctx, name)
		if err != nil {
			return nil, err
		}
		sizes, err := s.goldenSizes(c.Ctx)
		if err != nil {
			return nil, err
		}
		s.tellWarm(t, sizes)
		return t, nil
	})
}

// goldenSizes returns the disk space of golden checkpoints, by id.
func (s *Service) goldenSizes(ctx context.Context) (map[string]int64, error) {
	if s.checkpointer == nil || s.cfg.Warm <= 0 {
		return nil, nil
	}
	kept, err := s.checkpointer.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, c := range kept {
		if strings.HasPrefix(c.ID, ids.Golden) {
			sizes[c.ID] = c.SizeBytes
		}
	}
	return sizes, nil
}

// tellWarm sets WarmBytes of a template to the size of its golden checkpoint. It does not ask
// for the root, which may be elsewhere.
func (s *Service) tellWarm(t *sandbox.Template, sizes map[string]int64) {
	if len(sizes) == 0 || t.State != sandbox.TemplateReady || t.Digest == "" {
		return
	}
	if id, err := s.goldenID(s.defaultsOf(engine.Root{Digest: t.Digest}, t)); err == nil {
		t.WarmBytes = sizes[id]
	}
}

// Prepare makes a template ready to use, and begins to make its golden checkpoint, from
// which its sandboxes are then created in milliseconds.
func (s *Service) Prepare(ctx context.Context, template string) error {
	k, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	if _, release, ok := s.golden.use(k, ""); ok {
		release()
	}
	return nil
}

// prepare makes the golden checkpoint of a template for a team, unless it is already
// being made.
func (s *Service) prepare(ctx context.Context, template, team string) error {
	k, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	id, err := s.goldenID(k)
	if err != nil {
		return err
	}
	s.golden.mu.Lock()
	first := s.golden.claim(id, team)
	s.golden.mu.Unlock()
	if !first {
		return nil
	}
	return s.golden.make(ctx, id, k)
}

// defaults returns the kind of golden checkpoint of a template's sandboxes with default
// resources and user.
func (s *Service) defaults(ctx context.Context, template string) (*goldenKind, error) {
	root, t, err := s.cfg.Templates.Root(ctx, template)
	if err != nil {
		return nil, err
	}
	return s.defaultsOf(root, &t), nil
}

func (s *Service) defaultsOf(root engine.Root, t *sandbox.Template) *goldenKind {
	r := s.newRecord(&sandbox.CreateRequest{}, t, "")
	return s.kindHere(root, r.Resources, t, r.User)
}
