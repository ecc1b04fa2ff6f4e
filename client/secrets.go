package client

import (
	"context"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// secretBody is a request with its value in plain text; a SecretValue itself encodes as
// "[redacted]".
type secretBody struct {
	sandbox.CreateSecretRequest
	Value string `json:"value"`
}

// CreateSecret implements [sandbox.Secrets].
func (c *Client) CreateSecret(ctx context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return get(ctx, c, operation.CreateSecret, secretBody{req, req.Value.Reveal()})
}

// GetSecret implements [sandbox.Secrets].
func (c *Client) GetSecret(ctx context.Context, secret string) (*sandbox.Secret, error) {
	return get(ctx, c, operation.GetSecret, nil, secret)
}

// ListSecrets implements [sandbox.Secrets].
func (c *Client) ListSecrets(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return get(ctx, c, operation.ListSecrets, page)
}

// RotateSecret implements [sandbox.Secrets].
func (c *Client) RotateSecret(ctx context.Context, secret string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return get(ctx, c, operation.RotateSecret, members{"value": req.Value.Reveal()}, secret)
}

// RotateSecretsKey implements [sandbox.Secrets].
func (c *Client) RotateSecretsKey(ctx context.Context) (*sandbox.Resealed, error) {
	return get(ctx, c, operation.RotateSecretsKey, nil)
}

// DeleteSecret implements [sandbox.Secrets].
func (c *Client) DeleteSecret(ctx context.Context, secret string) error {
	return do(ctx, c, operation.DeleteSecret, nil, secret)
}

// ListProviders implements [sandbox.Secrets].
func (c *Client) ListProviders(ctx context.Context) (*sandbox.List[sandbox.Provider], error) {
	return get(ctx, c, operation.ListProviders, nil)
}

// AttachSecret implements [sandbox.Secrets].
func (c *Client) AttachSecret(ctx context.Context, name, secret, env string) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.AttachSecret, operation.AttachSecretBody{Secret: secret, Env: env}, name)
}

// DetachSecret implements [sandbox.Secrets].
func (c *Client) DetachSecret(ctx context.Context, name, env string) (*sandbox.Sandbox, error) {
	return get(ctx, c, operation.DetachSecret, nil, name, env)
}
