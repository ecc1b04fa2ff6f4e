package builds

import (
	"context"
	"io"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

// archiveKeeper is a [Templates] that keeps archives for builds.
type archiveKeeper interface {
	// KeepArchive stores what it reads, all of it or nothing.
	KeepArchive(ctx context.Context, up image.Upload, content io.Reader) (*sandbox.ArchiveUpload, error)
	// HasArchive reports whether an archive exists, and prolongs its retention.
	HasArchive(name string) bool
	// Copy makes a root from a base and files of an archive; kept says that the root is
	// from an earlier build.
	Copy(ctx context.Context, b *image.Foundation, c *sandbox.TemplateCopy, anew bool) (next *image.Foundation, kept bool, err error)
}

// UploadArchive implements [sandbox.Templates].
func (x *Builder) UploadArchive(ctx context.Context, content io.Reader) (*sandbox.ArchiveUpload, error) {
	return call.Do(ctx, x.cfg.Gate, call.Audited(sandbox.ScopeTemplatesWrite, "template.upload"), func(c *call.Call) (*sandbox.ArchiveUpload, error) {
		keeper, err := x.archives()
		if err != nil {
			return nil, err
		}
		return keeper.KeepArchive(c.Ctx, image.Upload{}, content)
	})
}

// archives returns the keeper of archives, or an error if there is none.
func (x *Builder) archives() (archiveKeeper, error) {
	keeper, ok := x.cfg.Templates.(archiveKeeper)
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "this server takes no archives; use an image in a registry, and files in the spec")
	}
	return keeper, nil
}

// Templates finds and builds templates. Its methods are safe for
// concurrent use; errors meant for the caller are [sandbox.Error] values, all
// others are reported as internal. The service has checked scopes and the
// form of names before it calls.
type Templates interface {
	// List returns all templates, built or only defined, sorted by name.
	List(ctx context.Context) ([]sandbox.Template, error)
	// Get returns one template in any state by its name, NAME@VERSION or an
	// alias, or a not_found error.
	Get(ctx context.Context, name string) (*sandbox.Template, error)
	// Root returns the root file system of a ready template and the template
	// itself, whose User, WorkDir, Env and Resources are defaults for a new
	// sandbox. The root stays in place for as long as an instance made from it
	// may live, whatever is built meanwhile. An unknown name is not_found; one
	// that is not ready is a conflict error that says how to build it.
	Root(ctx context.Context, name string) (engine.Root, sandbox.Template, error)
	// Plan finds out what must be built for a request, or that the template is ready.
	Plan(ctx context.Context, req sandbox.BuildTemplateRequest) (*image.Plan, error)
	// Claim reserves a name for the caller's build, until done is called with its
	// error. A name that is being built is a conflict. Until it has a version, the
	// template is listed with shape as its resources.
	Claim(name string, shape sandbox.Resources) (done func(error), err error)
	// Base makes the root that a plan begins with, unless that is a snapshot. After an
	// error, nothing is left.
	Base(ctx context.Context, plan *image.Plan, report func(step string, fraction float64, log string)) (*image.Foundation, error)
	// Extend makes a root from another root and a layer in the format of OCI images,
	// and keeps it under the key. Extended returns what is kept, or nil.
	Extend(ctx context.Context, b *image.Foundation, key string, open func(context.Context) (io.ReadCloser, error)) (*image.Foundation, error)
	Extended(b *image.Foundation, key string) *image.Foundation
	// Publish makes a root the newest version of a template, atomically.
	Publish(name string, spec *sandbox.TemplateSpec, b *image.Foundation) (*sandbox.Template, error)
	// Alias and Delete are the verbs of [sandbox.Templates].
	Alias(alias, name string) error
	Delete(name string) error
	// Collect removes roots that no template has and whose digests are not in use. It
	// returns the digests that it removed. Roots that were given out since a name was
	// claimed stay until the claim is done.
	Collect(inUse map[string]bool) (removed []string, err error)
	// AptSettings returns the machine's own settings: a sources.list, "" for Debian's
	// own mirrors, and an apt.conf.
	AptSettings() (sources, conf string)
	// NPMSettings returns the machine's own settings.
	NPMSettings() image.NPMSettings
}
