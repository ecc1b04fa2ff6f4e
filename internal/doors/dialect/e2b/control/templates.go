package control

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// template is a template in a list.
type template struct {
	TemplateID    string     `json:"templateID"`
	BuildID       string     `json:"buildID"`
	CPUCount      int        `json:"cpuCount"`
	MemoryMB      int64      `json:"memoryMB"`
	DiskSizeMB    int64      `json:"diskSizeMB"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     *struct{}  `json:"createdBy"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int        `json:"spawnCount"`
	BuildCount    int        `json:"buildCount"`
	EnvdVersion   string     `json:"envdVersion"`
	BuildStatus   string     `json:"buildStatus"`
}

// viewTemplate describes a template. All teams of a server share templates, which is
// what E2B calls public.
func viewTemplate(t *sandbox.Template) template {
	v := template{
		TemplateID: t.Name, BuildID: t.Digest, Public: true, Aliases: append([]string{t.Name}, t.Aliases...), BuildCount: t.Version,
		CPUCount: cmp.Or(t.Resources.VCPUs, sandbox.DefaultVCPUs), MemoryMB: cmp.Or(t.Resources.MemoryMiB, sandbox.DefaultMemoryMiB), DiskSizeMB: cmp.Or(t.Resources.DiskMiB, sandbox.DefaultDiskMiB),
		EnvdVersion: envdVersion,
		BuildStatus: map[sandbox.TemplateState]string{
			sandbox.TemplateReady: "ready", sandbox.TemplateBuilding: "building", sandbox.TemplateFailed: "error", sandbox.TemplateAvailable: "waiting",
		}[t.State],
	}
	v.Names = v.Aliases
	if t.BuiltAt != nil {
		v.CreatedAt, v.UpdatedAt = *t.BuiltAt, *t.BuiltAt
	}
	return v
}

func (p *plane) listTemplates(_ http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	all, err := sandbox.All(r.Context(), p.cfg.Service.ListTemplates)
	if err != nil {
		return nil, err
	}
	out := make([]template, len(all))
	for i := range all {
		out[i] = viewTemplate(&all[i])
	}
	return &response{http.StatusOK, out}, nil
}

// alias serves the template that has a name.
func (p *plane) alias(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	t, err := p.template(r.Context(), args[0])
	if err == nil && t.State == sandbox.TemplateFailed && t.Version == 0 {
		err = noTemplate(args[0])
	}
	if err != nil {
		return nil, err
	}
	return &response{http.StatusOK, map[string]any{"templateID": t.Name, "public": true}}, nil
}

// template returns the template of a name and tag.
func (p *plane) template(ctx context.Context, ref string) (*sandbox.Template, error) {
	name, tag, err := p.reference(ctx, ref)
	if err != nil {
		return nil, err
	}
	name, _ = builtinTemplate(name)
	t, err := p.cfg.Service.GetTemplate(ctx, tagged(name, tag))
	if err != nil {
		return nil, aboutTemplate(ref, err)
	}
	return t, nil
}

type publishBody struct {
	Public *bool `json:"public"`
}

// publish answers that a template is for all teams, as they all are.
func (p *plane) publish(r *http.Request, args []string, body *publishBody) (*response, error) {
	caller, _ := sandbox.CallerOf(r.Context())
	if err := caller.Need(sandbox.ScopeTemplatesWrite); err != nil {
		return nil, err
	}
	if body.Public == nil || !*body.Public {
		return nil, invalid("public: all teams of a server share its templates; none can be hidden")
	}
	t, err := p.template(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	return &response{http.StatusOK, map[string][]string{"names": {t.Name}}}, nil
}

// deleteTemplate removes a template or a snapshot: E2B's snapshots are templates.
func (p *plane) deleteTemplate(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	name, tag, err := p.reference(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if tag != defaultTag {
		return nil, invalid("%.80q has a tag; remove tags by DELETE /templates/tags", args[0])
	}
	if !strings.HasPrefix(name, snapshotPrefix) {
		switch _, err := p.cfg.Service.GetTemplate(r.Context(), name); sandbox.CodeOf(err) {
		case "":
			if err := p.cfg.Service.DeleteTemplate(r.Context(), name); err != nil {
				return nil, aboutTemplate(args[0], err)
			}
			return noContent, nil
		case sandbox.CodeNotFound:
		default:
			return nil, err
		}
	}
	if _, err := p.cfg.Service.DeleteSnapshot(r.Context(), name); err != nil {
		return nil, aboutTemplate(args[0], err)
	}
	return noContent, nil
}
