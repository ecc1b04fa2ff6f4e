package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// template is a template as the product shows it. Its name is its id.
type template struct {
	ID        string `json:"id"`
	Team      string `json:"team_id"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	VCPUs     int    `json:"vcpu"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskMiB   int64  `json:"disk_mib"`
	Size      int64  `json:"size_bytes,omitempty"`
	Error     string `json:"error_message,omitempty"`
	CreatedAt string `json:"created_at"`
	BuiltAt   string `json:"built_at,omitempty"`
	Latest    string `json:"latest_build_id,omitempty"`
	// Build is set only in the answer to a creation.
	Build string `json:"build_id,omitempty"`
}

// unknownTime is the creation time of a template without a known build.
const unknownTime = "1970-01-01T00:00:00.000Z"

// viewTemplate describes a template. All teams of a server share templates, so it is shown
// as the caller's. last is its newest build, or nil.
func viewTemplate(ctx context.Context, t *sandbox.Template, last *sandbox.Build) template {
	caller, _ := sandbox.CallerOf(ctx)
	shape := terms.Shape(t.Resources)
	v := template{
		ID: t.Name, Team: caller.Team, Name: t.Name, Status: string(t.State), VCPUs: shape.VCPUs, MemoryMiB: shape.MemoryMiB, DiskMiB: shape.DiskMiB,
		Size: t.SizeBytes, BuiltAt: dialect.StampOf(t.BuiltAt),
	}
	if t.State == sandbox.TemplateFailed {
		v.Error = failure(t.Reason)
	}
	if last != nil {
		v.Latest, v.CreatedAt = last.ID, dialect.Stamp(last.CreatedAt)
		if last.State == sandbox.BuildReady && t.State == sandbox.TemplateBuilding {
			v.Status = string(sandbox.TemplateReady)
		}
	}
	if t.BuiltAt != nil && (last == nil || t.BuiltAt.Before(last.CreatedAt)) {
		v.CreatedAt = v.BuiltAt
	}
	v.CreatedAt = cmp.Or(v.CreatedAt, unknownTime)
	return v
}

func (d *Door) listTemplates(w http.ResponseWriter, r *http.Request, _ []string) error {
	query, err := onlyParams(r, "name_prefix")
	if err != nil {
		return err
	}
	all, err := sandbox.All(r.Context(), d.cfg.Service.ListTemplates)
	if err != nil {
		return err
	}
	last := map[string]*sandbox.Build{}
	for b, err := range d.builds(r.Context(), "") {
		if err != nil {
			return err
		}
		if last[b.Template] == nil {
			last[b.Template] = &b
		}
	}
	rows := []template{}
	for _, t := range terms.Templates(all) {
		if strings.HasPrefix(t.Name, query.Get("name_prefix")) {
			rows = append(rows, viewTemplate(r.Context(), &t, last[terms.TemplateName(t.Name)]))
		}
	}
	writeJSON(w, http.StatusOK, rows)
	return nil
}

func aboutTemplate(name string, err error) error {
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
		return sandbox.Errorf(sandbox.CodeNotFound, "Template %s not found", clip.Text(name, maxShown))
	}
	return err
}

// template returns a template that clients see, under the name by which they request it.
func (d *Door) template(ctx context.Context, name string) (*sandbox.Template, error) {
	if name == terms.BaseTemplate {
		return &sandbox.Template{Name: name, State: sandbox.TemplateReady}, nil
	}
	t, err := d.cfg.Service.GetTemplate(ctx, terms.TemplateName(name))
	if err == nil && t.State == sandbox.TemplateAvailable {
		err = sandbox.Errorf(sandbox.CodeNotFound, "it is not built")
	}
	if err != nil {
		return nil, aboutTemplate(name, err)
	}
	t.Name = name
	return t, nil
}

func (d *Door) getTemplate(w http.ResponseWriter, r *http.Request, args []string) error {
	t, err := d.template(r.Context(), args[0])
	if err != nil {
		return err
	}
	last, err := d.lastBuild(r.Context(), args[0])
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, viewTemplate(r.Context(), t, last))
	return nil
}

// own refuses the product's own names: clients cannot change those templates.
func own(name string) error {
	if strings.HasPrefix(name, terms.Curated) {
		return sandbox.Errorf(sandbox.CodeForbidden, "templates named %s… are the server's; they are built with: cove template build", terms.Curated)
	}
	return nil
}

func (d *Door) deleteTemplate(w http.ResponseWriter, r *http.Request, args []string) error {
	name := args[0]
	if err := own(name); err != nil {
		return err
	}
	t, err := d.template(r.Context(), name)
	if err != nil {
		return err
	}
	if t.State == sandbox.TemplateBuilding {
		return sandbox.Errorf(sandbox.CodeConflict, "template %s is being built; cancel the build first", clip.Text(name, maxShown))
	}
	states := []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused}
	for s, err := range dialect.Sandboxes(r.Context(), d.cfg.Service, sandbox.ListRequest{Template: name, States: states}) {
		if err != nil {
			return err
		}
		return sandbox.Errorf(sandbox.CodeConflict, "template %s is used by sandbox %s", clip.Text(name, maxShown), s.ID)
	}
	if err := d.cfg.Service.DeleteTemplate(r.Context(), name); err != nil {
		return aboutTemplate(name, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type templateBody struct {
	Name      string `json:"name"`
	VCPUs     int    `json:"vcpu"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskMiB   int64  `json:"disk_mib"`
	Spec      *spec  `json:"build_spec"`
}

type spec struct {
	From  string `json:"from"`
	Steps []step `json:"steps"`
	Start string `json:"start_cmd"`
	Ready string `json:"ready_cmd"`
}

// step has exactly one of its fields.
type step struct {
	Run *string `json:"run"`
	Env *struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"env"`
	WorkDir *string `json:"workdir"`
	User    *struct {
		Name string `json:"name"`
		Sudo bool   `json:"sudo"`
	} `json:"user"`
}

const maxSteps = 200

var templateName = lazyregexp.New(`^[a-z0-9]([a-z0-9._/-]*[a-z0-9])?$`)

// recipe checks the body, and returns what to build.
func (b *templateBody) recipe() (*terms.Recipe, error) {
	switch {
	case len(b.Name) > 128 || !templateName.MatchString(b.Name):
		return nil, invalid("name must be up to 128 of a-z, 0-9, . _ / and -, and begin and end with a letter or digit")
	case strings.HasPrefix(b.Name, terms.Curated):
		return nil, invalid("names beginning with %s are reserved", terms.Curated)
	case b.Spec == nil || b.Spec.From == "":
		return nil, invalid("build_spec.from is missing; name an image")
	case b.Spec.Ready != "" && b.Spec.Start == "":
		return nil, invalid("build_spec.ready_cmd needs a start_cmd")
	case len(b.Spec.Steps) > maxSteps:
		return nil, invalid("build_spec.steps has %d steps; give at most %d", len(b.Spec.Steps), maxSteps)
	}
	out := &terms.Recipe{
		From: b.Spec.From, Start: b.Spec.Start, Ready: b.Spec.Ready,
		Resources: sandbox.Resources{VCPUs: b.VCPUs, MemoryMiB: b.MemoryMiB, DiskMiB: b.DiskMiB},
	}
	for i, s := range b.Spec.Steps {
		mapped, ok := s.mapped()
		if !ok {
			return nil, invalid("build_spec.steps[%d] must have exactly one of run, env, workdir and user, and it must not be empty", i)
		}
		out.Steps = append(out.Steps, mapped)
	}
	return out, nil
}

func (s *step) mapped() (out terms.Step, ok bool) {
	n := 0
	if s.Run != nil {
		out.Run, ok = *s.Run, *s.Run != ""
		n++
	}
	if s.Env != nil {
		out.Env, ok = &terms.StepEnv{Key: s.Env.Key, Value: s.Env.Value}, true
		n++
	}
	if s.WorkDir != nil {
		out.WorkDir, ok = *s.WorkDir, *s.WorkDir != ""
		n++
	}
	if s.User != nil {
		out.User, ok = &terms.StepUser{Name: s.User.Name, Sudo: s.User.Sudo}, true
		n++
	}
	return out, ok && n == 1
}

func (d *Door) createTemplate(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body templateBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	recipe, err := body.recipe()
	if err != nil {
		return err
	}
	spec, err := recipe.Spec()
	if err != nil {
		return err
	}
	again, err := terms.CheckBuild(r.Context(), d.cfg.Service, body.Name)
	if err != nil {
		return quota(err, "too_many_builds")
	}
	b, err := d.cfg.Service.StartBuild(r.Context(), sandbox.BuildTemplateRequest{Name: body.Name, Spec: spec, Force: again})
	if err != nil {
		return quota(err, "too_many_builds")
	}
	v := viewTemplate(r.Context(), &sandbox.Template{Name: body.Name, State: sandbox.TemplateBuilding, Resources: spec.Resources}, b)
	v.Build = b.ID
	writeJSON(w, http.StatusAccepted, v)
	return nil
}
