package microsandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	pythonImage = "microsandbox/python"
	nodeImage   = "microsandbox/node"
)

// Own reports whether an image is one of the product's two, for which the server's default
// template is used: it runs both languages.
func Own(image string) bool {
	image = strings.TrimSuffix(strings.TrimPrefix(image, "docker.io/"), ":latest")
	return image == "" || image == pythonImage || image == nodeImage
}

func sameImage(a, b string) bool { return a == b || Own(a) && Own(b) }

// template returns the template of an image: the one with that name, or one that is built
// from the image when it is first requested.
func template(ctx context.Context, c *call, image string) (string, error) {
	if Own(image) {
		return "", nil
	}
	if name, err := ReadyTemplate(ctx, c.Service, image); name != "" || err != nil {
		return name, err
	}
	if caller, _ := sandbox.CallerOf(ctx); caller.KeyID != "" && !caller.Has(sandbox.ScopeTemplatesWrite) {
		return "", sandbox.Errorf(sandbox.CodeForbidden, "the image %.200q is not here, and this key does not build templates, which all teams see; have one built by \"cove template build %s --image IMAGE\", or use a key of \"cove key microsandbox --images\"", image, TemplateName(image))
	}
	c.Status("pulling the image " + clip.Text(image, maxShown))
	name := TemplateName(image)
	_, err := c.Service.BuildTemplate(ctx, sandbox.BuildTemplateRequest{
		Name: name, Spec: &sandbox.TemplateSpec{Description: "image " + clip.Text(image, maxShown), From: sandbox.TemplateSource{Image: image}},
	}, func(ev sandbox.BuildEvent) error {
		if ev.Step != "" {
			c.Progress(ev.Fraction, clip.Text(ev.Step, maxShown))
		}
		return nil
	})
	if err != nil {
		DiscardTemplate(ctx, c.Service, name)
	}
	return name, err
}

// ReadyTemplate returns the name of the ready template of an image: the one with that name,
// or one that was built from the image; "" if there is none.
func ReadyTemplate(ctx context.Context, svc sandbox.Templates, image string) (string, error) {
	for _, name := range []string{image, TemplateName(image)} {
		t, err := svc.GetTemplate(ctx, name)
		if err == nil && t.State == sandbox.TemplateReady {
			return name, nil
		}
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeNotFound && code != sandbox.CodeInvalid {
			return "", err
		}
	}
	return "", nil
}

// DiscardTemplate deletes the template of an image that could not be built: people did not
// choose its name, so they would not look for it.
func DiscardTemplate(ctx context.Context, svc sandbox.Templates, name string) {
	ctx = context.WithoutCancel(ctx)
	if t, err := svc.GetTemplate(ctx, name); err == nil && t.State == sandbox.TemplateFailed && t.Version == 0 {
		_ = svc.DeleteTemplate(ctx, name) // the caller gets the build's error
	}
}

// TemplateName returns the name of the template that is built from an image.
func TemplateName(image string) string {
	words := strings.FieldsFunc(strings.ToLower(image), func(r rune) bool { return !alphanumeric(r) })
	sum := sha256.Sum256([]byte(image))
	short := strings.Join(words, "-")
	return "msb-" + strings.TrimRight(short[:min(len(short), 40)], "-") + "-" + hex.EncodeToString(sum[:4])
}
