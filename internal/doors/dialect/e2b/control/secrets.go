package control

import (
	"net/http"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// secret is a secret without its value, which is never returned.
type secret struct {
	SecretID       string            `json:"secretID"`
	Name           string            `json:"name"`
	CurrentVersion int               `json:"currentVersion"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
}

func viewSecret(s *sandbox.Secret) secret {
	v := secret{SecretID: s.ID, Name: s.Name, CurrentVersion: s.Version, Metadata: s.Metadata, CreatedAt: s.CreatedAt, UpdatedAt: s.CreatedAt}
	if s.RotatedAt != nil {
		v.UpdatedAt = *s.RotatedAt
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

type secretBody struct {
	Name     string              `json:"name"`
	Value    sandbox.SecretValue `json:"value"`
	Metadata map[string]string   `json:"metadata"`
}

// createSecret makes a secret for any host that header rules name, since the product's
// secrets have no hosts of their own.
func (p *plane) createSecret(r *http.Request, _ []string, body *secretBody) (*response, error) {
	s, err := p.cfg.Service.CreateSecret(r.Context(), sandbox.CreateSecretRequest{Name: body.Name, Value: body.Value, Hosts: []string{sandbox.AnyHost}, Metadata: body.Metadata})
	if err != nil {
		return nil, err
	}
	return &response{http.StatusCreated, viewSecret(s)}, nil
}

type secretVersionBody struct {
	Value    sandbox.SecretValue `json:"value"`
	Metadata map[string]string   `json:"metadata"`
}

func (p *plane) updateSecret(r *http.Request, args []string, body *secretVersionBody) (*response, error) {
	s, err := p.cfg.Service.RotateSecret(r.Context(), args[0], sandbox.RotateSecretRequest{Value: body.Value, Metadata: body.Metadata})
	if err != nil {
		return nil, aboutSecret(err)
	}
	return &response{http.StatusOK, viewSecret(s)}, nil
}

func (p *plane) getSecret(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	s, err := p.cfg.Service.GetSecret(r.Context(), args[0])
	if err != nil {
		return nil, aboutSecret(err)
	}
	return &response{http.StatusOK, viewSecret(s)}, nil
}

func (p *plane) listSecrets(w http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	values := r.URL.Query()
	limit, err := readLimit(values)
	if err != nil {
		return nil, err
	}
	found, err := p.cfg.Service.ListSecrets(r.Context(), sandbox.Page{Limit: limit, Cursor: values.Get("nextToken")})
	if sandbox.CodeOf(err) == sandbox.CodeInvalid {
		return nil, errToken
	}
	if err != nil {
		return nil, err
	}
	if found.NextCursor != "" {
		w.Header().Set(headerNext, found.NextCursor)
	}
	out := make([]secret, len(found.Items))
	for i := range found.Items {
		out[i] = viewSecret(&found.Items[i])
	}
	return &response{http.StatusOK, out}, nil
}

func (p *plane) deleteSecret(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	if err := p.cfg.Service.DeleteSecret(r.Context(), args[0]); err != nil {
		return nil, aboutSecret(err)
	}
	return noContent, nil
}

func aboutSecret(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Errorf(sandbox.CodeNotFound, "Secret not found")
	}
	return err
}
