package image

import (
	"context"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/oci"
	"github.com/cove-sh/cove/sandbox"
)

// source makes root file systems of one kind. Builds of different templates may run
// concurrently.
type source interface {
	// kind is the Source of its templates.
	kind() string
	// build fills the job's tree. All processes and goroutines that it starts have ended
	// when it returns. A [sandbox.Error] is meant for the caller.
	build(ctx context.Context, j *job) error
}

// job is one build.
type job struct {
	def definition
	// dir is the build's own directory, removed afterwards.
	dir    string
	tree   *tree
	report reporter
	// as, if set, is the digest of the result in place of that of its content.
	as string
	// The fields below are results of build.
	binds []engine.Bind
	env   map[string]string // added to the definition's
	// user and workDir are those of sandboxes, if not the default ones; ports are the
	// ports of servers in the image.
	user, workDir string
	ports         []int
	stamp         string
	notes         []string
	// layers are the digests of the layers in the tree.
	layers []string
}

// sourceFor returns the source for an image, an archive or a directory, or nil if the
// template starts from something else. It checks only the syntax; build finds out whether
// the image exists.
func (p *Provider) sourceFor(from sandbox.TemplateSource, login *sandbox.RegistryLogin) (source, error) {
	switch {
	case from.Image != "":
		return &imageSource{p, from.Image, login}, oci.CheckReference(from.Image)
	case validUpload.MatchString(from.Archive):
		return &archiveSource{p, from.Archive}, nil
	case from.Archive != "":
		return &archiveSource{p, from.Archive}, checkPath(from.Archive)
	case from.Directory != "":
		return &directorySource{p, from.Directory}, checkPath(from.Directory)
	}
	return nil, nil
}
