package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// A build starts from a [Foundation]. Its steps run in sandboxes, which do not depend on
// this package. The changes of a step come back as a layer, from which [Provider.Extend]
// makes the next root. Each root is cached under a key of what it was made from, so that
// later builds with the same beginning find it.

// Plan is what a request asks to build.
type Plan struct {
	Name string
	// Spec is the request's, an earlier build's, or a built-in definition's.
	Spec sandbox.TemplateSpec
	// Ready is set if there is nothing to build.
	Ready *sandbox.Template
	// Anew is set if no results of earlier builds may be used.
	Anew bool
	// Login is the login at the registry of the spec's image; nil means the server's own.
	Login *sandbox.RegistryLogin
}

// Foundation is the starting point of a build's steps.
type Foundation struct {
	Root engine.Root
	// Template holds the settings that templates made from the base inherit.
	Template sandbox.Template

	layers    []string // layers that the root was composed of
	notes     []string
	stamp     string
	sizeBytes int64
}

// Claim reserves a name for a build by this caller, until done is called with the build's
// result. A name that is being built is a conflict. Roots and layers that are handed out
// from then on stay in place until done is called; see [Provider.Collect]. Until the
// template has a version, it is listed with this shape.
func (p *Provider) Claim(name string, shape sandbox.Resources) (done func(error), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.building[name].IsZero() {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s is already being built; wait for that build", name)
	}
	if target, ok := p.aliases[name]; ok {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "%s is an alias of %s; choose another name, or remove the alias first", name, target)
	}
	p.building[name], p.shapes[name] = time.Now(), shape
	delete(p.failed, name) // of an earlier build
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.building, name)
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeCancelled {
			p.failed[name] = sandbox.MessageOf(err)
		} else {
			delete(p.shapes, name)
		}
	}, nil
}

// Base makes the root that a plan's spec starts from, unless that is a snapshot. If
// plan.Anew is set, Debian is downloaded again.
func (p *Provider) Base(ctx context.Context, plan *Plan, report reporter) (*Foundation, error) {
	spec, anew := &plan.Spec, plan.Anew
	switch from := spec.From; {
	case from.Host:
		m, err := p.held(ctx, Host, 0)
		if err != nil {
			return nil, err
		}
		return p.baseOf(m), nil
	case from.Template != "":
		name, number, err := p.resolved(from.Template)
		if err != nil {
			return nil, err
		}
		m, err := p.held(ctx, name, number)
		if err != nil {
			return nil, err
		}
		b := p.baseOf(m)
		b.Template = p.status(b.Template)
		return b, nil
	case from.Debian != "":
		if from.Debian != suite {
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "Debian %.40q cannot be built here; use %q, or an image such as debian:trixie", from.Debian, suite)
		}
		return p.debianBase(ctx, anew, report)
	}
	src, err := p.sourceFor(spec.From, plan.Login)
	if err != nil {
		return nil, err
	}
	if src == nil {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the template does not say what it starts from; set one of image, archive, directory, debian, template, snapshot and host in from")
	}
	m, err := p.make(ctx, definition{name: "base", source: src, env: baseEnv}, report)
	if err != nil {
		return nil, err
	}
	return p.baseOf(m), nil
}

// baseOf returns a foundation with a root that is held.
func (p *Provider) baseOf(m *manifest) *Foundation {
	p.layers.hold(m.Layers)
	return &Foundation{
		Root: p.rootOf(m), Template: m.template(),
		layers: m.Layers, notes: m.Notes, stamp: m.Stamp, sizeBytes: m.SizeBytes,
	}
}

func (p *Provider) rootOf(m *manifest) engine.Root {
	return engine.Root{Digest: m.Digest, Dir: p.rootfsDir(m.Digest), Binds: slices.Clone(m.Binds)}
}

// chainKey returns the cache key for what is made from these parts.
func chainKey(parts ...any) string {
	data, err := json.Marshal(parts)
	if err != nil {
		panic("image: a part of a key: " + err.Error())
	}
	return fmt.Sprintf("%x", sha256.Sum256(append([]byte("cove-chain-1\n"), data...)))
}

// ChainKey returns the cache key for the result of a step on a root.
func ChainKey(root engine.Root, step any) string { return chainKey(root.Digest, step) }

// cacheMaxAge is how long a root stays in the cache after its last use.
const cacheMaxAge = 7 * 24 * time.Hour

var validKey = lazyregexp.New(`^[0-9a-f]{64}$`)

// cacheDir has the records of cached roots, which are those of this provider alone.
const cacheDir = "cache"

func (p *Provider) cacheFile(key string) string { return filepath.Join(p.dir, cacheDir, key+".json") }

// cached returns the cached root of a key, or nil.
func (p *Provider) cached(key string) *manifest {
	if !validKey.MatchString(key) {
		return nil
	}
	data, err := os.ReadFile(p.cacheFile(key))
	if err != nil {
		return nil
	}
	m, err := p.parse(key, data)
	if err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(p.cacheFile(key), now, now)
	if p.hold(m.Digest) != nil {
		return nil // collected meanwhile
	}
	return m
}

// keep caches a root under a key. Failing to do so does not fail a build.
func (p *Provider) keep(key string, m *manifest) {
	data, err := json.Marshal(m)
	if err == nil {
		err = durable.WriteFile(p.cacheFile(key), append(data, '\n'))
	}
	if err != nil {
		p.log.Warn("cache a build step", "error", err)
	}
}

// Extended returns the foundation that [Provider.Extend] has cached under a key, or
// nil.
func (p *Provider) Extended(b *Foundation, key string) *Foundation {
	m := p.cached(key)
	if m == nil {
		return nil
	}
	return b.with(p, m)
}

// with returns the foundation with another root.
func (b *Foundation) with(p *Provider, m *manifest) *Foundation {
	next := *b
	next.Root, next.sizeBytes = p.rootOf(m), m.SizeBytes
	return &next
}

// Extend makes a root from a base and a layer above it, and caches it under the key unless
// that is empty. open returns the layer as a tar stream with OCI whiteouts. If Extend
// fails, it leaves nothing behind.
func (p *Provider) Extend(ctx context.Context, b *Foundation, key string, open func(context.Context) (io.ReadCloser, error)) (*Foundation, error) {
	if err := p.fetchRoot(ctx, b.Root.Digest); errors.Is(err, fs.ErrNotExist) { // possible for a snapshot's root
		return nil, sandbox.Errorf(sandbox.CodeConflict, "the base of the build was deleted during the build; choose another base")
	} else if err != nil {
		return nil, err
	}
	// With binds, the digest covers the base too.
	j := &job{binds: slices.Clone(b.Root.Binds), stamp: b.Root.Digest}
	digest, err := p.makeRoot("step", j, func() error {
		layer, err := p.addLayer(ctx, "", "", open)
		if err != nil {
			return err
		}
		return p.compose(ctx, j.tree, base{digest: b.Root.Digest, dir: b.Root.Dir}, []string{layer.Digest}, nil)
	})
	if err != nil {
		return nil, err
	}
	m := &manifest{Version: manifestVersion, Name: "step", BuiltAt: time.Now().UTC(), Binds: j.binds, Digest: digest, SizeBytes: j.tree.bytes}
	if key != "" {
		p.keep(key, m)
	}
	return b.with(p, m), nil
}

// Publish makes a root the newest version of a template. Settings that the spec leaves out
// come from the base.
func (p *Provider) Publish(name string, spec *sandbox.TemplateSpec, b *Foundation) (*sandbox.Template, error) {
	t, source := b.Template, ""
	switch from := spec.From; {
	case from.Host:
		source = "host"
	case from.Debian != "":
		source = p.debian.kind()
	case from.Template != "":
		source = "template"
	case from.Snapshot != "":
		source = "snapshot"
	default:
		source = t.Source
	}
	env := maps.Clone(t.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, spec.Env)
	m := &manifest{
		Version: manifestVersion, Name: name, Description: spec.Description, Source: source,
		Digest: b.Root.Digest, SizeBytes: b.sizeBytes, BuiltAt: time.Now().UTC(),
		User: cmp.Or(spec.User, t.User, userName), WorkDir: cmp.Or(spec.WorkDir, t.WorkDir, workDir), Env: env,
		Packages: slices.Clone(t.Packages), Binds: slices.Clone(b.Root.Binds), Stamp: b.stamp, Notes: b.notes, Layers: b.layers,
		Spec: spec, Warm: orElse(spec.Warm, t.Warm), Start: cmp.Or(spec.Start, t.Start), Desktop: cmp.Or(spec.Desktop, t.Desktop),
		Network: cmp.Or(spec.Network, t.Network), Ports: spec.Ports,
		Resources: sandbox.Resources{
			VCPUs: cmp.Or(spec.Resources.VCPUs, t.Resources.VCPUs), MemoryMiB: cmp.Or(spec.Resources.MemoryMiB, t.Resources.MemoryMiB),
			DiskMiB: cmp.Or(spec.Resources.DiskMiB, t.Resources.DiskMiB), MaxPIDs: cmp.Or(spec.Resources.MaxPIDs, t.Resources.MaxPIDs),
		},
	}
	if len(m.Ports) == 0 {
		m.Ports = t.Ports
	}
	m.Packages = append(m.Packages, spec.Apt...)
	slices.Sort(m.Packages)
	m.Packages = slices.Compact(m.Packages)
	if err := p.publish(m); err != nil {
		return nil, explain(err)
	}
	out := p.status(m.template())
	return &out, nil
}

func orElse(a, b map[string]string) map[string]string {
	if len(a) > 0 {
		return maps.Clone(a)
	}
	return maps.Clone(b)
}

// AptSettings returns how this machine's own apt reaches Debian's mirrors: the text of a
// sources.list, "" for Debian's own, and of an apt.conf.
func (p *Provider) AptSettings() (sources, conf string) {
	d, ok := p.debian.(*debianSource)
	if !ok {
		return "", ""
	}
	if sources = d.sources(); sources == defaultSources(d.keyring()) {
		sources = ""
	}
	return sources, d.aptConf()
}
