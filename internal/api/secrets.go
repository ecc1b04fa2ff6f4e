package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// SecretPath is the part of a path that names a secret.
type SecretPath struct {
	Secret string `path:"secret" doc:"A secret's id or name."`
}

type createSecretInput struct {
	Body sandbox.CreateSecretRequest
}

type createSecretReply struct {
	Location string `header:"Location"`
	Body     *sandbox.Secret
}

type rotateSecretInput struct {
	SecretPath
	Body sandbox.RotateSecretRequest
}

// AttachSecretBody says which secret a sandbox gets, and how.
type AttachSecretBody struct {
	Secret string `json:"secret" doc:"The secret's id or name."`
	Env    string `json:"env" doc:"The environment variable that gets the placeholder."`
}

type attachSecretInput struct {
	SandboxPath
	Body AttachSecretBody
}

type detachSecretInput struct {
	SandboxPath
	Env string `path:"env" doc:"The environment variable that has the placeholder."`
}

func (h *handlers) registerSecrets(a huma.API) {
	create := op(http.MethodPost, "/v1/secrets", "create-secret", "secrets", "Create a secret, whose value nobody can read again")
	create.DefaultStatus = http.StatusCreated
	huma.Register(a, create, func(ctx context.Context, in *createSecretInput) (*createSecretReply, error) {
		v, err := h.svc.CreateSecret(ctx, in.Body)
		if err != nil {
			return nil, h.fail(ctx, err)
		}
		return &createSecretReply{Location: "/v1/secrets/" + v.ID, Body: v}, nil
	})
	huma.Register(a, op(http.MethodGet, "/v1/secrets", "list-secrets", "secrets", "List secrets, without values, newest first"),
		func(ctx context.Context, in *PageQuery) (*Reply[sandbox.List[sandbox.Secret]], error) {
			v, err := h.svc.ListSecrets(ctx, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/secrets/{secret}", "get-secret", "secrets", "Get a secret, without its value"),
		func(ctx context.Context, in *SecretPath) (*Reply[sandbox.Secret], error) {
			v, err := h.svc.GetSecret(ctx, in.Secret)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, "/v1/secrets/{secret}/rotate", "rotate-secret", "secrets", "Replace a secret's value, at once in running sandboxes"),
		func(ctx context.Context, in *rotateSecretInput) (*Reply[sandbox.Secret], error) {
			v, err := h.svc.RotateSecret(ctx, in.Secret, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, "/v1/secrets/{secret}", "delete-secret", "secrets", "Delete a secret, which ends its use everywhere"),
		func(ctx context.Context, in *SecretPath) (*struct{}, error) {
			return done(ctx, h, h.svc.DeleteSecret(ctx, in.Secret))
		})
	huma.Register(a, op(http.MethodPost, "/v1/secrets-key/rotate", "rotate-secrets-key", "secrets", "Make a new key for the values of all secrets, and seal them with it"),
		func(ctx context.Context, _ *struct{}) (*Reply[sandbox.Resealed], error) {
			v, err := h.svc.RotateSecretsKey(ctx)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, says(op(http.MethodGet, "/v1/providers", "list-providers", "secrets", "List presets for secrets of well-known services, by name"),
		"They are part of the program, and all in one answer."),
		func(ctx context.Context, _ *struct{}) (*Reply[sandbox.List[sandbox.Provider]], error) {
			v, err := h.svc.ListProviders(ctx)
			return reply(ctx, h, v, err)
		})
	const attached = "/v1/sandboxes/{sandbox}/secrets"
	huma.Register(a, needs(op(http.MethodPost, attached, "attach-secret", "secrets", "Give a living sandbox a placeholder for a secret"), sandbox.ScopeSandboxesWrite),
		func(ctx context.Context, in *attachSecretInput) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.AttachSecret(ctx, in.Sandbox, in.Body.Secret, in.Body.Env)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, attached+"/{env}", "detach-secret", "secrets", "Take a secret from a sandbox"),
		func(ctx context.Context, in *detachSecretInput) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.DetachSecret(ctx, in.Sandbox, in.Env)
			return reply(ctx, h, v, err)
		})
}
