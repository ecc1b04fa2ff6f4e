package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// secret is a secret as the product shows it.
type secret struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	AuthType  string         `json:"auth_type"`
	Auth      map[string]any `json:"auth_config"`
	Provider  string         `json:"provider_shortcut,omitempty"`
	Hosts     []string       `json:"hosts"`
	CreatedAt string         `json:"created_at"`
	UpdatedAt string         `json:"updated_at"`
	LastUsed  string         `json:"last_used_at,omitempty"`
}

func secretOf(s *sandbox.Secret) secret {
	return secret{
		ID: s.ID, Name: s.Name, AuthType: terms.AuthType(&s.Auth), Auth: authConfig(&s.Auth), Provider: s.Provider, Hosts: append([]string{}, s.Hosts...),
		CreatedAt: dialect.Stamp(s.CreatedAt), UpdatedAt: cmp.Or(dialect.StampOf(s.RotatedAt), dialect.Stamp(s.CreatedAt)), LastUsed: dialect.StampOf(s.LastUsedAt),
	}
}

func (d *Door) listSecrets(w http.ResponseWriter, r *http.Request, _ []string) error {
	rows := []secret{}
	for s, err := range sandbox.Each(r.Context(), d.cfg.Service.ListSecrets) {
		if err != nil {
			return err
		}
		rows = append(rows, secretOf(&s))
	}
	writeJSON(w, http.StatusOK, rows)
	return nil
}

type secretBody struct {
	Name     string              `json:"name"`
	Value    sandbox.SecretValue `json:"value"`
	Provider string              `json:"provider"`
	Auth     *secretAuth         `json:"auth"`
	Hosts    []string            `json:"hosts"`
}

func (d *Door) createSecret(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body secretBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	req := sandbox.CreateSecretRequest{Name: body.Name, Value: body.Value, Provider: body.Provider, Hosts: body.Hosts}
	switch own := body.Auth != nil || len(body.Hosts) > 0; {
	case own && body.Provider != "", !own && body.Provider == "":
		return invalid("give either provider, or auth and hosts")
	case own && (body.Auth == nil || len(body.Hosts) == 0):
		return invalid("auth and hosts go together")
	case own:
		auth, err := body.Auth.mapped(body.Hosts)
		if err != nil {
			return err
		}
		req.Auth = auth
	}
	s, err := d.cfg.Service.CreateSecret(r.Context(), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, secretOf(s))
	return nil
}

// find returns a secret by its name. The service would also accept ids.
func (d *Door) find(ctx context.Context, name string) (*sandbox.Secret, error) {
	s, err := d.cfg.Service.GetSecret(ctx, name)
	if err == nil && s.Name != name || sandbox.CodeOf(err) == sandbox.CodeNotFound || sandbox.CodeOf(err) == sandbox.CodeInvalid {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "Secret %s not found", clip.Text(name, maxShown))
	}
	return s, err
}

func (d *Door) getSecret(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.find(r.Context(), args[0])
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, secretOf(s))
	return nil
}

func (d *Door) rotateSecret(w http.ResponseWriter, r *http.Request, args []string) error {
	var body struct {
		Value sandbox.SecretValue `json:"value"`
	}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	s, err := d.find(r.Context(), args[0])
	if err == nil {
		s, err = d.cfg.Service.RotateSecret(r.Context(), s.ID, sandbox.RotateSecretRequest{Value: body.Value})
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, secretOf(s))
	return nil
}

func (d *Door) deleteSecret(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.find(r.Context(), args[0])
	if err == nil {
		err = d.cfg.Service.DeleteSecret(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// using returns the sandboxes that have a secret and exist for clients, each with the
// secret's variable.
func (d *Door) using(ctx context.Context, name string) ([]bound, error) {
	var out []bound
	for s, err := range dialect.Sandboxes(ctx, d.cfg.Service, sandbox.ListRequest{}) {
		if err != nil {
			return nil, err
		}
		if terms.Status(s.State) == terms.Deleted {
			continue
		}
		for env, secret := range s.Secrets {
			if secret == name {
				out = append(out, bound{s.ID, terms.NameOf(&s), env, terms.Status(s.State)})
			}
		}
	}
	return out, nil
}

// bound is a sandbox that has a secret.
type bound struct {
	ID     string `json:"sandbox_id"`
	Name   string `json:"sandbox_name"`
	EnvKey string `json:"env_key"`
	Status string `json:"status"`
}

func (d *Door) secretSandboxes(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.find(r.Context(), args[0])
	if err != nil {
		return err
	}
	rows, err := d.using(r.Context(), s.Name)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b bound) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.EnvKey, b.EnvKey)) })
	writeJSON(w, http.StatusOK, append([]bound{}, rows...))
	return nil
}

// audited is a request that carried a secret. Its id is its time in microseconds: each
// sandbox has a log of its own, with its own numbers.
type audited struct {
	ID       int64  `json:"id"`
	Time     string `json:"ts"`
	Sandbox  string `json:"sandbox_id"`
	Name     string `json:"sandbox_name"`
	Secret   string `json:"secret_id"`
	Method   string `json:"method"`
	Host     string `json:"host"`
	Path     string `json:"path"`
	Status   int    `json:"status"`
	Upstream int    `json:"upstream_status,omitempty"`
	Latency  *int64 `json:"latency_ms,omitempty"`
	Error    string `json:"error_code,omitempty"`
}

// statusClasses are the values of the filter status, with the first status of each.
var statusClasses = map[string]int{"": 0, "2xx": 200, "3xx": 300, "4xx": 400, "5xx": 500, "errors": 0}

func (d *Door) secretAudit(w http.ResponseWriter, r *http.Request, args []string) error {
	query, err := onlyParams(r, "limit", "before", "status")
	if err != nil {
		return err
	}
	limit, err := readLimit(query.Get("limit"), defaultRows, maxRows)
	if err != nil {
		return err
	}
	var before *time.Time
	if text := query.Get("before"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id <= 0 {
			return invalid("before %q is not the id of an event", clip.Text(text, maxShown))
		}
		at := time.UnixMicro(id)
		before = &at
	}
	class := query.Get("status")
	if _, ok := statusClasses[class]; !ok {
		return invalid("status %q is not 2xx, 3xx, 4xx, 5xx or errors", clip.Text(class, maxShown))
	}
	s, err := d.find(r.Context(), args[0])
	if err != nil {
		return err
	}
	boxes, err := d.using(r.Context(), s.Name)
	if err != nil {
		return err
	}
	rows := []audited{}
	for i, b := range boxes {
		if slices.ContainsFunc(boxes[:i], func(other bound) bool { return other.ID == b.ID }) {
			continue
		}
		list, err := d.cfg.Service.NetworkLog(r.Context(), b.ID, sandbox.NetworkLogRequest{
			Kind: sandbox.NetworkRequest, Until: before, Page: sandbox.Page{Limit: sandbox.MaxPageSize},
		})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if row := auditRow(&e, &b, s); (e.Secret == s.Name || e.Secret == s.ID) && row.matches(class) {
				rows = append(rows, row)
			}
		}
	}
	slices.SortFunc(rows, func(a, b audited) int { return cmp.Compare(b.ID, a.ID) })
	writeJSON(w, http.StatusOK, rows[:min(limit, len(rows))])
	return nil
}

func auditRow(e *sandbox.NetworkEvent, b *bound, s *sandbox.Secret) audited {
	row := terms.RowOf(e)
	return audited{
		ID: e.Time.UnixMicro(), Time: row.Time, Sandbox: b.ID, Name: b.Name, Secret: s.ID, Method: row.Method, Host: row.Host,
		Path: row.Path, Status: row.Status, Upstream: row.Upstream, Latency: row.Latency, Error: row.Error,
	}
}

func (a *audited) matches(class string) bool {
	switch class {
	case "":
		return true
	case "errors":
		return a.Error != "" || a.Status >= 400
	}
	first := statusClasses[class]
	return a.Status >= first && a.Status < first+100
}

func (d *Door) attachSecret(w http.ResponseWriter, r *http.Request, args []string) error {
	var body struct {
		EnvKey string `json:"env_key"`
		Secret string `json:"secret_name"`
	}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	s, err := d.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if _, err := d.find(r.Context(), body.Secret); err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			err = &coded{invalid("%s", sandbox.MessageOf(err)), "secret_not_found"}
		}
		return err
	}
	if s, err = d.cfg.Service.AttachSecret(r.Context(), s.ID, body.Secret, body.EnvKey); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, terms.Binding{EnvKey: body.EnvKey, Name: s.Secrets[body.EnvKey]})
	return nil
}

func (d *Door) detachSecret(w http.ResponseWriter, r *http.Request, args []string) error {
	s, err := d.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if _, has := s.Secrets[args[1]]; !has {
		return sandbox.Errorf(sandbox.CodeNotFound, "Sandbox %s has no secret in %s", s.ID, clip.Text(args[1], maxShown))
	}
	if _, err := d.cfg.Service.DetachSecret(r.Context(), s.ID, args[1]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// provider is a preset for the secrets of a service.
type provider struct {
	Name     string         `json:"name"`
	Display  string         `json:"display"`
	AuthType string         `json:"auth_type"`
	Auth     map[string]any `json:"auth_config"`
	Hosts    []string       `json:"hosts"`
	Shape    string         `json:"token_shape"`
}

func (d *Door) listProviders(w http.ResponseWriter, r *http.Request, _ []string) error {
	list, err := d.cfg.Service.ListProviders(r.Context())
	if err != nil {
		return err
	}
	rows := make([]provider, len(list.Items))
	for i, p := range list.Items {
		rows[i] = provider{p.Name, p.Title, terms.AuthType(&p.Auth), authConfig(&p.Auth), p.Hosts, p.TokenShape}
	}
	writeJSON(w, http.StatusOK, rows)
	return nil
}
