// Package servertest makes daemons for tests: real ones, but for the engine,
// which is that of package memory, and the templates, of which only the one
// named host is ready. Commands are processes of the host, so tests run
// harmless ones.
package servertest

import (
	"context"
	"log/slog"
	"os"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/server"
	"github.com/cove-sh/cove/internal/service"
	"github.com/cove-sh/cove/sandbox"
)

// Assembly returns the parts of a daemon whose sandboxes end with it.
func Assembly() server.Assembly {
	return server.Assembly{
		Engine: func(_ context.Context, dir string, _ *slog.Logger) (engine.Engine, error) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
			state := memory.NewState(dir)
			return &owner{Engine: memory.New(state), state: state}, nil
		},
		Templates: func(context.Context, string, *slog.Logger) (service.TemplateProvider, error) {
			return shelf{}, nil
		},
	}
}

// owner is an engine that takes its sandboxes with it.
type owner struct {
	*memory.Engine
	state *memory.State
}

func (o *owner) Close() error {
	if err := o.Engine.Close(); err != nil {
		return err
	}
	return o.state.Close()
}

// shelf holds the templates.
type shelf struct{}

var _ service.TemplateProvider = shelf{}

func (shelf) List(context.Context) ([]sandbox.Template, error) {
	return []sandbox.Template{
		{Name: "debian", Source: "debian", State: sandbox.TemplateAvailable, Description: "a small Debian"},
		{Name: "host", Source: "host", State: sandbox.TemplateReady, Digest: "sha256-host", Description: "this machine's programs"},
	}, nil
}

func (s shelf) Get(ctx context.Context, name string) (*sandbox.Template, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Name == name {
			return &t, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %q; list the templates to see which there are", name)
}

func (s shelf) Root(ctx context.Context, name string) (engine.Root, sandbox.Template, error) {
	t, err := s.Get(ctx, name)
	switch {
	case err != nil:
		return engine.Root{}, sandbox.Template{}, err
	case t.State != sandbox.TemplateReady:
		return engine.Root{}, sandbox.Template{}, sandbox.Errorf(sandbox.CodeConflict, "template %q is not built; build it first", name)
	}
	return engine.Root{Digest: t.Digest, Dir: "/"}, *t, nil
}

func (s shelf) Build(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	for _, ev := range []sandbox.BuildEvent{{Step: "fetch packages", Fraction: 0.5}, {Step: "unpack", Fraction: 1}} {
		if err := sink(ev); err != nil {
			return nil, err
		}
	}
	t, err := s.Get(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	t.State, t.Digest = sandbox.TemplateReady, "sha256-built"
	return t, nil
}
