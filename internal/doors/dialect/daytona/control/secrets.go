package control

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// secret is a secret as clients see it. Each sandbox has a placeholder of its own.
type secret struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	Placeholder string    `json:"placeholder"`
	Hosts       []string  `json:"hosts"`
}

func viewSecret(s *sandbox.Secret) secret {
	v := secret{ID: s.ID, Name: s.Name, CreatedAt: s.CreatedAt, UpdatedAt: s.CreatedAt, Hosts: s.Hosts}
	if s.RotatedAt != nil {
		v.UpdatedAt = *s.RotatedAt
	}
	return v
}

// secretBody describes a secret, or changes to one.
type secretBody struct {
	Name        string               `json:"name"`
	Value       *sandbox.SecretValue `json:"value"`
	Description json.RawMessage      `json:"description"` // which is refused
	Hosts       []string             `json:"hosts"`
}

func (b *secretBody) check() error {
	if answer.Given(b.Description) {
		return answer.Refused("description", "a secret has a name and no more")
	}
	return nil
}

// secretAuth is how a secret travels to hosts, which clients do not say: as that of a
// provider with these hosts does, or else as a bearer's token.
func (p *plane) secretAuth(ctx context.Context, hosts []string) (*sandbox.SecretAuth, error) {
	list, err := p.cfg.Service.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	for _, known := range list.Items {
		if slices.Equal(slices.Sorted(slices.Values(known.Hosts)), slices.Sorted(slices.Values(hosts))) {
			return &known.Auth, nil
		}
	}
	return &sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Bearer "}, nil
}

func (p *plane) createSecret(w http.ResponseWriter, r *http.Request) error {
	var body secretBody
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	if body.Value == nil || len(body.Hosts) == 0 || slices.Contains(body.Hosts, sandbox.AnyHost) {
		return answer.Invalid("hosts: a secret of Cove's has a value, and goes to hosts that are named and no others; give both")
	}
	auth, err := p.secretAuth(r.Context(), body.Hosts)
	if err != nil {
		return err
	}
	s, err := p.cfg.Service.CreateSecret(r.Context(), sandbox.CreateSecretRequest{Name: body.Name, Value: *body.Value, Hosts: body.Hosts, Auth: auth})
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewSecret(s))
	return nil
}

func (p *plane) getSecret(w http.ResponseWriter, r *http.Request) error {
	s, err := p.cfg.Service.GetSecret(r.Context(), r.PathValue("secret"))
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewSecret(s))
	return nil
}

// updateSecret gives a secret another value. Where it goes is as it was made.
func (p *plane) updateSecret(w http.ResponseWriter, r *http.Request) error {
	var body secretBody
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	if body.Name != "" || body.Hosts != nil {
		return answer.Refused("name and hosts", "a secret keeps those that it was made with; delete it, and make another")
	}
	s, err := p.cfg.Service.GetSecret(r.Context(), r.PathValue("secret"))
	if err == nil && body.Value != nil {
		s, err = p.cfg.Service.RotateSecret(r.Context(), s.ID, sandbox.RotateSecretRequest{Value: *body.Value})
	}
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewSecret(s))
	return nil
}

func (p *plane) deleteSecret(w http.ResponseWriter, r *http.Request) error {
	if err := p.cfg.Service.DeleteSecret(r.Context(), r.PathValue("secret")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// maxSecrets bounds a page.
const maxSecrets = 200

// listSecrets serves a page of secrets, whose cursor is the last one's id. Clients sort by
// name, or by when a secret was made or changed.
func (p *plane) listSecrets(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit := 100
	if text := query.Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxSecrets {
			return answer.Invalid("limit is %.20q; give 1 to %d", text, maxSecrets)
		}
	}
	by, err := secretOrder(query.Get("sort"), query.Get("order"))
	if err != nil {
		return err
	}
	all, err := p.secrets(r.Context(), query.Get("name"))
	if err != nil {
		return err
	}
	slices.SortFunc(all, by)
	total := len(all)
	if cursor := query.Get("cursor"); cursor != "" {
		i := slices.IndexFunc(all, func(s secret) bool { return s.ID == cursor })
		if i < 0 {
			return answer.Invalid("cursor %.80q is of no secret, or not any more; begin again", cursor)
		}
		all = all[i+1:]
	}
	var next *string
	if len(all) > limit {
		all = all[:limit]
		next = &all[limit-1].ID
	}
	answer.JSON(w, http.StatusOK, map[string]any{"items": all, "total": total, "nextCursor": next})
	return nil
}

// secrets returns the secrets whose names contain a text.
func (p *plane) secrets(ctx context.Context, name string) ([]secret, error) {
	all := []secret{}
	for s, err := range sandbox.Each(ctx, p.cfg.Service.ListSecrets) {
		if err != nil {
			return nil, err
		}
		if strings.Contains(strings.ToLower(s.Name), strings.ToLower(name)) {
			all = append(all, viewSecret(&s))
		}
	}
	return all, nil
}

func secretOrder(sort, order string) (func(a, b secret) int, error) {
	by := map[string]func(a, b secret) int{
		"name":      func(a, b secret) int { return strings.Compare(a.Name, b.Name) },
		"createdAt": func(a, b secret) int { return a.CreatedAt.Compare(b.CreatedAt) },
		"updatedAt": func(a, b secret) int { return a.UpdatedAt.Compare(b.UpdatedAt) },
	}[cmp.Or(sort, "createdAt")]
	if by == nil || order != "" && order != "asc" && order != "desc" {
		return nil, answer.Invalid("sort %.20q in order %.20q: sort by name, createdAt or updatedAt, asc or desc", sort, order)
	}
	return func(a, b secret) int {
		n := cmp.Or(by(a, b), strings.Compare(a.ID, b.ID))
		if order == "desc" || order == "" && sort == "" { // the newest first
			return -n
		}
		return n
	}, nil
}

// secretsOf reads secrets by the variables that have their placeholders.
func secretsOf(list []map[string]string) map[string]string {
	var out map[string]string
	for _, s := range list {
		for env, name := range s {
			if out == nil {
				out = map[string]string{}
			}
			out[env] = name
		}
	}
	return out
}

// setSecrets replaces the secrets of a sandbox.
func (p *plane) setSecrets(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Secrets []map[string]string `json:"secrets"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	if caller, _ := sandbox.CallerOf(r.Context()); !caller.Has(sandbox.ScopeSandboxesWrite) { // also where nothing is to change
		return sandbox.Errorf(sandbox.CodeForbidden, "the secrets of a sandbox are changed with a key that has %s", sandbox.ScopeSandboxesWrite)
	}
	wanted := secretsOf(body.Secrets)
	for env, ref := range wanted { // check all before the first is attached
		s, err := p.cfg.Service.GetSecret(r.Context(), ref)
		if err != nil {
			return sandbox.Wrap(sandbox.CodeOf(err), err, env+": "+sandbox.MessageOf(err))
		}
		if slices.Contains(s.Hosts, sandbox.AnyHost) {
			return answer.Invalid("%.80s: the secret %s is for every host, and no variable can have it; create one with the hosts that it is for", env, s.Name)
		}
		wanted[env] = s.Name // as the sandbox has it, where an id is given
	}
	for env, name := range box.Secrets {
		if wanted[env] == name {
			delete(wanted, env)
			continue
		}
		if box, err = p.cfg.Service.DetachSecret(r.Context(), box.ID, env); err != nil {
			return err
		}
	}
	for env, name := range wanted {
		if box, err = p.cfg.Service.AttachSecret(r.Context(), box.ID, name, env); err != nil {
			return err
		}
	}
	return p.respond(w, r, box, nil)
}
