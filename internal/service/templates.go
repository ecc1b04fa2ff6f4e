package service

import (
	"context"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// TemplateProvider finds and builds templates. Its methods are safe for
// concurrent use; errors meant for the caller are [sandbox.Error] values, all
// others are reported as internal. The service has checked scopes and the
// form of names before it calls.
type TemplateProvider interface {
	// List returns all templates, built or only defined, by name.
	List(ctx context.Context) ([]sandbox.Template, error)
	// Get returns one template in any state, or a not_found error.
	Get(ctx context.Context, name string) (*sandbox.Template, error)
	// Root returns the root file system of a ready template and the template
	// itself, whose User, WorkDir, Env and Resources are defaults for a new
	// sandbox. The root stays in place for as long as an instance made from it
	// may live, whatever is built meanwhile. An unknown name is not_found; one
	// that is not ready is a conflict error that says how to build it.
	Root(ctx context.Context, name string) (engine.Root, sandbox.Template, error)
	// Build builds and reports on the way to sink, which is never nil. It
	// returns the ready template. When it fails, sink fails or ctx is
	// cancelled, an earlier build stays in use.
	Build(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error)
}
