package microsandbox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// builders is a service that knows one template and records builds.
type builders struct {
	sandbox.Service
	built []string
}

func (b *builders) GetTemplate(_ context.Context, name string) (*sandbox.Template, error) {
	if name == "alpine" {
		return &sandbox.Template{Name: name, State: sandbox.TemplateReady}, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such template")
}

func (b *builders) BuildTemplate(_ context.Context, req sandbox.BuildTemplateRequest, _ func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	b.built = append(b.built, req.Spec.From.Image)
	return &sandbox.Template{}, nil
}

// failing is a service in which no image can be built.
type failing struct {
	builders
	deleted []string
}

func (f *failing) BuildTemplate(ctx context.Context, req sandbox.BuildTemplateRequest, each func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	_, _ = f.builders.BuildTemplate(ctx, req, each)
	return nil, sandbox.Errorf(sandbox.CodeInvalid, "there is no such image")
}

func (f *failing) GetTemplate(ctx context.Context, name string) (*sandbox.Template, error) {
	if len(f.built) > 0 {
		return &sandbox.Template{Name: name, State: sandbox.TemplateFailed}, nil
	}
	return f.builders.GetTemplate(ctx, name)
}

func (f *failing) DeleteTemplate(_ context.Context, name string) error {
	f.deleted = append(f.deleted, name)
	return nil
}

// TestFailedImageIsDiscarded checks that an image that cannot be built leaves no template.
func TestFailedImageIsDiscarded(t *testing.T) {
	svc := &failing{}
	c := &call{Call: &dialect.Call{Service: svc, Status: func(string) {}}}
	_, err := template(t.Context(), c, "no/such:image")
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || len(svc.deleted) != 1 || svc.deleted[0] != TemplateName("no/such:image") {
		t.Errorf("%v; deleted %q", err, svc.deleted)
	}
}

// TestImageScopeOfKeys attacks with a key for one namespace, building
// templates that all teams see.
func TestImageScopeOfKeys(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	for _, images := range []bool{false, true} {
		text, err := NewKey(key, Grant{Namespace: "research", Images: images}, time.Now(), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		grant, err := readKey(key, text)
		if err != nil {
			t.Fatal(err)
		}
		svc := &builders{}
		c := &call{Call: &dialect.Call{Service: svc, Status: func(string) {}}}
		ctx := sandbox.WithCaller(t.Context(), callerFor(grant))
		for _, there := range []string{"alpine", "microsandbox/python", ""} {
			if _, err := template(ctx, c, there); err != nil {
				t.Errorf("%q with images %v: %v", there, images, err)
			}
		}
		_, err = template(ctx, c, "python:3.12")
		if images && (err != nil || len(svc.built) != 1) {
			t.Errorf("a key that says so: %v, built %q", err, svc.built)
		}
		if !images && (sandbox.CodeOf(err) != sandbox.CodeForbidden || !strings.Contains(err.Error(), "--images") || len(svc.built) != 0) {
			t.Errorf("a key that does not say so: %v, built %q", err, svc.built)
		}
	}
}
