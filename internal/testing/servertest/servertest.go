// Package servertest makes daemons for tests: real ones, but for the engine,
// which is that of package memory, and the templates, of which only the one
// named host is ready. Commands are processes of the host, so tests run
// harmless ones.
package servertest

import (
	"context"
	"log/slog"
	"os"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// Assembly returns the parts of a daemon whose sandboxes end with it.
func Assembly() server.Assembly {
	return server.Assembly{
		Engine: func(_ context.Context, dir string, _ *config.Config, _ *slog.Logger) (engine.Engine, error) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
			state := memory.NewState(dir)
			return &owner{Engine: memory.New(state), state: state}, nil
		},
		Templates: func(context.Context, string, *config.Config, *slog.Logger) (service.TemplateProvider, error) {
			return templates(), nil
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

// templates are one that is ready, and one that can be built; the image no-such
// cannot be had.
func templates() service.TemplateProvider {
	s := faketemplates.New("/",
		sandbox.Template{Name: "debian", Source: "debian", State: sandbox.TemplateAvailable, Description: "a small Debian"},
		sandbox.Template{Name: "host", Source: "host", State: sandbox.TemplateReady, Digest: "sha256-host", Description: "this machine's programs"},
	)
	s.OnBase = func(_ context.Context, spec *sandbox.TemplateSpec, report func(string, float64, string)) error {
		report("fetch packages", 0.7, "")
		if spec.From.Image == "example.com/no-such" {
			return sandbox.Errorf(sandbox.CodeInvalid, "there is no image no-such")
		}
		return nil
	}
	return s
}
