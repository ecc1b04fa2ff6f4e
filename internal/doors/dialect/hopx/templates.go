package hopx

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// interpreter is the product's usual template, followed by its id in the product's
	// documentation.
	interpreter   = "code-interpreter"
	interpreterID = "20"
	// baseTemplate is the product's plain template.
	baseTemplate = "base"

	templatesPath = "/v1/templates"
	// allFields requests whole templates.
	allFields = "all"
)

func templatePath(name string) string {
	return templatesPath + "/" + url.PathEscape(clip.Text(name, maxShown))
}

// templateID returns the id of a template: its name, except for the template that clients
// know by number.
func templateID(name string) string {
	if name == interpreter {
		return interpreterID
	}
	return name
}

// templateNamed returns the name of the template with this id or name.
func templateNamed(idOrName string) string {
	if idOrName == interpreterID {
		return interpreter
	}
	return idOrName
}

// templateFor returns the template for a new sandbox. If one of the product's own templates
// is not built on this server, it returns the server's default, and a note that says so:
// clients name these templates without having chosen them.
func templateFor(ctx context.Context, c *dialect.Call, idOrName string) (name, note string, err error) {
	name = templateNamed(strings.TrimSpace(idOrName))
	if name == "" {
		return "", "", dialect.Invalid("template_id is empty; give an id or name of list_templates, such as %s", interpreter)
	}
	own := name == interpreter || name == baseTemplate
	t, err := c.Service.GetTemplate(ctx, name)
	switch {
	case err == nil && (t.State == sandbox.TemplateReady || !own):
		return name, "", nil
	case err != nil && (!own || sandbox.CodeOf(err) != sandbox.CodeNotFound):
		return "", "", noTemplate(idOrName, err)
	}
	note = "Template " + name + " is not built on this server, so its default template is used. To build it: cove template build " + name
	return "", note, nil
}

// noTemplate rewords an error about a template so that clients do not take it for one about
// a file.
func noTemplate(name string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Errorf(sandbox.CodeNotFound, "Template '%s' does not exist; list_templates shows what there is", clip.Text(name, maxShown))
	}
	return err
}

// shape is the resources of a template. Disk is in GB.
type shape struct {
	VCPU     int   `json:"vcpu"`
	MemoryMB int64 `json:"memory_mb"`
	DiskGB   int64 `json:"disk_gb"`
}

// template is a template in a result.
type template struct {
	ID               string   `json:"id"`
	Object           string   `json:"object"`
	Name             string   `json:"name"`
	DisplayName      string   `json:"display_name"`
	Description      string   `json:"description"`
	Category         string   `json:"category"`
	Language         string   `json:"language,omitempty"`
	Status           string   `json:"status"`
	IsPublic         bool     `json:"is_public"`
	IsActive         bool     `json:"is_active"`
	OrganizationID   string   `json:"organization_id"`
	BuildID          string   `json:"build_id,omitempty"`
	DefaultResources shape    `json:"default_resources"`
	MinResources     shape    `json:"min_resources"`
	MaxResources     shape    `json:"max_resources"`
	Features         []string `json:"features"`
	Tags             []string `json:"tags"`
	CreatedAt        string   `json:"created_at,omitempty"`
	UpdatedAt        string   `json:"updated_at,omitempty"`
}

func templateOf(t *sandbox.Template) template {
	out := template{
		ID: templateID(t.Name), Object: "template", Name: t.Name, DisplayName: t.Name, Description: t.Description,
		Category: "development", Language: language(t), Status: templateStatus(t.State), IsPublic: true, IsActive: t.State == sandbox.TemplateReady,
		OrganizationID: "0", Features: []string{}, Tags: []string{},
		DefaultResources: shape{
			cmp.Or(t.Resources.VCPUs, sandbox.DefaultVCPUs), cmp.Or(t.Resources.MemoryMiB, sandbox.DefaultMemoryMiB),
			gigabytes(cmp.Or(t.Resources.DiskMiB, sandbox.DefaultDiskMiB)),
		},
		MinResources: shape{1, sandbox.MinMemoryMiB, 1},
		MaxResources: shape{sandbox.MaxVCPUs, sandbox.MaxMemoryMiB, gigabytes(sandbox.MaxDiskMiB)},
	}
	if t.Desktop != nil {
		out.Category = "desktop"
		out.Features = append(out.Features, "desktop")
	}
	if t.Digest != "" {
		out.BuildID = t.Digest
	}
	if t.BuiltAt != nil {
		out.CreatedAt = dialect.Stamp(*t.BuiltAt)
		out.UpdatedAt = out.CreatedAt
	}
	return out
}

func gigabytes(mib int64) int64 { return max(1, mib>>10) }

// language returns the language that a template is made for, or "" if unknown.
func language(t *sandbox.Template) string {
	if t.Name == interpreter || t.Warm[string(sandbox.Python)] != "" {
		return string(sandbox.Python)
	}
	for _, l := range sandbox.Languages() {
		if _, ok := t.Warm[string(l)]; ok || strings.Contains(t.Name, string(l)) {
			return string(l)
		}
	}
	if strings.HasPrefix(t.Name, "node") {
		return string(sandbox.JavaScript)
	}
	return ""
}

func templateStatus(s sandbox.TemplateState) string {
	switch s {
	case sandbox.TemplateReady:
		return "active"
	case sandbox.TemplateAvailable:
		return "pending"
	}
	return string(s) // building and failed
}

type templatesArgs struct {
	Limit    int64  `json:"limit"`
	Fields   string `json:"fields"`
	Category string `json:"category"`
	Language string `json:"language"`
}

// find returns a page of templates, usable ones first, and whether there are more.
func (in *templatesArgs) find(ctx context.Context, c *dialect.Call) (found []template, more bool, err error) {
	if in.Limit < 1 {
		return nil, false, dialect.Invalid("limit is %d; give 1 or more", in.Limit)
	}
	list, err := sandbox.All(ctx, c.Service.ListTemplates)
	if err != nil {
		return nil, false, err
	}
	for i := range list {
		t := templateOf(&list[i])
		if (in.Category == "" || strings.EqualFold(in.Category, t.Category)) && (in.Language == "" || strings.EqualFold(in.Language, t.Language)) {
			found = append(found, t)
		}
	}
	slices.SortStableFunc(found, func(a, b template) int {
		switch {
		case a.IsActive == b.IsActive:
			return 0
		case a.IsActive:
			return -1
		}
		return 1
	})
	if more = int64(len(found)) > in.Limit; more {
		found = found[:in.Limit]
	}
	return found, more, nil
}

// fields returns the requested fields, or nil for all.
func (in *templatesArgs) fields() []string {
	var fields []string
	for f := range strings.SplitSeq(in.Fields, ",") {
		if f = strings.TrimSpace(f); f != "" {
			fields = append(fields, f)
		}
	}
	if len(fields) == 0 || slices.Equal(fields, []string{allFields}) {
		return nil
	}
	return fields
}

// cut returns a template with these fields only. A field that it lacks is null, or is left
// out.
func cut(t *template, fields []string, nulls bool) (any, error) {
	if fields == nil {
		return t, nil
	}
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	var has map[string]json.RawMessage
	if err := json.Unmarshal(data, &has); err != nil {
		return nil, err
	}
	out := object()
	for _, f := range fields {
		if v, ok := has[f]; ok {
			out = append(out, pair{f, v})
		} else if nulls {
			out = append(out, pair{clip.Text(f, maxShown), nil})
		}
	}
	return out, nil
}

// fieldsNote points out the fields that are not shown.
const fieldsNote = `Only some fields of each template are shown; fields="all" shows them all, get_template one template.`

// cutAll returns templates with the requested fields, and notes about that.
func (in *templatesArgs) cutAll(found []template, nulls bool) (data []any, about []pair, err error) {
	fields := in.fields()
	if len(fields) > 64 {
		return nil, nil, dialect.Invalid("fields has %d names; give 64 at most, or \"all\"", len(fields))
	}
	data = make([]any, 0, len(found))
	for i := range found {
		t, err := cut(&found[i], fields, nulls)
		if err != nil {
			return nil, nil, err
		}
		data = append(data, t)
	}
	if fields != nil {
		about = []pair{{"_fields", clip.Text(in.Fields, maxShown)}, {"_note", fieldsNote}}
	}
	return data, about, nil
}

func listTemplates(ctx context.Context, c *dialect.Call, in templatesArgs) (any, error) {
	found, more, err := in.find(ctx, c)
	if err != nil {
		return nil, control(templatesPath, "template", err)
	}
	data, about, err := in.cutAll(found, false)
	if err != nil {
		return nil, control(templatesPath, "template", err)
	}
	out := object(pair{"object", "list"}, pair{"data", data}, pair{"has_more", more}, pair{"url", templatesPath})
	return append(out, about...), nil
}

type nameArgs struct {
	Name string `json:"name"`
}

func getTemplate(ctx context.Context, c *dialect.Call, in nameArgs) (any, error) {
	t, err := c.Service.GetTemplate(ctx, templateNamed(in.Name))
	if err != nil {
		return nil, control(templatePath(in.Name), "template", noTemplate(in.Name, err))
	}
	return templateOf(t), nil
}
