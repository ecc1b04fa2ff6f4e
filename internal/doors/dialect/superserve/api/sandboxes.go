package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxTimeout = 7 * 24 * 3600  // of timeout_seconds
	maxWindow  = 30 * 24 * 3600 // of auto_delete_seconds
)

// box is a sandbox as the product shows it.
type box struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Status     string            `json:"status"`
	VCPUs      int               `json:"vcpu_count"`
	MemoryMiB  int64             `json:"memory_mib"`
	CreatedAt  string            `json:"created_at"`
	Timeout    int64             `json:"timeout_seconds,omitempty"`
	AutoDelete *int64            `json:"auto_delete_seconds,omitempty"`
	DeleteAt   string            `json:"auto_delete_at,omitempty"`
	Network    *terms.Rules      `json:"network,omitempty"`
	Metadata   map[string]string `json:"metadata"`
	Secrets    []terms.Binding   `json:"secrets,omitempty"`
	// Token is set only in answers about a single sandbox.
	Token string `json:"access_token,omitempty"`
}

func (d *Door) view(ctx context.Context, s *sandbox.Sandbox) (*box, error) {
	v := &box{
		ID: s.ID, Name: terms.NameOf(s), Status: terms.Status(s.State), Metadata: terms.Tags(s),
		VCPUs: s.Resources.VCPUs, MemoryMiB: s.Resources.MemoryMiB,
		CreatedAt: dialect.Stamp(s.CreatedAt), DeleteAt: dialect.StampOf(s.PausedExpiresAt),
		AutoDelete: terms.WindowOf(s.PausedLifetimeSeconds), Network: terms.RulesOf(s.Network),
	}
	if s.OnTimeout == sandbox.ActionPause {
		v.Timeout = s.IdleTimeoutSeconds
	}
	var err error
	v.Secrets, err = terms.BoundSecrets(ctx, d.cfg.Service, s.Secrets)
	return v, err
}

// answer writes a sandbox with the caller's token for it.
func (d *Door) answer(w http.ResponseWriter, r *http.Request, status int, s *sandbox.Sandbox) error {
	v, err := d.view(r.Context(), s)
	if err != nil {
		return err
	}
	v.Token = d.token(r.Context(), s.ID)
	writeJSON(w, status, v)
	return nil
}

func (d *Door) token(ctx context.Context, id string) string {
	caller, _ := sandbox.CallerOf(ctx) // callers here are authenticated
	return d.cfg.Gate.Token(tokenPurpose, caller, id)
}

func errGone(id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "Sandbox %s not found", clip.Text(id, maxShown))
}

// living returns a sandbox that exists for clients.
func (d *Door) living(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	if !sdkdoor.ValidID(id) {
		return nil, errGone(id)
	}
	s, err := d.cfg.Service.Get(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && terms.Status(s.State) == terms.Deleted {
		return nil, errGone(id)
	}
	return s, err
}

type network struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

type createBody struct {
	Name       string            `json:"name"`
	Template   string            `json:"from_template"`
	Snapshot   string            `json:"from_snapshot"`
	Timeout    *int64            `json:"timeout_seconds"`
	AutoDelete *int64            `json:"auto_delete_seconds"`
	Metadata   map[string]string `json:"metadata"`
	Env        map[string]string `json:"env_vars"`
	Secrets    map[string]string `json:"secrets"`
	Network    *network          `json:"network"`
}

func (b *createBody) check() error {
	if err := terms.CheckName(b.Name); err != nil {
		return err
	}
	if b.Template != "" && b.Snapshot != "" {
		return invalid("give either from_template or from_snapshot")
	}
	if err := checkSeconds("timeout_seconds", b.Timeout, 1, maxTimeout); err != nil {
		return err
	}
	if err := checkSeconds("auto_delete_seconds", b.AutoDelete, 0, maxWindow); err != nil {
		return err
	}
	return terms.CheckTags(b.Metadata)
}

func checkSeconds(name string, v *int64, low, high int64) error {
	if v != nil && (*v < low || *v > high) {
		return invalid("%s must be between %d and %d (got %d)", name, low, high, *v)
	}
	return nil
}

func (d *Door) create(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body createBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	req := sandbox.CreateRequest{
		Template: terms.TemplateName(body.Template), Snapshot: body.Snapshot,
		Metadata: map[string]string{}, Env: body.Env, Secrets: body.Secrets,
		LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64), // never
	}
	for key, value := range body.Metadata {
		req.Metadata[key] = value
	}
	caller, _ := sandbox.CallerOf(r.Context())
	req.Metadata[terms.PortsTag] = caller.KeyID
	if body.Timeout != nil {
		*req.IdleTimeoutSeconds, req.OnTimeout = *body.Timeout, sandbox.ActionPause
	}
	if body.AutoDelete != nil {
		req.PausedLifetimeSeconds = terms.PausedLifetime(*body.AutoDelete)
	}
	if n := body.Network; n != nil {
		policy := terms.Replace(nil, n.AllowOut, n.DenyOut)
		req.Network = &policy
	}
	if body.Snapshot == "" {
		if err := d.choose(r.Context(), body.Template, &req); err != nil {
			return err
		}
	}
	s, err := dialect.CreateNamed(r.Context(), d.cfg.Service, body.Name, terms.NameTag, req)
	if err != nil {
		return quota(err, "too_many_sandboxes")
	}
	return d.answer(w, r, http.StatusCreated, s)
}

// choose sets the template of a new sandbox, and its user. The product's base template is
// Cove's template base if that is built, else the server's default.
func (d *Door) choose(ctx context.Context, asked string, req *sandbox.CreateRequest) (err error) {
	if req.User, err = d.userOf(ctx, asked, req.Template); err != nil || req.Template != "" {
		return err
	}
	const base = "base"
	t, err := d.cfg.Service.GetTemplate(ctx, base)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
	case err != nil:
		return err
	case t.Version > 0:
		req.Template = base
	}
	return nil
}

// userOf returns the user that runs commands in a template's sandboxes: "", for the
// template's own user, if a template other than the product's names one, else root.
func (d *Door) userOf(ctx context.Context, asked, name string) (string, error) {
	const root = "root"
	if name == "" || strings.HasPrefix(asked, terms.Curated) {
		return root, nil
	}
	t, err := d.cfg.Service.GetTemplate(ctx, name)
	if err != nil {
		return "", aboutTemplate(asked, err)
	}
	switch t.State {
	case sandbox.TemplateBuilding, sandbox.TemplateFailed:
		if t.Version == 0 {
			return "", sandbox.Errorf(sandbox.CodeConflict, "template %s is %s; only a ready one can be used", clip.Text(asked, maxShown), t.State)
		}
	}
	if t.User == "" {
		return root, nil
	}
	return "", nil
}

// list serves sandboxes, newest first, without tokens.
func (d *Door) list(w http.ResponseWriter, r *http.Request, _ []string) error {
	filter, err := tagFilter(r.URL.RawQuery)
	if err != nil {
		return err
	}
	rows := []*box{}
	for s, err := range dialect.Sandboxes(r.Context(), d.cfg.Service, sandbox.ListRequest{Metadata: filter}) {
		if err != nil {
			return err
		}
		if terms.Status(s.State) == terms.Deleted {
			continue
		}
		row, err := d.view(r.Context(), &s)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	writeJSON(w, http.StatusOK, rows)
	return nil
}

// tagFilter reads metadata.KEY=VALUE.
func tagFilter(query string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, invalid("the query cannot be read: %s", clip.Text(err.Error(), maxShown))
	}
	tags := map[string]string{}
	for name, list := range values {
		key, ok := strings.CutPrefix(name, "metadata.")
		switch {
		case !ok:
			return nil, invalid("%s: Cove filters sandboxes by metadata.KEY only; leave it out", clip.Text(name, maxShown))
		case len(list) > 1:
			return nil, invalid("%s is given twice; give it once", clip.Text(name, maxShown))
		}
		tags[key] = list[0]
	}
	return tags, terms.CheckTags(tags)
}

func (d *Door) get(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	return d.answer(w, r, http.StatusOK, s)
}

func (d *Door) kill(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.living(r.Context(), args[0])
	if err == nil {
		_, err = d.cfg.Service.Kill(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// inState returns a sandbox that is in the state required for a transition.
func (d *Door) inState(ctx context.Context, id string, want sandbox.State) (*sandbox.Sandbox, error) {
	s, err := d.living(ctx, id)
	if err == nil && s.State != want {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "Sandbox is %s, not %s", terms.Status(s.State), terms.Status(want))
	}
	return s, err
}

func (d *Door) pause(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.inState(r.Context(), args[0], sandbox.StateRunning)
	if err == nil {
		_, err = d.cfg.Service.Pause(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (d *Door) resume(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.inState(r.Context(), args[0], sandbox.StatePaused)
	if err == nil {
		s, err = d.cfg.Service.Resume(r.Context(), s.ID, sandbox.ResumeRequest{})
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"id": s.ID, "status": terms.Status(s.State), "access_token": d.token(r.Context(), s.ID)})
	return nil
}

// activate resumes a sandbox if it is paused.
func (d *Door) activate(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.living(r.Context(), args[0])
	if err == nil && s.State != sandbox.StateRunning {
		s, err = d.cfg.Service.Resume(r.Context(), s.ID, sandbox.ResumeRequest{})
	}
	if err != nil {
		return err
	}
	return d.answer(w, r, http.StatusOK, s)
}
