package api

import (
	"context"
	"net/http"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// templatesOnly is a service that has templates.
type templatesOnly struct {
	sandbox.Service
	all []sandbox.Template
}

func (s templatesOnly) GetTemplate(_ context.Context, name string) (*sandbox.Template, error) {
	for _, t := range s.all {
		if t.Name == name {
			return &t, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %s", name)
}

// TestChoose checks that commands run as root unless the user's own template says
// otherwise.
func TestChoose(t *testing.T) {
	built := []sandbox.Template{
		{Name: "base", State: sandbox.TemplateReady, Version: 1, User: "user"},
		{Name: "code-interpreter", State: sandbox.TemplateReady, Version: 2, User: "user"},
		{Name: "mine", State: sandbox.TemplateReady, Version: 1, User: "app"},
		{Name: "plain", State: sandbox.TemplateReady, Version: 1},
		{Name: "again", State: sandbox.TemplateBuilding, Version: 1},
		{Name: "new", State: sandbox.TemplateBuilding},
	}
	defined := []sandbox.Template{{Name: "base", State: sandbox.TemplateAvailable, User: "user"}}
	for _, c := range []struct {
		asked      string
		all        []sandbox.Template
		name, user string
		err        sandbox.Code
	}{
		{"", nil, "", "root", ""},
		{"", defined, "", "root", ""},
		{"", built, "base", "root", ""},
		{"superserve/base", built, "base", "root", ""},
		{"superserve/python-ml", built, "code-interpreter", "root", ""},
		{"mine", built, "mine", "", ""},
		{"plain", built, "plain", "root", ""},
		{"again", built, "again", "root", ""},
		{"new", built, "", "", sandbox.CodeConflict},
		{"none", built, "", "", sandbox.CodeNotFound},
	} {
		d := New(Config{Service: templatesOnly{all: c.all}, Bound: func(h http.Handler) http.Handler { return h }})
		req := sandbox.CreateRequest{Template: terms.TemplateName(c.asked)}
		err := d.choose(t.Context(), c.asked, &req)
		if sandbox.CodeOf(err) != c.err || err == nil && (req.Template != c.name || req.User != c.user) {
			t.Errorf("%q: got %q as %q, %v", c.asked, req.Template, req.User, err)
		}
	}
}
