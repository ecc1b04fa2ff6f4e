package service

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxSecrets bounds the secrets of a team.
	maxSecrets = 1000
)

// envNames are of variables that get a placeholder: what every shell takes.
var envNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

var errNoVault = sandbox.Errorf(sandbox.CodeUnsupported, "this server keeps no secrets")

func isSecretID(s string) bool { return strings.HasPrefix(s, ids.Secret) }

// CreateSecret implements [sandbox.Secrets]. The store gets the value sealed.
func (s *Service) CreateSecret(ctx context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.create"), func(c *call.Call) (_ *sandbox.Secret, err error) {
		if s.cfg.Vault == nil {
			return nil, errNoVault
		}
		if req, err = vault.Complete(req); err != nil {
			return nil, err
		}
		if isSecretID(req.Name) {
			return nil, validate.Errorf("name %s begins like an id; choose one that does not begin with %q", validate.Quote(req.Name), ids.Secret)
		}
		r := store.SecretRecord{Secret: sandbox.Secret{
			ID: ids.New(ids.Secret), Team: c.Caller.Team, Name: req.Name, Provider: req.Provider, Hosts: req.Hosts, Auth: *req.Auth,
			Version: 1, CreatedAt: time.Now().UTC(),
		}}
		c.Detail = nameSecret(&r)
		s.sealing.RLock()
		defer s.sealing.RUnlock()
		if r.Sealed, err = s.seal(&r, req.Value); err != nil {
			return nil, err
		}
		if err := s.cfg.Store.CreateSecret(c.Ctx, r, maxSecrets); err != nil {
			return nil, err
		}
		return &r.Secret, nil
	})
}

// nameSecret is what the audit record says of a secret.
func nameSecret(r *store.SecretRecord) string { return r.ID + " named " + r.Name }

// seal encrypts the value of a record's version.
func (s *Service) seal(r *store.SecretRecord, value sandbox.SecretValue) ([]byte, error) {
	plain := []byte(value.Reveal())
	defer vault.Wipe(plain)
	return s.cfg.Vault.Seal(vault.Ref{Secret: r.ID, Version: r.Version}, plain)
}

// secretFor returns the record of the caller's secret with this id or name.
func (s *Service) secretFor(c *call.Call, ref string) (store.SecretRecord, error) {
	if ref == "" {
		return store.SecretRecord{}, validate.Errorf("no secret is named; give its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("secret", ref) != nil {
		return store.SecretRecord{}, noSecret(ref)
	}
	var r store.SecretRecord
	var err error
	if isSecretID(ref) {
		r, err = s.cfg.Store.Secret(c.Ctx, ref)
	} else {
		r, err = s.cfg.Store.SecretByName(c.Ctx, c.Caller.Team, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.Team != c.Caller.Team {
		return store.SecretRecord{}, noSecret(ref)
	}
	return r, err
}

func noSecret(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no secret %s; list the secrets to see which there are", validate.Quote(ref))
}

// GetSecret implements [sandbox.Secrets].
func (s *Service) GetSecret(ctx context.Context, ref string) (*sandbox.Secret, error) {
	return call.Do(ctx, s.gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.Secret, error) {
		r, err := s.secretFor(c, ref)
		if err != nil {
			return nil, err
		}
		return &r.Secret, nil
	})
}

// ListSecrets implements [sandbox.Secrets].
func (s *Service) ListSecrets(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return call.Do(ctx, s.gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.List[sandbox.Secret], error) {
		records, next, err := s.cfg.Store.ListSecrets(c.Ctx, c.Caller.Team, page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Secret]{Items: make([]sandbox.Secret, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = r.Secret
		}
		return list, nil
	})
}

// RotateSecret implements [sandbox.Secrets].
func (s *Service) RotateSecret(ctx context.Context, ref string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.rotate"), func(c *call.Call) (*sandbox.Secret, error) {
		if s.cfg.Vault == nil {
			return nil, errNoVault
		}
		if err := vault.CheckValue(req.Value); err != nil {
			return nil, err
		}
		r, err := s.secretFor(c, ref)
		if err != nil {
			return nil, err
		}
		c.Detail = nameSecret(&r)
		r, err = s.replaceValue(c.Ctx, r.ID, req.Value)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, noSecret(ref)
		}
		if err != nil {
			return nil, err
		}
		if err := s.pushBound(c.Ctx, r.ID); err != nil {
			return nil, err
		}
		return &r.Secret, nil
	})
}

// replaceValue stores another value of a secret.
func (s *Service) replaceValue(ctx context.Context, id string, value sandbox.SecretValue) (store.SecretRecord, error) {
	s.sealing.RLock()
	defer s.sealing.RUnlock()
	return s.cfg.Store.UpdateSecret(ctx, id, func(r *store.SecretRecord) (err error) {
		now := time.Now().UTC()
		r.Version++
		r.RotatedAt = &now
		r.Sealed, err = s.seal(r, value)
		return err
	})
}

// DeleteSecret implements [sandbox.Secrets].
func (s *Service) DeleteSecret(ctx context.Context, ref string) error {
	return call.Run(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.delete"), func(c *call.Call) error {
		r, err := s.secretFor(c, ref)
		if err != nil {
			return err
		}
		c.Detail = nameSecret(&r)
		if err := s.cfg.Store.DeleteSecret(c.Ctx, r.ID); err != nil {
			return err
		}
		return s.pushBound(c.Ctx, r.ID)
	})
}

// pushBound tells the gateways of all sandboxes that have a secret what has
// become of it. Those that do not answer are told later, and so is the caller.
func (s *Service) pushBound(ctx context.Context, secretID string) error {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	// One that is being created is waited for: it may have read the old value.
	f := store.SandboxFilter{SecretID: secretID, States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning}}
	var g errgroup.Group
	g.SetLimit(repairs)
	var mu sync.Mutex
	var failed []string
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		records, next, err := s.cfg.Store.ListSandboxes(ctx, f, page)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		for _, r := range records {
			g.Go(func() error {
				if err := s.pushAgain(ctx, r.ID); err != nil {
					s.log.Error("tell a gateway of a changed secret", "sandbox", r.ID, "error", call.Detailed(err))
					s.pushLater(r.ID)
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, r.ID)
				}
				return nil
			})
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	_ = g.Wait() // they fail by name
	if len(failed) > 0 {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the secret is changed, but %d running sandboxes do not answer and may still use its old value, first %s; they are told as soon as they answer, kill them to be sure", len(failed), slices.Min(failed))
	}
	return nil
}

// pushLater notes a sandbox whose gateway does not know yet what its secrets
// are.
func (s *Service) pushLater(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpushed[id] = true
}

// pushUnpushed tries again to tell those gateways.
func (s *Service) pushUnpushed(ctx context.Context) error {
	s.mu.Lock()
	late := s.unpushed
	s.unpushed = map[string]bool{}
	s.mu.Unlock()
	var errs []error
	for id := range late {
		if err := s.pushAgain(ctx, id); err != nil {
			s.pushLater(id)
			errs = append(errs, fmt.Errorf("tell the gateway of sandbox %s of its secrets: %w", id, call.Detailed(err)))
		}
	}
	return errors.Join(errs...)
}

// ListProviders implements [sandbox.Secrets].
func (s *Service) ListProviders(ctx context.Context) (*sandbox.List[sandbox.Provider], error) {
	return call.Do(ctx, s.gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.List[sandbox.Provider], error) {
		return &sandbox.List[sandbox.Provider]{Items: vault.Providers()}, nil
	})
}

// AttachSecret implements [sandbox.Secrets].
func (s *Service) AttachSecret(ctx context.Context, ref, secret, env string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "secret.attach"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if err := checkEnvName(env); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		b, err := s.bindFor(c, env, secret)
		if err != nil {
			return nil, err
		}
		c.Detail = b.Secret + " as " + env
		r, err = s.regate(c.Ctx, r.ID, func(r *store.Record) error {
			if i := boundAs(r, env); i >= 0 {
				return sandbox.Errorf(sandbox.CodeConflict, "%s of sandbox %s has the placeholder of secret %q; detach that first", env, r.ID, r.Bindings[i].Secret)
			}
			r.Bindings = append(slices.Clone(r.Bindings), b)
			return checkBindings(r)
		})
		if err != nil {
			return nil, err
		}
		// The secret may be gone since it was looked up; then the gateway knows.
		return s.view(r), nil
	})
}

// bindFor makes a binding of the caller's secret, with a placeholder of its own.
func (s *Service) bindFor(c *call.Call, env, secret string) (store.Binding, error) {
	if s.cfg.Vault == nil {
		return store.Binding{}, errNoVault
	}
	r, err := s.secretFor(c, secret)
	if err != nil {
		return store.Binding{}, err
	}
	placeholder, err := vault.NewPlaceholder(r.Provider)
	if err != nil {
		return store.Binding{}, err
	}
	return store.Binding{Env: env, SecretID: r.ID, Secret: r.Name, Placeholder: placeholder}, nil
}

// bindAllFor adds bindings of the caller's secrets to a record that is being
// made; they count before those that it has.
func (s *Service) bindAllFor(c *call.Call, r *store.Record, secrets map[string]string) error {
	for env, secret := range secrets {
		b, err := s.bindFor(c, env, secret)
		if err != nil {
			return err
		}
		r.Bindings = slices.DeleteFunc(slices.Clone(r.Bindings), func(b store.Binding) bool { return b.Env == env })
		r.Bindings = append(r.Bindings, b)
	}
	slices.SortFunc(r.Bindings, func(a, b store.Binding) int { return strings.Compare(a.Env, b.Env) })
	return checkBindings(r)
}

// DetachSecret implements [sandbox.Secrets].
func (s *Service) DetachSecret(ctx context.Context, ref, env string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "secret.detach"), func(c *call.Call) (*sandbox.Sandbox, error) {
		if err := checkEnvName(env); err != nil {
			return nil, err
		}
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		r, err = s.regate(c.Ctx, r.ID, func(r *store.Record) error {
			i := boundAs(r, env)
			if i < 0 {
				return sandbox.Errorf(sandbox.CodeNotFound, "%s of sandbox %s has no secret; look at the sandbox to see which there are", env, r.ID)
			}
			c.Detail = r.Bindings[i].Secret + " as " + env
			r.Bindings = slices.Delete(slices.Clone(r.Bindings), i, i+1)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return s.view(r), nil
	})
}

// boundAs returns the place of the binding that has an environment variable,
// or -1.
func boundAs(r *store.Record, env string) int {
	return slices.IndexFunc(r.Bindings, func(b store.Binding) bool { return b.Env == env })
}

func checkEnvName(env string) error {
	if !envNames.MatchString(env) {
		return validate.Errorf("%s cannot have a secret; name an environment variable of letters, digits and underscores, such as API_TOKEN", validate.Quote(env))
	}
	return nil
}

// checkBindings refuses variables that a record has twice, and too many.
func checkBindings(r *store.Record) error {
	if len(r.Bindings) > sandbox.MaxSecretsPerSandbox {
		return validate.Errorf("the sandbox has %d secrets; attach at most %d", len(r.Bindings), sandbox.MaxSecretsPerSandbox)
	}
	for _, b := range r.Bindings {
		if _, both := r.Env[b.Env]; both {
			return validate.Errorf("env has %s, which is to have the placeholder of secret %q; leave one out", b.Env, b.Secret)
		}
	}
	return nil
}

// secretNames tells which secrets a record has, as callers see it.
func secretNames(r *store.Record) map[string]string {
	if len(r.Bindings) == 0 {
		return nil
	}
	names := make(map[string]string, len(r.Bindings))
	for _, b := range r.Bindings {
		names[b.Env] = b.Secret
	}
	return names
}

func checkSecretEnvs(secrets map[string]string) error {
	if len(secrets) > sandbox.MaxSecretsPerSandbox {
		return validate.Errorf("secrets has %d entries; give at most %d", len(secrets), sandbox.MaxSecretsPerSandbox)
	}
	for env := range secrets {
		if err := checkEnvName(env); err != nil {
			return err
		}
	}
	return nil
}
