package secrets

import (
	"context"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// envNames matches the variables that can get a placeholder: names that every shell
// accepts.
var envNames = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// AttachSecret implements [sandbox.Secrets].
func (s *Secrets) AttachSecret(ctx context.Context, ref, secret, env string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "secret.attach"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if err := checkEnv(env); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		b, err := s.bind(c, env, secret)
		if err != nil {
			return nil, err
		}
		c.Detail = b.Secret + " as " + env
		r, err = s.cfg.Change(c.Ctx, r.ID, func(r *store.Record) error {
			if i := boundAs(r, env); i >= 0 {
				return sandbox.Errorf(sandbox.CodeConflict, "%s of sandbox %s has the placeholder of secret %q; detach that first", env, r.ID, r.Bindings[i].Secret)
			}
			r.Bindings = append(slices.Clone(r.Bindings), b)
			return CheckBindings(r)
		})
		if err != nil {
			return nil, err
		}
		// The secret may have been deleted since it was looked up; then the gateway has
		// it as revoked.
		return s.cfg.View(r), nil
	})
}

// bind makes a binding of the caller's secret, with a new placeholder.
func (s *Secrets) bind(c *call.Call, env, secret string) (store.Binding, error) {
	if s.cfg.Vault == nil {
		return store.Binding{}, ErrNone
	}
	r, err := s.find(c, secret)
	if err != nil {
		return store.Binding{}, err
	}
	if slices.Contains(r.Hosts, sandbox.AnyHost) {
		return store.Binding{}, validate.Errorf("secret %q is for every host, so it cannot be attached to a variable: code in the sandbox could send it anywhere; use it in the headers of a network policy, or create it again with its hosts", r.Name)
	}
	placeholder, err := vault.NewPlaceholder(r.Provider)
	if err != nil {
		return store.Binding{}, err
	}
	return store.Binding{Env: env, SecretID: r.ID, Secret: r.Name, Placeholder: placeholder}, nil
}

// BindAll adds bindings of the caller's secrets to a new record. They override bindings
// that the record already has.
func (s *Secrets) BindAll(c *call.Call, r *store.Record, secrets map[string]string) error {
	for env, secret := range secrets {
		b, err := s.bind(c, env, secret)
		if err != nil {
			return err
		}
		r.Bindings = slices.DeleteFunc(slices.Clone(r.Bindings), func(b store.Binding) bool { return b.Env == env })
		r.Bindings = append(r.Bindings, b)
	}
	slices.SortFunc(r.Bindings, func(a, b store.Binding) int { return strings.Compare(a.Env, b.Env) })
	return CheckBindings(r)
}

// DetachSecret implements [sandbox.Secrets].
func (s *Secrets) DetachSecret(ctx context.Context, ref, env string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "secret.detach"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if err := checkEnv(env); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		r, err = s.cfg.Change(c.Ctx, r.ID, func(r *store.Record) error {
			i := boundAs(r, env)
			if i < 0 {
				return sandbox.Errorf(sandbox.CodeNotFound, "%s of sandbox %s has no secret; show the sandbox to see its secrets", env, r.ID)
			}
			c.Detail = r.Bindings[i].Secret + " as " + env
			r.Bindings = slices.Delete(slices.Clone(r.Bindings), i, i+1)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return s.cfg.View(r), nil
	})
}

// boundAs returns the index of the binding with an environment variable, or -1.
func boundAs(r *store.Record, env string) int {
	return slices.IndexFunc(r.Bindings, func(b store.Binding) bool { return b.Env == env })
}

func checkEnv(env string) error {
	if !envNames.MatchString(env) {
		return validate.Errorf("%s cannot have a secret; use an environment variable of letters, digits and underscores, such as API_TOKEN", validate.Quote(env))
	}
	return nil
}

// CheckBindings refuses a record that has a variable twice, or too many bindings.
func CheckBindings(r *store.Record) error {
	if len(r.Bindings) > sandbox.MaxSecretsPerSandbox {
		return validate.Errorf("the sandbox has %d secrets; attach at most %d", len(r.Bindings), sandbox.MaxSecretsPerSandbox)
	}
	for _, b := range r.Bindings {
		if _, both := r.Env[b.Env]; both && b.Env != "" {
			return validate.Errorf("env has %s, which gets the placeholder of secret %q; leave one of them out", b.Env, b.Secret)
		}
	}
	return nil
}

// Names returns the secrets of a record as callers see them, by environment variable.
func Names(r *store.Record) map[string]string {
	var names map[string]string
	for _, b := range r.Bindings {
		if b.Env == "" {
			continue
		}
		if names == nil {
			names = map[string]string{}
		}
		names[b.Env] = b.Secret
	}
	return names
}

// CheckEnvs refuses names of environment variables that cannot have a secret, and too
// many of them.
func CheckEnvs(secrets map[string]string) error {
	if len(secrets) > sandbox.MaxSecretsPerSandbox {
		return validate.Errorf("secrets has %d entries; use at most %d", len(secrets), sandbox.MaxSecretsPerSandbox)
	}
	for env := range secrets {
		if err := checkEnv(env); err != nil {
			return err
		}
	}
	return nil
}
