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

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/internal/vault"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// secretPrefix begins ids of secrets. Names must not.
	secretPrefix = "sec-"
	// maxSecrets bounds the secrets of a team.
	maxSecrets = 1000
)

// envNames are of variables that get a placeholder: what every shell takes.
var envNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

var errNoVault = sandbox.Errorf(sandbox.CodeUnsupported, "this server keeps no secrets")

func isSecretID(s string) bool { return strings.HasPrefix(s, secretPrefix) }

// CreateSecret implements [sandbox.Secrets]. The store gets the value sealed.
func (s *Service) CreateSecret(ctx context.Context, req sandbox.CreateSecretRequest) (_ *sandbox.Secret, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSecretsWrite, "secret.create")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if s.cfg.Vault == nil {
		return nil, errNoVault
	}
	if req, err = vault.Complete(req); err != nil {
		return nil, err
	}
	if isSecretID(req.Name) {
		return nil, invalid("name %s begins like an id; choose one that does not begin with %q", quote(req.Name), secretPrefix)
	}
	r := store.SecretRecord{Secret: sandbox.Secret{
		ID: newID(secretPrefix), Team: v.caller.Team, Name: req.Name, Provider: req.Provider, Hosts: req.Hosts, Auth: *req.Auth,
		Version: 1, CreatedAt: time.Now().UTC(),
	}}
	v.detail = nameSecret(&r)
	s.sealing.RLock()
	defer s.sealing.RUnlock()
	if r.Sealed, err = s.seal(&r, req.Value); err != nil {
		return nil, err
	}
	if err := s.cfg.Store.CreateSecret(v.ctx, r, maxSecrets); err != nil {
		return nil, err
	}
	return &r.Secret, nil
}

// nameSecret is what the audit record says of a secret.
func nameSecret(r *store.SecretRecord) string { return r.ID + " named " + r.Name }

// seal encrypts the value of a record's version.
func (s *Service) seal(r *store.SecretRecord, value sandbox.SecretValue) ([]byte, error) {
	plain := []byte(value.Reveal())
	defer vault.Wipe(plain)
	return s.cfg.Vault.Seal(vault.Ref{Secret: r.ID, Version: r.Version}, plain)
}

// secret returns the record of the caller's secret with this id or name.
func (v *visit) secret(ref string) (store.SecretRecord, error) {
	if ref == "" {
		return store.SecretRecord{}, invalid("no secret is named; give its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || checkText("secret", ref) != nil {
		return store.SecretRecord{}, noSecret(ref)
	}
	var r store.SecretRecord
	var err error
	if isSecretID(ref) {
		r, err = v.s.cfg.Store.Secret(v.ctx, ref)
	} else {
		r, err = v.s.cfg.Store.SecretByName(v.ctx, v.caller.Team, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.Team != v.caller.Team {
		return store.SecretRecord{}, noSecret(ref)
	}
	return r, err
}

func noSecret(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no secret %s; list the secrets to see which there are", quote(ref))
}

// GetSecret implements [sandbox.Secrets].
func (s *Service) GetSecret(ctx context.Context, ref string) (_ *sandbox.Secret, err error) {
	v, err := s.enter(ctx, anyScope, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	r, err := v.secret(ref)
	if err != nil {
		return nil, err
	}
	return &r.Secret, nil
}

// ListSecrets implements [sandbox.Secrets].
func (s *Service) ListSecrets(ctx context.Context, page sandbox.Page) (_ *sandbox.List[sandbox.Secret], err error) {
	v, err := s.enter(ctx, anyScope, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	records, next, err := s.cfg.Store.ListSecrets(v.ctx, v.caller.Team, page)
	if err != nil {
		return nil, err
	}
	list := &sandbox.List[sandbox.Secret]{Items: make([]sandbox.Secret, len(records)), NextCursor: next}
	for i, r := range records {
		list.Items[i] = r.Secret
	}
	return list, nil
}

// RotateSecret implements [sandbox.Secrets].
func (s *Service) RotateSecret(ctx context.Context, ref string, req sandbox.RotateSecretRequest) (_ *sandbox.Secret, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSecretsWrite, "secret.rotate")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if s.cfg.Vault == nil {
		return nil, errNoVault
	}
	if err := vault.CheckValue(req.Value); err != nil {
		return nil, err
	}
	r, err := v.secret(ref)
	if err != nil {
		return nil, err
	}
	v.detail = nameSecret(&r)
	r, err = s.replaceValue(v.ctx, r.ID, req.Value)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, noSecret(ref)
	}
	if err != nil {
		return nil, err
	}
	if err := s.pushBound(v.ctx, r.ID); err != nil {
		return nil, err
	}
	return &r.Secret, nil
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
func (s *Service) DeleteSecret(ctx context.Context, ref string) (err error) {
	v, err := s.enter(ctx, sandbox.ScopeSecretsWrite, "secret.delete")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return err
	}
	r, err := v.secret(ref)
	if err != nil {
		return err
	}
	v.detail = nameSecret(&r)
	if err := s.cfg.Store.DeleteSecret(v.ctx, r.ID); err != nil {
		return err
	}
	return s.pushBound(v.ctx, r.ID)
}

// pushBound tells the gateways of all sandboxes that have a secret what has
// become of it. Those that do not answer are told later, and so is the caller.
func (s *Service) pushBound(ctx context.Context, secretID string) error {
	ctx, cancel := teardown(ctx)
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
					s.log.Error("tell a gateway of a changed secret", "sandbox", r.ID, "error", detailed(err))
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
			errs = append(errs, fmt.Errorf("tell the gateway of sandbox %s of its secrets: %w", id, detailed(err)))
		}
	}
	return errors.Join(errs...)
}

// ListProviders implements [sandbox.Secrets].
func (s *Service) ListProviders(ctx context.Context) (_ *sandbox.List[sandbox.Provider], err error) {
	v, err := s.enter(ctx, anyScope, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[sandbox.Provider]{Items: vault.Providers()}, nil
}

// AttachSecret implements [sandbox.Secrets].
func (s *Service) AttachSecret(ctx context.Context, ref, secret, env string) (_ *sandbox.Sandbox, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesWrite, "secret.attach")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkEnvName(env); err != nil {
		return nil, err
	}
	r, err := v.resolve(ref)
	if err != nil {
		return nil, err
	}
	b, err := v.bind(env, secret)
	if err != nil {
		return nil, err
	}
	v.detail = b.Secret + " as " + env
	r, err = s.regate(v.ctx, r.ID, func(r *store.Record) error {
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
}

// bind makes a binding of the caller's secret, with a placeholder of its own.
func (v *visit) bind(env, secret string) (store.Binding, error) {
	if v.s.cfg.Vault == nil {
		return store.Binding{}, errNoVault
	}
	r, err := v.secret(secret)
	if err != nil {
		return store.Binding{}, err
	}
	placeholder, err := vault.NewPlaceholder(r.Provider)
	if err != nil {
		return store.Binding{}, err
	}
	return store.Binding{Env: env, SecretID: r.ID, Secret: r.Name, Placeholder: placeholder}, nil
}

// bindAll adds bindings of the caller's secrets to a record that is being
// made; they count before those that it has.
func (v *visit) bindAll(r *store.Record, secrets map[string]string) error {
	for env, secret := range secrets {
		b, err := v.bind(env, secret)
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
func (s *Service) DetachSecret(ctx context.Context, ref, env string) (_ *sandbox.Sandbox, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesWrite, "secret.detach")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkEnvName(env); err != nil {
		return nil, err
	}
	r, err := v.resolve(ref)
	if err != nil {
		return nil, err
	}
	r, err = s.regate(v.ctx, r.ID, func(r *store.Record) error {
		i := boundAs(r, env)
		if i < 0 {
			return sandbox.Errorf(sandbox.CodeNotFound, "%s of sandbox %s has no secret; look at the sandbox to see which there are", env, r.ID)
		}
		v.detail = r.Bindings[i].Secret + " as " + env
		r.Bindings = slices.Delete(slices.Clone(r.Bindings), i, i+1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.view(r), nil
}

// boundAs returns the place of the binding that has an environment variable,
// or -1.
func boundAs(r *store.Record, env string) int {
	return slices.IndexFunc(r.Bindings, func(b store.Binding) bool { return b.Env == env })
}

func checkEnvName(env string) error {
	if !envNames.MatchString(env) {
		return invalid("%s cannot have a secret; name an environment variable of letters, digits and underscores, such as API_TOKEN", quote(env))
	}
	return nil
}

// checkBindings refuses variables that a record has twice, and too many.
func checkBindings(r *store.Record) error {
	if len(r.Bindings) > sandbox.MaxSecretsPerSandbox {
		return invalid("the sandbox has %d secrets; attach at most %d", len(r.Bindings), sandbox.MaxSecretsPerSandbox)
	}
	for _, b := range r.Bindings {
		if _, both := r.Env[b.Env]; both {
			return invalid("env has %s, which is to have the placeholder of secret %q; leave one out", b.Env, b.Secret)
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
		return invalid("secrets has %d entries; give at most %d", len(secrets), sandbox.MaxSecretsPerSandbox)
	}
	for env := range secrets {
		if err := checkEnvName(env); err != nil {
			return err
		}
	}
	return nil
}
