package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// create makes a sandbox. A template that is defined but was never built is built
// first, within the call; a build that takes longer continues, and the error says to
// call again.
func create(ctx context.Context, c *dialect.Call, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	sb, err := c.Service.Create(ctx, req)
	if sandbox.CodeOf(err) != sandbox.CodeConflict || req.Template == "" {
		return sb, err
	}
	b, buildErr := firstBuild(ctx, c, req.Template)
	switch {
	case buildErr != nil:
		return nil, buildErr
	case b == nil:
		return nil, err // it was something else
	case b.State == sandbox.BuildReady:
		return c.Service.Create(ctx, req)
	case b.State == sandbox.BuildRunning:
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s was not built yet and is being built now (%d %%: %s); that takes some minutes and goes on by itself: make this call again, or leave template out",
			b.Template, int(b.Fraction*100), oneLine(cleanText(b.Step)))
	}
	return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s was not built yet, and building it has failed: %s; tell your user, and leave template out or choose another", b.Template, strings.TrimSuffix(cleanText(b.Reason), "."))
}

// firstBuild builds a template that is defined but was never built, or follows the
// running build, for as long as a call may take. It returns nil if the template needs
// neither.
func firstBuild(ctx context.Context, c *dialect.Call, name string) (*sandbox.Build, error) {
	t, err := c.Service.GetTemplate(ctx, name)
	if err != nil || t.State != sandbox.TemplateAvailable && t.State != sandbox.TemplateBuilding {
		return nil, nil // the error of Create says enough
	}
	var b *sandbox.Build
	if caller, ok := sandbox.CallerOf(ctx); ok && t.State == sandbox.TemplateAvailable {
		err = caller.Need(sandbox.ScopeTemplatesWrite)
	}
	if err == nil {
		if err := askToBuild(ctx, c, t); err != nil {
			return nil, err
		}
		b, err = currentBuild(ctx, c, t)
	}
	if sandbox.CodeOf(err) == sandbox.CodeForbidden {
		return nil, sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("template %s is not built yet, and this key builds no templates; tell your user to ask the server's operator for 'cove template build %s', or leave template out", t.Name, t.Name))
	}
	if err != nil || b == nil {
		return nil, err
	}
	c.Status("building template " + t.Name)
	return followFor(ctx, c, cmp.Or(c.DetachAfter, detachAfter), b.ID, func(ev sandbox.BuildEvent) error {
		if ev.Step != "" {
			c.Progress(ev.Fraction, fmt.Sprintf("building template %s: %s", t.Name, oneLine(ev.Step)))
		}
		return nil
	})
}

// followFor follows a build until it ends or the time is over, and returns the build
// as it is then.
func followFor(ctx context.Context, c *dialect.Call, limit time.Duration, id string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	enough := errors.New("enough")
	bounded, cancel := context.WithTimeoutCause(ctx, limit, enough)
	defer cancel()
	b, err := c.Service.FollowBuild(bounded, id, sink)
	if err != nil && ctx.Err() == nil && context.Cause(bounded) == enough {
		return c.Service.GetBuild(ctx, id)
	}
	return b, err
}

// askToBuild asks the client's user before a build begins, where that is possible.
func askToBuild(ctx context.Context, c *dialect.Call, t *sandbox.Template) error {
	if t.State != sandbox.TemplateAvailable || c.Ask == nil {
		return nil
	}
	yes, err := c.Ask(ctx, "build", fmt.Sprintf("Template %s is not built yet. That is done once: it downloads %s, takes some minutes (2 to 10 with a fast connection), and goes on if this call ends. Build it now?",
		t.Name, downloads(t)))
	if err == nil && !yes {
		err = sandbox.Errorf(sandbox.CodeConflict, "template %s is not built yet, and the user does not want it built now; leave template out, or choose another", t.Name)
	}
	return err
}

// downloads describes what a build fetches.
func downloads(t *sandbox.Template) string {
	switch n := len(t.Packages); {
	case n > 0:
		return fmt.Sprintf("%d Debian packages and what these need (some hundred MB)", n)
	case t.Source == "image":
		return "the layers of its image"
	}
	return "what it is made of"
}

// currentBuild returns the running build of a template, or starts one.
func currentBuild(ctx context.Context, c *dialect.Call, t *sandbox.Template) (*sandbox.Build, error) {
	if t.State == sandbox.TemplateAvailable {
		return c.Service.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: t.Name})
	}
	last, err := c.Service.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: t.Name, Page: sandbox.Page{Limit: 1}})
	if err != nil || len(last.Items) == 0 || last.Items[0].State != sandbox.BuildRunning {
		return nil, err
	}
	return &last.Items[0], nil
}
