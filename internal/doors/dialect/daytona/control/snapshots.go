package control

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// snapshotObject is what sandboxes are made from, as clients know it: a template or a
// snapshot of Cove's.
type snapshotObject struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	State           string     `json:"state"`
	General         bool       `json:"general"`
	OrganizationID  string     `json:"organizationId,omitempty"`
	Size            *float64   `json:"size"`
	Entrypoint      []string   `json:"entrypoint"`
	CPU             int        `json:"cpu"`
	GPU             int        `json:"gpu"`
	Mem             float64    `json:"mem"`
	Disk            float64    `json:"disk"`
	ErrorReason     *string    `json:"errorReason"`
	CreatedAt       time.Time  `json:"createdAt"`
	UpdatedAt       time.Time  `json:"updatedAt"`
	LastUsedAt      *time.Time `json:"lastUsedAt"`
	SourceSandboxID *string    `json:"sourceSandboxId"`
}

func (p *plane) snapshotRoutes(rt *answer.Router) {
	rt.On("GET /snapshots", p.listSnapshots)
	rt.On("POST /snapshots", p.createSnapshot)
	rt.On("GET /snapshots/{snapshot}", p.getSnapshot)
	rt.On("DELETE /snapshots/{snapshot}", p.deleteSnapshot)
	rt.On("POST /snapshots/{snapshot}/activate", p.getSnapshot) // none is ever inactive
	rt.On("GET /snapshots/{snapshot}/build-logs-url", p.buildLogsURL)
	rt.On("GET /snapshots/{snapshot}/build-logs", p.buildLogs)
}

func noSnapshot(name string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "Snapshot with ID or name %.80s not found", name)
}

// size is in GiB.
func size(bytes int64) *float64 {
	if bytes == 0 {
		return nil
	}
	return new(float64(bytes) / (1 << 30))
}

// viewTemplate describes a template. All teams of a server share templates.
func viewTemplate(t *sandbox.Template) snapshotObject {
	o := snapshotObject{
		ID: t.Name, Name: t.Name, General: true, Size: size(t.SizeBytes), CPU: t.Resources.VCPUs, Mem: gib(t.Resources.MemoryMiB), Disk: gib(t.Resources.DiskMiB),
		State: map[sandbox.TemplateState]string{
			sandbox.TemplateReady: "active", sandbox.TemplateBuilding: "building", sandbox.TemplateFailed: "build_failed", sandbox.TemplateAvailable: "inactive",
		}[t.State],
	}
	if t.Start != nil {
		o.Entrypoint = []string{"/bin/sh", "-c", t.Start.Command}
	}
	if t.Reason != "" {
		o.ErrorReason = &t.Reason
	}
	if t.BuiltAt != nil {
		o.CreatedAt, o.UpdatedAt = *t.BuiltAt, *t.BuiltAt
	}
	return o
}

func viewSnapshot(s *sandbox.Snapshot) snapshotObject {
	return snapshotObject{
		ID: s.ID, Name: cmp.Or(s.Name, s.ID), State: "active", OrganizationID: s.Team, Size: size(s.SizeBytes), CPU: s.Resources.VCPUs,
		Mem: gib(s.Resources.MemoryMiB), Disk: gib(s.Resources.DiskMiB), CreatedAt: s.CreatedAt, UpdatedAt: s.CreatedAt, SourceSandboxID: &s.SandboxID,
	}
}

// snapshotPrefix begins the ids of Cove's snapshots.
const snapshotPrefix = "snap-"

// lookUp finds a template or a snapshot by id or name; a template comes first.
func (p *plane) lookUp(ctx context.Context, name string) (*sandbox.Template, *sandbox.Snapshot, error) {
	if name == "" || len(name) > sandbox.MaxNameLength || strings.ContainsAny(name, "/:@") {
		return nil, nil, noSnapshot(name) // no name of Cove's
	}
	if !strings.HasPrefix(name, snapshotPrefix) {
		t, err := p.cfg.Service.GetTemplate(ctx, name)
		if err == nil {
			return t, nil, nil
		}
		if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound && code != sandbox.CodeInvalid {
			return nil, nil, err
		}
	}
	s, err := p.cfg.Service.GetSnapshot(ctx, name)
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
		err = noSnapshot(name)
	}
	return nil, s, err
}

// mustBeFree refuses the name of an existing template or snapshot.
func (p *plane) mustBeFree(ctx context.Context, name string) error {
	_, _, err := p.lookUp(ctx, name)
	switch {
	case err == nil:
		return sandbox.Errorf(sandbox.CodeConflict, "a snapshot %.80s is there already; delete it first, or choose another name", name)
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return nil
	}
	return err
}

func (p *plane) viewSnapshotNamed(ctx context.Context, name string) (snapshotObject, error) {
	t, s, err := p.lookUp(ctx, name)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		b, err := p.unready(ctx, name)
		if err != nil {
			return snapshotObject{}, err
		}
		return viewBuild(name, b), nil
	case err != nil:
		return snapshotObject{}, err
	case t != nil:
		return viewTemplate(t), nil
	}
	return viewSnapshot(s), nil
}

func (p *plane) getSnapshot(w http.ResponseWriter, r *http.Request) error {
	o, err := p.viewSnapshotNamed(r.Context(), r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, o)
	return nil
}

// fromSnapshot sets what a sandbox is made from; "" is the server's default.
func (p *plane) fromSnapshot(ctx context.Context, name string, req *sandbox.CreateRequest) error {
	if name == "" {
		return nil
	}
	t, s, err := p.lookUp(ctx, name)
	switch {
	case err != nil:
		return err
	case t != nil:
		req.Template = t.Name
	default:
		req.Snapshot = s.ID
	}
	req.Metadata[access.TagSnapshot] = name
	return nil
}

const maxSnapshotPage = 200

// listSnapshots serves a page of all templates that can be used and all snapshots.
func (p *plane) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	page, limit := 1, 100
	for _, f := range []struct {
		name string
		n    *int
		most int
	}{{"page", &page, 1 << 20}, {"limit", &limit, maxSnapshotPage}} {
		text := query.Get(f.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > f.most {
			return answer.Invalid("%s is %.20q; give 1 to %d", f.name, text, f.most)
		}
		*f.n = n
	}
	all, err := p.allSnapshots(r.Context(), query.Get("sourceSandboxId"))
	if err != nil {
		return err
	}
	if name := query.Get("name"); name != "" {
		all = slices.DeleteFunc(all, func(o snapshotObject) bool { return !strings.Contains(o.Name, name) })
	}
	pages := (len(all) + limit - 1) / limit
	from := min((page-1)*limit, len(all))
	answer.JSON(w, http.StatusOK, map[string]any{
		"items": append([]snapshotObject{}, all[from:min(from+limit, len(all))]...), "total": len(all), "page": page, "totalPages": pages,
	})
	return nil
}

func (p *plane) allSnapshots(ctx context.Context, of string) ([]snapshotObject, error) {
	var all []snapshotObject
	if of == "" {
		templates, err := sandbox.All(ctx, p.cfg.Service.ListTemplates)
		if err != nil {
			return nil, err
		}
		for i := range templates {
			if templates[i].State != sandbox.TemplateAvailable {
				all = append(all, viewTemplate(&templates[i]))
			}
		}
	}
	snapshots, err := sandbox.All(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Snapshot], error) {
		return p.cfg.Service.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: of, Page: page})
	})
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return nil, err
	}
	for i := range snapshots {
		all = append(all, viewSnapshot(&snapshots[i]))
	}
	return all, nil
}

func (p *plane) deleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	t, s, err := p.lookUp(r.Context(), r.PathValue("snapshot"))
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		err = p.cancelBuild(r.Context(), r.PathValue("snapshot"))
	case err != nil:
	case t != nil:
		err = p.cfg.Service.DeleteTemplate(r.Context(), t.Name)
	default:
		_, err = p.cfg.Service.DeleteSnapshot(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// snapshot makes a snapshot of a sandbox: of its files, or with memory if the client
// asks for it.
func (p *plane) snapshot(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Name          string `json:"name"`
		IncludeMemory bool   `json:"includeMemory"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if body.Name == "" {
		return answer.Invalid("the name is missing; give the snapshot one")
	}
	if err := p.mustBeFree(r.Context(), body.Name); err != nil {
		return err
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	req := sandbox.CreateSnapshotRequest{Name: body.Name, Kind: sandbox.SnapshotFiles}
	if body.IncludeMemory {
		req.Kind = sandbox.SnapshotMemory
	}
	_, err = p.cfg.Service.CreateSnapshot(r.Context(), box.ID, req)
	return p.respond(w, r, box, err)
}
