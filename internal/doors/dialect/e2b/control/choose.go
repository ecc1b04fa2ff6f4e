package control

import (
	"context"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// builtins maps names of E2B's templates to Cove's. With fallback, the server's default
// template is used while the one named is not built.
var builtins = map[string]struct {
	name     string
	fallback bool
}{
	"base":                {"base", true},
	"code-interpreter-v1": {"code-interpreter", true},
	"desktop":             {"desktop", false},
}

// homeDir is where commands start in sandboxes of E2B's own templates.
const homeDir = "/home/user"

// builtinTemplate returns Cove's name for a template of E2B's own, or the name
// itself.
func builtinTemplate(name string) (_ string, own bool) {
	if b, ok := builtins[name]; ok {
		return b.name, true
	}
	return name, false
}

const (
	snapshotPrefix = "snap-"
	defaultTag     = "default"
)

func noTemplate(name string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "template '%.80s' not found", name)
}

// chooseTemplate sets what a sandbox is made from: a template of E2B's, one of
// Cove's, or a snapshot, by id or name.
func (p *plane) chooseTemplate(ctx context.Context, ref string, req *sandbox.CreateRequest) error {
	name, tag, err := p.reference(ctx, ref)
	if err != nil {
		return err
	}
	if strings.HasPrefix(name, snapshotPrefix) {
		if _, err := p.cfg.Service.GetSnapshot(ctx, name); err != nil {
			return aboutTemplate(ref, err)
		}
		req.Snapshot = name
		return nil
	}
	if b, ok := builtins[name]; ok && tag == defaultTag {
		req.WorkDir = homeDir
		t, err := p.cfg.Service.GetTemplate(ctx, b.name)
		switch {
		case err == nil && t.State == sandbox.TemplateReady || !b.fallback:
			req.Template = b.name
		case err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound:
			return err
		}
		return nil
	}
	found := tagged(name, tag)
	if _, err = p.cfg.Service.GetTemplate(ctx, found); err == nil {
		req.Template = found
		return nil
	}
	if tag == defaultTag && sandbox.CodeOf(err) == sandbox.CodeNotFound {
		if _, err := p.cfg.Service.GetSnapshot(ctx, name); err == nil {
			req.Snapshot = name
			return nil
		}
	}
	if tag != defaultTag && sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Errorf(sandbox.CodeNotFound, "tag '%.80s' does not exist for template '%.80s'", tag, name)
	}
	return aboutTemplate(ref, err)
}

func aboutTemplate(ref string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return noTemplate(ref)
	}
	return err
}

// reference parses [NAMESPACE/]NAME[:TAG]. The namespace must be the caller's team.
func (p *plane) reference(ctx context.Context, ref string) (name, tag string, err error) {
	name, tag, hasTag := strings.Cut(strings.ToLower(strings.TrimSpace(ref)), ":")
	if !hasTag {
		tag = defaultTag
	}
	if team, rest, ok := strings.Cut(name, "/"); ok {
		if caller, _ := sandbox.CallerOf(ctx); team != caller.Team {
			return "", "", noTemplate(ref)
		}
		name = rest
	}
	if name == "" || strings.Trim(name, nameLetters) != "" || tag == "" || strings.Trim(tag, nameLetters+".") != "" {
		return "", "", invalid("Invalid name: %.80q is not [NAMESPACE/]NAME[:TAG] of a-z, 0-9, - and _", ref)
	}
	return name, tag, nil
}

const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// tagged is Cove's name for a tag of a template: an alias NAME.TAG. No name of
// E2B's has a dot, so the first one ends the name.
func tagged(name, tag string) string {
	if tag == defaultTag {
		return name
	}
	return name + "." + tag
}
