package control

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
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

// viewTemplate describes a template. Templates are for all teams of a server,
// which is what E2B calls public.
func viewTemplate(t *sandbox.Template) template {
	v := template{
		TemplateID: t.Name, BuildID: t.Digest, Public: true, Aliases: append([]string{t.Name}, t.Aliases...), BuildCount: t.Version,
		CPUCount: t.Resources.VCPUs, MemoryMB: t.Resources.MemoryMiB, DiskSizeMB: t.Resources.DiskMiB, EnvdVersion: envdVersion,
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

func (p *plane) listTemplates(w http.ResponseWriter, r *http.Request, _ []string) error {
	all, err := sandbox.All(r.Context(), p.cfg.Service.ListTemplates)
	if err != nil {
		return err
	}
	out := make([]template, len(all))
	for i := range all {
		out[i] = viewTemplate(&all[i])
	}
	answer.JSON(w, http.StatusOK, out)
	return nil
}

// alias tells whether a name is a template's.
func (p *plane) alias(w http.ResponseWriter, r *http.Request, args []string) error {
	t, err := p.template(r.Context(), args[0])
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, map[string]any{"templateID": t.Name, "public": true})
	return nil
}

// template returns the template that a name means, tag included.
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

// deleteTemplate removes a template or a snapshot: E2B's snapshots are templates.
func (p *plane) deleteTemplate(w http.ResponseWriter, r *http.Request, args []string) error {
	name, tag, err := p.reference(r.Context(), args[0])
	if err != nil {
		return err
	}
	if tag != defaultTag {
		return invalid("%.80q has a tag; remove tags by DELETE /templates/tags", args[0])
	}
	if !strings.HasPrefix(name, snapshotPrefix) {
		switch _, err := p.cfg.Service.GetTemplate(r.Context(), name); sandbox.CodeOf(err) {
		case "":
			if err := p.cfg.Service.DeleteTemplate(r.Context(), name); err != nil {
				return aboutTemplate(args[0], err)
			}
			w.WriteHeader(http.StatusNoContent)
			return nil
		case sandbox.CodeNotFound:
		default:
			return err
		}
	}
	if _, err := p.cfg.Service.DeleteSnapshot(r.Context(), name); err != nil {
		return aboutTemplate(args[0], err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
