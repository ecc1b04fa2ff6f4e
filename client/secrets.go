package client

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// secretBody is a request with its value, which is not shown otherwise.
type secretBody struct {
	sandbox.CreateSecretRequest
	Value string `json:"value"`
}

type rotateBody struct {
	Value string `json:"value"`
}

// CreateSecret implements [sandbox.Secrets].
func (c *Client) CreateSecret(ctx context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return get[sandbox.Secret](ctx, c, http.MethodPost, c.path("/v1/secrets"), secretBody{req, req.Value.Reveal()})
}

// GetSecret implements [sandbox.Secrets].
func (c *Client) GetSecret(ctx context.Context, secret string) (*sandbox.Secret, error) {
	return get[sandbox.Secret](ctx, c, http.MethodGet, c.path("/v1/secrets/%", secret), nil)
}

// ListSecrets implements [sandbox.Secrets].
func (c *Client) ListSecrets(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return get[sandbox.List[sandbox.Secret]](ctx, c, http.MethodGet, c.path("/v1/secrets").page(page), nil)
}

// RotateSecret implements [sandbox.Secrets].
func (c *Client) RotateSecret(ctx context.Context, secret string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return get[sandbox.Secret](ctx, c, http.MethodPost, c.path("/v1/secrets/%/rotate", secret), rotateBody{req.Value.Reveal()})
}

// RotateSecretsKey implements [sandbox.Secrets].
func (c *Client) RotateSecretsKey(ctx context.Context) (*sandbox.Resealed, error) {
	return get[sandbox.Resealed](ctx, c, http.MethodPost, c.path("/v1/secrets-key/rotate"), nil)
}

// DeleteSecret implements [sandbox.Secrets].
func (c *Client) DeleteSecret(ctx context.Context, secret string) error {
	return c.call(ctx, http.MethodDelete, c.path("/v1/secrets/%", secret), nil, nil)
}

// ListProviders implements [sandbox.Secrets].
func (c *Client) ListProviders(ctx context.Context) (*sandbox.List[sandbox.Provider], error) {
	return get[sandbox.List[sandbox.Provider]](ctx, c, http.MethodGet, c.path("/v1/providers"), nil)
}

// AttachSecret implements [sandbox.Secrets].
func (c *Client) AttachSecret(ctx context.Context, name, secret, env string) (*sandbox.Sandbox, error) {
	body := map[string]string{"secret": secret, "env": env}
	return get[sandbox.Sandbox](ctx, c, http.MethodPost, c.path("/v1/sandboxes/%/secrets", name), body)
}

// DetachSecret implements [sandbox.Secrets].
func (c *Client) DetachSecret(ctx context.Context, name, env string) (*sandbox.Sandbox, error) {
	return get[sandbox.Sandbox](ctx, c, http.MethodDelete, c.path("/v1/sandboxes/%/secrets/%", name, env), nil)
}
