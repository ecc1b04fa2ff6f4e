package image

import (
	"context"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// source makes root file systems of one kind. Builds of different templates
// may run at once.
type source interface {
	// kind is the Source of its templates.
	kind() string
	// build fills the job's tree. What it started has ended when it returns.
	// An error that is a [sandbox.Error] is meant for the caller.
	build(ctx context.Context, j *job) error
}

// job is one build.
type job struct {
	def definition
	// dir is the build's own directory, removed afterwards.
	dir    string
	tree   *tree
	report reporter
	// The rest is for build to set.
	binds []engine.Bind
	env   map[string]string // added to the definition's
	// user and workDir are those of sandboxes, if not the usual ones; ports are
	// those that something serves on.
	user, workDir string
	ports         []int
	stamp         string
	notes         []string
	// layers are those that the tree was composed of.
	layers []string
}

// sourceFor returns the source that makes a root of an image, an archive or a
// directory, or nil if the template begins with something else. It looks at the
// form of what is asked for only; whether it is there, build tells.
func (p *Provider) sourceFor(from sandbox.TemplateSource, login *sandbox.RegistryLogin) (source, error) {
	switch {
	case from.Image != "":
		return newImageSource(p, from.Image, login)
	case from.Archive != "":
		return newArchiveSource(p, from.Archive)
	case from.Directory != "":
		return newDirectorySource(p, from.Directory)
	}
	return nil, nil
}
