package image

import (
	"github.com/cove-sh/cove/sandbox"
)

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
