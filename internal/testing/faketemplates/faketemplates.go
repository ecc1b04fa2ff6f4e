// Package faketemplates keeps templates in memory, for tests of what needs some and not
// their content. A build makes roots that have digests and no files; the files
// of its steps are remembered by the digest of the root that they are in.
package faketemplates

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

// Provider is a service's provider of templates. It is safe for concurrent use.
type Provider struct {
	// OnBase, when set before there are builds, is called in the middle of the
	// making of a base. Its error is that of the build.
	OnBase func(ctx context.Context, spec *sandbox.TemplateSpec, report func(step string, fraction float64, log string)) error
	// Unknown, when set, makes the error for a template that is not there.
	Unknown func(name string) error
	// NPM, when set before there are builds, are the machine's own settings.
	NPM image.NPMSettings

	dir     string                          // the root of all templates
	mu      sync.Mutex                      // guards what follows
	all     map[string]sandbox.Template     // by name
	specs   map[string]sandbox.TemplateSpec // by name
	aliases map[string]string
	claimed map[string]bool
	cache   map[string]*image.Foundation // by key
	layers  map[string][]string          // names by digest
	logins  []sandbox.RegistryLogin
}

// New returns a provider of some templates, all of which have a directory as
// their root.
func New(dir string, templates ...sandbox.Template) *Provider {
	s := &Provider{
		dir: dir, all: map[string]sandbox.Template{}, specs: map[string]sandbox.TemplateSpec{}, aliases: map[string]string{},
		claimed: map[string]bool{}, cache: map[string]*image.Foundation{}, layers: map[string][]string{},
	}
	for _, t := range templates {
		s.all[t.Name] = t
	}
	return s
}

// Put adds a template, or replaces the one of its name.
func (s *Provider) Put(t sandbox.Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[t.Name] = t
}

// LayerOf returns the names of what the last step that led to a root has
// changed, in order.
func (s *Provider) LayerOf(digest string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.layers[digest]
}

// Logins returns those with which bases were made.
func (s *Provider) Logins() []sandbox.RegistryLogin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.logins)
}

// List implements a provider of templates, as the rest does.
func (s *Provider) List(context.Context) ([]sandbox.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.all), func(a, b sandbox.Template) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Get returns a template by its name or an alias.
func (s *Provider) Get(_ context.Context, name string) (*sandbox.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.all[cmp.Or(s.aliases[name], name)]
	switch {
	case ok:
		return &t, nil
	case s.Unknown != nil:
		return nil, s.Unknown(name)
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template %q; list the templates to see which exist", name)
}

// Root returns the root of a template that is ready.
func (s *Provider) Root(ctx context.Context, name string) (engine.Root, sandbox.Template, error) {
	t, err := s.Get(ctx, name)
	switch {
	case err != nil:
		return engine.Root{}, sandbox.Template{}, err
	case t.State != sandbox.TemplateReady:
		return engine.Root{}, sandbox.Template{}, sandbox.Errorf(sandbox.CodeConflict, "template %q is not built; build it first", name)
	}
	return engine.Root{Digest: t.Digest, Dir: s.dir}, *t, nil
}

// Plan takes any spec, and builds what is not ready.
func (s *Provider) Plan(_ context.Context, req sandbox.BuildTemplateRequest) (*image.Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &image.Plan{Name: req.Name, Anew: req.Force, Spec: s.specs[req.Name], Login: req.Login}
	switch {
	case req.Spec != nil:
		p.Spec = *req.Spec
	case len(req.Packages) > 0:
		p.Spec = sandbox.TemplateSpec{From: sandbox.TemplateSource{Debian: "bookworm"}, Apt: req.Packages}
	case p.Spec.From == sandbox.TemplateSource{}:
		p.Spec.From.Debian = "bookworm"
	}
	if t, ok := s.all[req.Name]; ok && t.State == sandbox.TemplateReady && !req.Force {
		p.Ready = &t
	}
	return p, nil
}

// Claim lets one build of a name run at a time.
func (s *Provider) Claim(name string, _ sandbox.Resources) (func(error), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed[name] {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s is being built already; wait for that build", name)
	}
	s.claimed[name] = true
	return func(error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.claimed, name)
	}, nil
}

// Base returns an empty root.
func (s *Provider) Base(ctx context.Context, plan *image.Plan, report func(string, float64, string)) (*image.Foundation, error) {
	spec := &plan.Spec
	if plan.Login != nil {
		s.mu.Lock()
		s.logins = append(s.logins, *plan.Login)
		s.mu.Unlock()
	}
	report("unpack", 0.5, "a line")
	if s.OnBase != nil {
		if err := s.OnBase(ctx, spec, report); err != nil {
			return nil, err
		}
	}
	t := sandbox.Template{Packages: spec.Apt}
	if from := spec.From.Template; from != "" {
		base, err := s.Get(ctx, from)
		if err != nil {
			return nil, err
		}
		t.Resources, t.User = base.Resources, base.User
	}
	return &image.Foundation{Root: engine.Root{Digest: "sha256:base", Dir: s.dir}, Template: t}, ctx.Err()
}

// Extended returns what Extend has kept.
func (s *Provider) Extended(_ *image.Foundation, key string) *image.Foundation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cache[key]
}

// Extend reads a layer and makes a digest of it.
func (s *Provider) Extend(ctx context.Context, b *image.Foundation, key string, open func(context.Context) (io.ReadCloser, error)) (*image.Foundation, error) {
	r, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	sum := sha256.New()
	var names []string
	for tr := tar.NewReader(io.TeeReader(r, sum)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		names = append(names, h.Name)
	}
	if _, err := io.Copy(sum, r); err != nil {
		return nil, err
	}
	next := *b
	next.Root.Digest = fmt.Sprintf("sha256:%x", sum.Sum(nil))
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(names)
	s.layers[next.Root.Digest], s.cache[key] = names, &next
	return &next, nil
}

// Publish makes a template ready.
func (s *Provider) Publish(name string, spec *sandbox.TemplateSpec, b *image.Foundation) (*sandbox.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := sandbox.Template{
		Name: name, Source: "debian", State: sandbox.TemplateReady, Packages: spec.Apt, Digest: b.Root.Digest,
		Version: s.all[name].Version + 1, Start: spec.Start, Ports: spec.Ports, Description: spec.Description, Resources: spec.Resources,
	}
	s.all[name], s.specs[name] = t, *spec
	return &t, nil
}

// Alias gives a template a further name.
func (s *Provider) Alias(alias, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.aliases, alias)
	if _, ok := s.all[name]; !ok && name != "" {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no template %q; list the templates to see which exist", name)
	}
	if name != "" {
		s.aliases[alias] = name
	}
	return nil
}

// Delete removes a template.
func (s *Provider) Delete(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.all[name]; !ok {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no template %q; list the templates to see which exist", name)
	}
	delete(s.all, name)
	delete(s.specs, name)
	return nil
}

// Collect has nothing to remove.
func (*Provider) Collect(map[string]bool) ([]string, error) { return nil, nil }

// AptSettings are none.
func (*Provider) AptSettings() (sources, conf string) { return "", "" }

// NPMSettings are those that the test has set.
func (s *Provider) NPMSettings() image.NPMSettings { return s.NPM }
