package controllers

import (
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

// buildAgain is how long a failed build of a template holds.
const buildAgain = 5 * time.Minute

// resolve says which template of Cove a plan needs, and what its command is. An image is
// looked up in its registry, so that a tag means what it means now.
func resolve(ctx context.Context, p *plan.Plan) (*record, error) {
	rec := &record{Template: p.Template, Command: slices.Concat(p.Command, p.Args), Restart: p.Restart, Ports: p.Ports, Dirs: p.Dirs, Ignored: p.Ignored}
	if p.Template != "" {
		return rec, nil
	}
	ref, err := name.ParseReference(p.Image)
	if err != nil {
		return nil, &plan.Error{Problems: []string{"containers[0].image: " + err.Error()}}
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("look up the image: %w", err)
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, fmt.Errorf("look up the image: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the image: %w", err)
	}
	rec.Image = ref.Context().Digest(digest.String()).String()
	rec.Template = fmt.Sprintf("k8s-%x", sha256.Sum256([]byte(rec.Image)))[:40]
	entry, args := p.Command, p.Args
	if len(entry) == 0 {
		entry = config.Config.Entrypoint
		if len(args) == 0 {
			args = config.Config.Cmd
		}
	}
	rec.Command = slices.Concat(entry, args)
	return rec, nil
}

// template makes the template of an image. It returns the template when it is ready, and
// nil while it is built.
func template(ctx context.Context, cove sandbox.Service, rec *record, now time.Time) (*sandbox.Template, error) {
	t, err := cove.GetTemplate(ctx, rec.Template)
	switch {
	case err == nil && t.State == sandbox.TemplateReady:
		return t, nil
	case rec.Image == "" && err == nil:
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the template %s is not ready: build it", rec.Template)
	case rec.Image == "", err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return nil, err
	}
	builds, err := cove.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: rec.Template, Page: sandbox.Page{Limit: 1}})
	if err != nil {
		return nil, err
	}
	if len(builds.Items) > 0 {
		last := builds.Items[0]
		if last.State == sandbox.BuildRunning {
			return nil, nil
		}
		if last.EndedAt != nil && now.Before(last.EndedAt.Add(buildAgain)) && last.State != sandbox.BuildReady {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the template %s of image %s was not built: %s", rec.Template, rec.Image, last.Reason)
		}
	}
	_, err = cove.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: rec.Template, Spec: &sandbox.TemplateSpec{
		Description: "image " + rec.Image + ", for Kubernetes", From: sandbox.TemplateSource{Image: rec.Image},
	}})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		err = nil // another one builds it
	}
	return nil, err
}

// checkUser refuses a template whose user is root, if the plan asks for that.
func checkUser(p *plan.Plan, t *sandbox.Template) error {
	user, _, _ := strings.Cut(t.User, ":")
	if p.NonRoot && p.Request.User == "" && (user == "" || user == "0" || user == "root") {
		return &plan.Error{Problems: []string{"securityContext.runAsNonRoot: the user of the image is root; set runAsUser"}}
	}
	return nil
}
