// Package builds makes templates. A build is a record, a log on disk and work in the
// background; each step runs in a sandbox of its own. The package also receives the
// archives that builds need.
package builds

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// StartBuild implements [sandbox.Templates].
func (x *Builder) StartBuild(ctx context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.build"), func(c *call.Call) (*sandbox.Build, error) {
		b, err := x.startBuild(c, &req)
		if err != nil {
			return nil, err
		}
		return b.now(), nil
	})
}

// BuildTemplate implements [sandbox.Templates]. It starts a background build that ends
// if its caller goes away.
func (x *Builder) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, f func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.build"), func(c *call.Call) (*sandbox.Template, error) {
		b, err := x.startBuild(c, &req)
		if err != nil {
			return nil, err
		}
		if f == nil {
			f = func(sandbox.BuildEvent) error { return nil }
		}
		if err := x.follow(c.Ctx, b, f); err != nil {
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
func (x *Builder) follow(ctx context.Context, b *building, sink func(sandbox.BuildEvent) error) error {
	if err := x.followLog(ctx, b.record.ID, b.log, sink); err != nil {
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
func (x *Builder) GetBuild(ctx context.Context, id string) (*sandbox.Build, error) {
	return call.Do(ctx, x.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Build, error) {
		return x.buildOf(c.Ctx, id)
	})
}

// buildOf returns the current state of a build.
func (x *Builder) buildOf(ctx context.Context, id string) (*sandbox.Build, error) {
	if b := x.underWay(id); b != nil {
		return b.now(), nil
	}
	if b := x.endOf(id); b != nil {
		return b, nil
	}
	if !strings.HasPrefix(id, ids.Build) || len(id) > sandbox.MaxNameLength || validate.Text("build", id) != nil {
		return nil, noBuild(id)
	}
	r, err := x.cfg.Store.Build(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, noBuild(id)
	}
	return &r.Build, err
}

func noBuild(id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no build %s; list the builds to see which exist", validate.Quote(id))
}

// ListBuilds implements [sandbox.Templates].
func (x *Builder) ListBuilds(ctx context.Context, req sandbox.ListBuildsRequest) (*sandbox.List[sandbox.Build], error) {
	return call.Do(ctx, x.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Build], error) {
		if req.Template != "" {
			if err := validate.TemplateName(req.Template); err != nil {
				return nil, err
			}
		}
		records, next, err := x.cfg.Store.ListBuilds(c.Ctx, store.BuildFilter{Template: req.Template}, req.Page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Build]{Items: make([]sandbox.Build, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = r.Build
			if b := x.underWay(r.ID); b != nil {
				list.Items[i] = *b.now()
			} else if b := x.endOf(r.ID); b != nil {
				list.Items[i] = *b
			}
		}
		return list, nil
	})
}

// FollowBuild implements [sandbox.Templates].
func (x *Builder) FollowBuild(ctx context.Context, id string, f func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	return call.Do(ctx, x.cfg.Gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Build, error) {
		b := x.underWay(id)
		done, err := x.buildOf(c.Ctx, id)
		if err != nil {
			return nil, err
		}
		if b == nil {
			return done, x.followLog(c.Ctx, id, nil, f)
		}
		if err := x.follow(c.Ctx, b, f); err != nil {
			return nil, err
		}
		return b.now(), nil
	})
}

// CancelBuild implements [sandbox.Templates].
func (x *Builder) CancelBuild(ctx context.Context, id string) (*sandbox.Build, error) {
	return call.Do(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.cancel"), func(c *call.Call) (*sandbox.Build, error) {
		c.Detail = id
		b := x.underWay(id)
		if b == nil {
			return x.buildOf(c.Ctx, id)
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
func (x *Builder) AliasTemplate(ctx context.Context, alias, name string) error {
	return call.Run(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.alias"), func(c *call.Call) error {
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
		return x.cfg.Templates.Alias(alias, name)
	})
}

// DeleteTemplate implements [sandbox.Templates].
func (x *Builder) DeleteTemplate(ctx context.Context, name string) error {
	return call.Run(ctx, x.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeTemplatesWrite, "template.delete"), func(c *call.Call) error {
		if err := validate.TemplateName(name); err != nil {
			return err
		}
		c.Detail = name
		return x.cfg.Templates.Delete(name)
	})
}

// tidyEvery is the least time between two clean-ups of old builds and templates.
const tidyEvery = 10 * time.Minute

// Tidy removes old builds and what is left of old templates, at most every [tidyEvery].
func (x *Builder) Tidy(ctx context.Context) error {
	x.mu.Lock()
	due := time.Since(x.tidied) > tidyEvery
	if due {
		x.tidied = time.Now()
	}
	x.mu.Unlock()
	err := x.recordEnds(ctx)
	if !due {
		return err
	}
	return errors.Join(err, x.trimBuilds(ctx), x.collectTemplates(ctx))
}

// collectTemplates removes what is left of deleted templates and old versions
// when no sandbox, snapshot, golden checkpoint or build needs it any more.
func (x *Builder) collectTemplates(ctx context.Context) error {
	inUse, err := x.cfg.Roots(ctx)
	if err != nil {
		return err
	}
	removed, err := x.cfg.Templates.Collect(inUse)
	for _, digest := range removed {
		x.cfg.Log.Info("old template removed", "digest", digest)
	}
	x.cfg.Forget(removed)
	return err
}
