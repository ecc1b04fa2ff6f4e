package service

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/service/call"
	"github.com/cove-sh/cove/internal/service/ids"
	"github.com/cove-sh/cove/internal/service/validate"
	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// StartBuild implements [sandbox.Templates].
func (s *Service) StartBuild(ctx context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.build"), func(c *call.Call) (*sandbox.Build, error) {
		b, err := s.startBuild(c, &req)
		if err != nil {
			return nil, err
		}
		return b.now(), nil
	})
}

// BuildTemplate implements [sandbox.Templates]. It is a build in the background
// that ends with its caller.
func (s *Service) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, f func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.build"), func(c *call.Call) (*sandbox.Template, error) {
		b, err := s.startBuild(c, &req)
		if err != nil {
			return nil, err
		}
		if f == nil {
			f = func(sandbox.BuildEvent) error { return nil }
		}
		if err := s.follow(c.Ctx, b, f); err != nil {
			b.cancel(errBuildCancelled)
			<-b.done
			return nil, err
		}
		<-b.done
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.template, b.err
	})
}

// follow passes the events of a build under way to sink until it has ended.
func (s *Service) follow(ctx context.Context, b *building, sink func(sandbox.BuildEvent) error) error {
	if err := s.followLog(ctx, b.record.ID, b.log, sink); err != nil {
		return err
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// GetBuild implements [sandbox.Templates].
func (s *Service) GetBuild(ctx context.Context, id string) (*sandbox.Build, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Build, error) {
		return s.buildOf(c.Ctx, id)
	})
}

// buildOf returns a build as it is now.
func (s *Service) buildOf(ctx context.Context, id string) (*sandbox.Build, error) {
	if b := s.underWay(id); b != nil {
		return b.now(), nil
	}
	if b := s.endOf(id); b != nil {
		return b, nil
	}
	if !strings.HasPrefix(id, ids.Build) || len(id) > sandbox.MaxNameLength || validate.Text("build", id) != nil {
		return nil, noBuild(id)
	}
	r, err := s.cfg.Store.Build(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, noBuild(id)
	}
	return &r.Build, err
}

func noBuild(id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no build %s; list the builds to see which there are", validate.Quote(id))
}

// ListBuilds implements [sandbox.Templates].
func (s *Service) ListBuilds(ctx context.Context, req sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Build], error) {
		if req.Template != "" {
			if err := validate.TemplateName(req.Template); err != nil {
				return nil, err
			}
		}
		records, next, err := s.cfg.Store.ListBuilds(c.Ctx, store.BuildFilter{Template: req.Template}, req.Page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Build]{Items: make([]sandbox.Build, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = r.Build
			if b := s.underWay(r.ID); b != nil {
				list.Items[i] = *b.now()
			} else if b := s.endOf(r.ID); b != nil {
				list.Items[i] = *b
			}
		}
		return list, nil
	})
}

// FollowBuild implements [sandbox.Templates].
func (s *Service) FollowBuild(ctx context.Context, id string, f func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Build, error) {
		b := s.underWay(id)
		done, err := s.buildOf(c.Ctx, id)
		if err != nil {
			return nil, err
		}
		if b == nil {
			return done, s.followLog(c.Ctx, id, nil, f)
		}
		if err := s.follow(c.Ctx, b, f); err != nil {
			return nil, err
		}
		return b.now(), nil
	})
}

// CancelBuild implements [sandbox.Templates].
func (s *Service) CancelBuild(ctx context.Context, id string) (*sandbox.Build, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.cancel"), func(c *call.Call) (*sandbox.Build, error) {
		c.Detail = id
		b := s.underWay(id)
		if b == nil {
			return s.buildOf(c.Ctx, id)
		}
		b.cancel(errBuildCancelled)
		select {
		case <-b.done:
			return b.now(), nil
		case <-c.Ctx.Done():
			return nil, c.Ctx.Err()
		}
	})
}

// AliasTemplate implements [sandbox.Templates].
func (s *Service) AliasTemplate(ctx context.Context, alias, name string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.alias"), func(c *call.Call) error {
		if !validate.NewTemplateNames.MatchString(alias) {
			return validate.Errorf("alias %s is not valid; use 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", validate.Quote(alias))
		}
		c.Detail = alias
		if name != "" {
			if err := validate.TemplateName(name); err != nil {
				return err
			}
			c.Detail += " for " + name
		}
		return s.cfg.Templates.Alias(alias, name)
	})
}

// DeleteTemplate implements [sandbox.Templates].
func (s *Service) DeleteTemplate(ctx context.Context, name string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.delete"), func(c *call.Call) error {
		if err := validate.TemplateName(name); err != nil {
			return err
		}
		c.Detail = name
		return s.cfg.Templates.Delete(name)
	})
}

// tidyEvery is how often old builds and templates are looked for.
const tidyEvery = 10 * time.Minute

// tidyBuilds forgets old builds and removes what is left of old templates, now
// and then.
func (s *Service) tidyBuilds(ctx context.Context) error {
	s.builds.mu.Lock()
	due := time.Since(s.builds.tidied) > tidyEvery
	if due {
		s.builds.tidied = time.Now()
	}
	s.builds.mu.Unlock()
	err := s.recordEnds(ctx)
	if !due {
		return err
	}
	return errors.Join(err, s.trimBuilds(ctx), s.collectTemplates(ctx))
}

// collectTemplates removes what is left of deleted templates and old versions
// when no sandbox, snapshot, golden checkpoint or build needs it any more.
func (s *Service) collectTemplates(ctx context.Context) error {
	inUse, err := s.Roots(ctx)
	if err != nil {
		return err
	}
	removed, err := s.cfg.Templates.Collect(inUse)
	for _, digest := range removed {
		s.log.Info("old template removed", "digest", digest)
	}
	s.golden.forget(removed)
	return err
}
