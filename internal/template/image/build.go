package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// Plan works out how to build what a request asks for, or finds a build that is
// ready. If the request asks for a new host template, Plan makes it.
func (p *Provider) Plan(ctx context.Context, req sandbox.BuildTemplateRequest) (*Plan, error) {
	if !validTemplate.MatchString(req.Name) {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not a valid template name; use 1 to 63 of a-z, 0-9, hyphens, underscores and dots", req.Name)
	}
	if req.Spec != nil && len(req.Packages) > 0 {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "packages and a spec are both given; put the packages into the spec, as apt")
	}
	old, err := p.readManifest(req.Name)
	if isAbsent(err) {
		old = nil
	} else if err != nil {
		return nil, err
	}
	plan := &Plan{Name: req.Name, Login: req.Login}
	same := true
	def, known := p.builtins[req.Name]
	switch {
	case known && (len(req.Packages) > 0 || req.Spec != nil):
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "template %s is built in and has its own packages; choose another name for yours", req.Name)
	case known:
		plan.Spec = def.spec()
	case len(req.Packages) > 0:
		packages, err := checkPackages(req.Packages)
		if err != nil {
			return nil, err
		}
		plan.Spec = customSpec(packages)
		same = old == nil || slices.Equal(old.Packages, packages)
	case req.Spec != nil:
		plan.Spec = withScreen(*req.Spec)
		same = old == nil || sameSpec(old.Spec, &plan.Spec)
	case old != nil && old.Spec != nil:
		plan.Spec = *old.Spec
	case old != nil && old.Source == p.debian.kind():
		plan.Spec = customSpec(old.Packages)
	default:
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no template definition named %s; to create one, pass a spec or packages", req.Name)
	}
	if !same && !req.Force {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "template %s exists and was built from something else; set force to build this as its next version, or choose another name", req.Name)
	}
	if req.Name == Host {
		old, err = p.currentHost(ctx, req.Force)
		if err != nil {
			return nil, err
		}
	}
	if old != nil && (!req.Force || req.Name == Host) {
		switch err := p.fetchRoot(ctx, old.Digest); {
		case errors.Is(err, fs.ErrNotExist): // it is made again
		case err != nil:
			return nil, err
		default:
			t := p.status(old.template())
			plan.Ready = &t
		}
	}
	plan.Anew = req.Force && same
	return plan, nil
}

func customSpec(packages []string) sandbox.TemplateSpec {
	return sandbox.TemplateSpec{
		Description: "Debian 12 with chosen packages", From: sandbox.TemplateSource{Debian: suite}, Apt: withoutBase(packages),
	}
}

func sameSpec(a, b *sandbox.TemplateSpec) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// make builds the root of a definition and puts its content in place. No record
// names the result yet.
func (p *Provider) make(ctx context.Context, def definition, report reporter) (*manifest, error) {
	j := &job{def: def, report: report}
	digest, err := p.makeRoot(def.name, j, func() error {
		if err := def.source.build(ctx, j); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		report("finishing", 0.97, "")
		return nil
	})
	if err != nil {
		return nil, err
	}
	env := maps.Clone(def.env)
	maps.Copy(env, j.env)
	return &manifest{
		Version: manifestVersion, Name: def.name, Description: def.description, Source: def.source.kind(),
		Digest: digest, SizeBytes: j.tree.bytes, BuiltAt: time.Now().UTC(),
		User: cmp.Or(j.user, userName), WorkDir: cmp.Or(j.workDir, workDir), Env: env, Packages: def.packages, Ports: j.ports,
		Binds: j.binds, Stamp: j.stamp, Notes: j.notes, Layers: j.layers,
	}, nil
}

// makeRoot gives a job a directory of its own and an empty tree, which fill fills, and
// moves the root into place. If it fails, it leaves nothing behind.
func (p *Provider) makeRoot(name string, j *job, fill func() error) (digest string, err error) {
	if j.dir, err = os.MkdirTemp(filepath.Join(p.dir, "tmp"), name+"-"); err != nil {
		return "", explain(fmt.Errorf("start build: %w", err))
	}
	unlock, err := lockDir(j.dir)
	if err != nil {
		return "", explain(errors.Join(fmt.Errorf("start build: %w", err), os.Remove(j.dir)))
	}
	defer func() {
		if derr := discard(j.dir); derr != nil {
			p.log.Warn("remove build directory", "directory", j.dir, "error", derr)
		}
		unlock()
	}()
	content := filepath.Join(j.dir, "rootfs")
	err = os.Mkdir(content, 0o700)
	if err == nil {
		j.tree, err = newTree(content, p.own)
	}
	if err != nil {
		return "", explain(err)
	}
	defer j.tree.close()
	if err = fill(); err == nil {
		digest, err = j.tree.finish()
	}
	if err == nil {
		err = j.tree.sync()
	}
	if err == nil {
		digest = cmp.Or(j.as, contentDigest(digest, j))
		err = p.adopt(content, digest)
	}
	return digest, explain(err)
}

// adopt moves finished content into place. Existing content with the same digest is the
// same, and is kept.
func (p *Provider) adopt(content, digest string) error {
	to := p.rootfsDir(digest)
	p.mu.Lock()
	p.used[digest] = time.Now() // so that it is not collected before there is a manifest
	p.mu.Unlock()
	err := durable.Rename(content, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	return nil
}

// scratchFile is a file in a build's directory. It holds the path of a directory that the
// build made elsewhere.
const scratchFile = "scratch"

// discard removes a build's directory, and its scratch directory elsewhere.
func discard(dir string) error {
	scratch, err := os.ReadFile(filepath.Join(dir, scratchFile))
	if err == nil {
		if err := removeScratch(strings.TrimSpace(string(scratch))); err != nil {
			return err
		}
	}
	return removeTree(dir)
}

// explain translates internal errors with a known cause into errors for callers.
func explain(err error) error {
	switch {
	case sandbox.CodeOf(err) != sandbox.CodeInternal:
		return err
	case isDiskFull(err):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the disk is full; free space where Cove keeps its state and build again")
	case errors.Is(err, errHostile):
		return sandbox.Wrap(sandbox.CodeInvalid, err, "the root file system "+strings.TrimPrefix(err.Error(), errHostile.Error()+": ")+"; it was not unpacked")
	}
	return err
}
