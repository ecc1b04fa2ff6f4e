package cloud

import (
	"context"
	"errors"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/sandbox"
)

// The ways to pull an image.
const (
	pullMissing = "if_missing"
	pullAlways  = "always"
	pullNever   = "never"
)

// choose sets the template of a new sandbox, and its user. The template is the one that the
// image names, or one that is built from the image.
func (d *Door) choose(ctx context.Context, body *spec, req *sandbox.CreateRequest, wait time.Duration) error {
	image := body.Image.Reference
	if !microsandbox.Own(image) {
		var err error
		if req.Template, err = d.template(ctx, image, body.Pull, wait); err != nil {
			return err
		}
	}
	if req.User != "" {
		return nil
	}
	req.User = "root" // as in the product
	if req.Template == "" {
		return nil
	}
	t, err := d.cfg.Service.GetTemplate(ctx, req.Template)
	if err == nil && t.User != "" {
		req.User = "" // the image's own
	}
	return err
}

// template returns the template of an image: the one with that name, or one that is built
// from the image.
func (d *Door) template(ctx context.Context, image, pull string, wait time.Duration) (string, error) {
	built := microsandbox.TemplateName(image)
	switch pull {
	case "", pullMissing, pullNever:
		if name, err := microsandbox.ReadyTemplate(ctx, d.cfg.Service, image); name != "" || err != nil {
			return name, err
		}
	case pullAlways:
	default:
		return "", refused("pull_policy", "give "+pullMissing+", "+pullAlways+" or "+pullNever)
	}
	if pull == pullNever {
		return "", refused("image", "it is not here, and pull_policy is "+pullNever)
	}
	if caller, _ := sandbox.CallerOf(ctx); !caller.Has(sandbox.ScopeTemplatesWrite) {
		return "", sandbox.Errorf(sandbox.CodeForbidden, "the image %q is not here, and this key does not build templates, which all teams see; have one built by \"cove template build %s --image IMAGE\", or use a key with %s", clip.Text(image, maxShown), built, sandbox.ScopeTemplatesWrite)
	}
	return built, d.build(ctx, image, built, pull == pullAlways, wait)
}

// build builds the template of an image, and waits for it. A build that takes longer
// continues, and the next call finds it.
func (d *Door) build(ctx context.Context, image, name string, force bool, wait time.Duration) error {
	b, err := d.running(ctx, name)
	if err == nil && b == nil {
		b, err = d.cfg.Service.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: name, Force: force, Spec: &sandbox.TemplateSpec{
			Description: "image " + clip.Text(image, maxShown), From: sandbox.TemplateSource{Image: image},
		}})
	}
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended, err := d.cfg.Service.FollowBuild(within, b.ID, func(sandbox.BuildEvent) error { return nil })
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(within.Err(), context.DeadlineExceeded):
		return sandbox.Errorf(sandbox.CodeUnavailable, "the image %q is still being pulled; try again in a minute", clip.Text(image, maxShown))
	case err != nil:
		return err
	case ended.State != sandbox.BuildReady:
		microsandbox.DiscardTemplate(ctx, d.cfg.Service, name)
		return refused("image", clip.Text(ended.Reason, 2000))
	}
	return nil
}

// running returns the running build of a template, or nil if there is none.
func (d *Door) running(ctx context.Context, name string) (*sandbox.Build, error) {
	page, err := d.cfg.Service.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: name, Page: sandbox.Page{Limit: 1}})
	if err != nil || len(page.Items) == 0 || page.Items[0].State != sandbox.BuildRunning {
		return nil, err
	}
	return &page.Items[0], nil
}
