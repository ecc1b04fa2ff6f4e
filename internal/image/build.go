package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Build builds a template and reports on the way to sink. When it fails, sink
// fails or ctx is cancelled, an earlier build stays in use and nothing is left
// of this one. A template is built once at a time: a second request for the
// same is a conflict.
func (p *Provider) Build(ctx context.Context, req sandbox.BuildTemplateRequest, sink func(sandbox.BuildEvent) error) (*sandbox.Template, error) {
	def, ready, err := p.resolve(req)
	if err != nil {
		return nil, err
	}
	if ready == nil {
		if def.name == Host {
			ready, err = p.currentHost(ctx, req.Force)
		} else {
			ready, err = p.run(ctx, def, sink)
		}
		if err != nil {
			return nil, err
		}
	}
	t := p.status(ready.template())
	if sink != nil {
		if err := sink(sandbox.BuildEvent{Step: "ready", Fraction: 1, Template: &t}); err != nil {
			return nil, err
		}
	}
	return &t, nil
}

// resolve finds what a request asks for: a definition to build, or a build
// that is ready.
func (p *Provider) resolve(req sandbox.BuildTemplateRequest) (definition, *manifest, error) {
	if !validTemplate.MatchString(req.Name) {
		return definition{}, nil, sandbox.Errorf(sandbox.CodeInvalid, "%.80q cannot name a template; use 1 to 63 of a-z, 0-9 and hyphens", req.Name)
	}
	old, err := p.readManifest(req.Name)
	if err != nil {
		old = nil
	}
	def, known := p.builtins[req.Name]
	switch {
	case known && len(req.Packages) > 0:
		return definition{}, nil, sandbox.Errorf(sandbox.CodeInvalid, "template %s is built in and has its own packages; choose another name for yours", req.Name)
	case known:
	case len(req.Packages) > 0:
		packages, err := checkPackages(req.Packages)
		if err != nil {
			return definition{}, nil, err
		}
		def = p.custom(req.Name, packages)
		if old != nil && !req.Force && !slices.Equal(old.Packages, packages) {
			return definition{}, nil, sandbox.Errorf(sandbox.CodeConflict, "template %s exists with other packages; set force to build it anew", req.Name)
		}
	case old != nil && old.Source == p.debian.kind():
		def = p.custom(req.Name, old.Packages)
	default:
		return definition{}, nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no definition named %s; name packages to make one", req.Name)
	}
	if old != nil && !req.Force && def.name != Host {
		return def, old, nil
	}
	return def, nil, nil
}

func (p *Provider) custom(name string, packages []string) definition {
	return definition{name: name, description: "Debian 12 with chosen packages", source: p.debian, packages: packages, env: baseEnv}
}

// run builds a definition, alone among builds of its name.
func (p *Provider) run(ctx context.Context, def definition, sink func(sandbox.BuildEvent) error) (m *manifest, err error) {
	p.mu.Lock()
	if p.building[def.name] {
		p.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s is being built already; wait for that build", def.name)
	}
	p.building[def.name] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.building, def.name)
		delete(p.failed, def.name)
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeCancelled {
			p.failed[def.name] = failure{reason: sandbox.MessageOf(err), packages: def.packages}
		}
	}()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // reports come from several goroutines
	report := func(step string, fraction float64, log string) {
		mu.Lock()
		defer mu.Unlock()
		if sink == nil || ctx.Err() != nil {
			return
		}
		if err := sink(sandbox.BuildEvent{Step: step, Fraction: fraction, Log: log}); err != nil {
			cancel(err)
		}
	}
	m, err = p.make(ctx, def, report)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.log.Warn("template build failed", "template", def.name, "error", err)
		return nil, err
	}
	return m, nil
}

// make does one build and makes it the template's current one.
func (p *Provider) make(ctx context.Context, def definition, report func(string, float64, string)) (_ *manifest, err error) {
	dir, err := os.MkdirTemp(filepath.Join(p.dir, "tmp"), def.name+"-")
	if err != nil {
		return nil, fmt.Errorf("start build: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("start build: %w", err)
	}
	defer func() {
		if derr := discard(dir); derr != nil {
			p.log.Warn("remove build directory", "directory", dir, "error", derr)
		}
		unlock()
	}()
	content := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(content, 0o700); err != nil {
		return nil, err
	}
	t, err := newTree(content, p.own)
	if err != nil {
		return nil, err
	}
	defer t.close()
	j := &job{def: def, dir: dir, tree: t, report: report}
	if err := def.source.build(ctx, j); err != nil {
		return nil, explain(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	report("finishing", 0.97, "")
	digest, err := t.finish()
	if err == nil {
		err = t.sync()
	}
	if err != nil {
		return nil, explain(err)
	}
	env := maps.Clone(def.env)
	maps.Copy(env, j.env)
	m := &manifest{
		Version: manifestVersion, Name: def.name, Description: def.description, Source: def.source.kind(),
		Digest: contentDigest(digest, j), SizeBytes: t.bytes, BuiltAt: time.Now().UTC(),
		User: userName, WorkDir: workDir, Env: env, Packages: def.packages,
		Binds: j.binds, Stamp: j.stamp, Notes: j.notes,
	}
	if err := p.adopt(content, m.Digest); err != nil {
		return nil, err
	}
	return m, p.writeManifest(m)
}

// adopt moves finished content to its place; content that is there already is
// the same and stays.
func (p *Provider) adopt(content, digest string) error {
	to := p.rootfsDir(digest)
	p.mu.Lock()
	p.used[digest] = time.Now() // not to be collected before the manifest is there
	p.mu.Unlock()
	err := os.Rename(content, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	return syncDir(filepath.Dir(to))
}

// scratchFile names, in a build's directory, a directory outside of it that
// the build made.
const scratchFile = "scratch"

// discard removes a build's directory and what else it made.
func discard(dir string) error {
	scratch, err := os.ReadFile(filepath.Join(dir, scratchFile))
	if err == nil {
		if err := removeScratch(strings.TrimSpace(string(scratch))); err != nil {
			return err
		}
	}
	return removeTree(dir)
}

// explain gives a caller the reason of errors that are the machine's.
func explain(err error) error {
	switch {
	case sandbox.CodeOf(err) != sandbox.CodeInternal:
		return err
	case isDiskFull(err):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the disk is full; make room where Cove keeps its state and build again")
	case errors.Is(err, errHostile):
		return sandbox.Wrap(sandbox.CodeInvalid, err, "the root file system "+strings.TrimPrefix(err.Error(), errHostile.Error()+": ")+"; it was not unpacked")
	}
	return err
}
