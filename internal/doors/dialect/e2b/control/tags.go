package control

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// maxTags bounds the tags of one request.
const maxTags = 32

// tagsOf checks tags, and returns those besides the implicit one.
func tagsOf(tags []string) ([]string, error) {
	if len(tags) > maxTags {
		return nil, invalid("there are %d tags; give at most %d", len(tags), maxTags)
	}
	var out []string
	for _, tag := range tags {
		tag = strings.ToLower(strings.TrimSpace(tag))
		if tag == "" || strings.Trim(tag, nameLetters+".") != "" {
			return nil, invalid("Invalid tag: %.80q is not of a-z, 0-9, -, _ and .", tag)
		}
		if tag != defaultTag && !slices.Contains(out, tag) {
			out = append(out, tag)
		}
	}
	return out, nil
}

// tag makes tags of a template refer to one of its versions.
func (p *plane) tag(ctx context.Context, name string, version int, tags []string) error {
	for _, tag := range tags {
		if err := p.cfg.Service.AliasTemplate(ctx, tagged(name, tag), name+"@"+strconv.Itoa(version)); err != nil {
			return err
		}
	}
	return nil
}

type assignBody struct {
	Target string   `json:"target"`
	Tags   []string `json:"tags"`
}

// ownTemplate returns a template whose tags can be set. E2B's own names are refused,
// since they refer to templates of this server.
func (p *plane) ownTemplate(ctx context.Context, ref string) (t *sandbox.Template, name, tag string, err error) {
	if name, tag, err = p.reference(ctx, ref); err != nil {
		return nil, "", "", err
	}
	if t, err = p.cfg.Service.GetTemplate(ctx, tagged(name, tag)); err != nil {
		return nil, "", "", aboutTemplate(ref, err)
	}
	if t.Version == 0 {
		return nil, "", "", noTemplate(ref)
	}
	return t, name, tag, nil
}

func (p *plane) assignTags(r *http.Request, _ []string, body *assignBody) (*response, error) {
	caller, _ := sandbox.CallerOf(r.Context())
	if err := caller.Need(sandbox.ScopeTemplatesWrite); err != nil {
		return nil, err
	}
	tags, err := tagsOf(body.Tags)
	switch {
	case err != nil:
		return nil, err
	case len(body.Tags) == 0:
		return nil, invalid("give at least one tag")
	case len(tags) < len(body.Tags):
		return nil, invalid("the tag %s is always of the newest version; give others, each once", defaultTag)
	}
	t, name, _, err := p.ownTemplate(r.Context(), body.Target)
	if err != nil {
		return nil, err
	}
	if err := p.tag(r.Context(), name, t.Version, tags); err != nil {
		return nil, err
	}
	return &response{http.StatusCreated, map[string]any{"buildID": versionID(name, t.Version), "tags": tags}}, nil
}

// versionID returns an id for the build of a version. The build's record need not exist
// any more.
func versionID(name string, version int) string { return name + "@" + strconv.Itoa(version) }

type removeBody struct {
	Name string   `json:"name"`
	Tags []string `json:"tags"`
}

func (p *plane) removeTags(r *http.Request, _ []string, body *removeBody) (*response, error) {
	name, tag, err := p.reference(r.Context(), body.Name)
	if err != nil {
		return nil, err
	}
	tags, err := tagsOf(body.Tags)
	switch {
	case err != nil:
		return nil, err
	case tag != defaultTag:
		return nil, invalid("name %.80q has a tag; give it in tags", body.Name)
	case len(tags) == 0 || len(tags) < len(body.Tags):
		return nil, invalid("give at least one tag, and not %s, which every template has", defaultTag)
	}
	for _, tag := range tags {
		err := p.cfg.Service.AliasTemplate(r.Context(), tagged(name, tag), "")
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = sandbox.Errorf(sandbox.CodeNotFound, "tag '%.80s' does not exist for template '%.80s'", tag, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return noContent, nil
}

type tagView struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

// listTags lists the tags of a template. The time of a tag is that of its version.
func (p *plane) listTags(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	t, name, _, err := p.ownTemplate(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	view := func(tag string, t *sandbox.Template) tagView {
		v := tagView{Tag: tag, BuildID: versionID(name, t.Version)}
		if t.BuiltAt != nil {
			v.CreatedAt = *t.BuiltAt
		}
		return v
	}
	out := []tagView{view(defaultTag, t)}
	for _, alias := range t.Aliases {
		tag, ok := strings.CutPrefix(alias, name+".")
		if !ok {
			continue
		}
		of, err := p.cfg.Service.GetTemplate(r.Context(), alias)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue // it was taken away meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, view(tag, of))
	}
	return &response{http.StatusOK, out}, nil
}
