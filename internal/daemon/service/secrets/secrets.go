// Package secrets keeps the values of secrets sealed and binds secrets to sandboxes. A
// sandbox gets a placeholder; its gateway gets the value, and gets it again after each
// change.
package secrets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxSecrets is how many secrets a team may have.
	maxSecrets = 1000
	// pushes is how many gateways get a change at the same time.
	pushes = 8
)

// ErrNone is the error of a server without a vault.
var ErrNone = sandbox.Errorf(sandbox.CodeUnsupported, "this server has no secrets")

// Config says what [Secrets] work with.
type Config struct {
	Gate  *call.Gate
	Store store.Store
	Log   *slog.Logger
	// Vault seals and opens values; without it there are no secrets.
	Vault *vault.Vault
	// NetworkLog says when secrets were used; if it is nil, LastUsedAt is never set.
	NetworkLog engine.NetworkLogger
	// Push sends the values of a sandbox's secrets to its gateway, if it runs.
	Push func(ctx context.Context, sandboxID string) error
	// Change changes the bindings of a sandbox's record, and applies them if the
	// sandbox runs.
	Change func(ctx context.Context, sandboxID string, apply func(*store.Record) error) (store.Record, error)
	// View returns a record as callers see it.
	View func(store.Record) *sandbox.Sandbox
}

// Secrets implements [sandbox.Secrets]. It is safe for concurrent use.
type Secrets struct {
	cfg Config
	// sealing is held for reading from sealing a value until the value is stored.
	sealing sync.RWMutex

	mu sync.Mutex
	// unpushed are the sandboxes whose gateways do not have a changed secret yet.
	// Guarded by mu.
	unpushed map[string]bool
	// usedUntil is the time up to which the use of secrets is recorded. Guarded by
	// mu.
	usedUntil time.Time
}

// New returns the secrets of a store.
func New(cfg Config) *Secrets {
	return &Secrets{cfg: cfg, unpushed: map[string]bool{}, usedUntil: time.Now()}
}

// Sealing returns the lock to hold from before a value is sealed until it is stored: a
// change of the vault's key waits for it.
func (s *Secrets) Sealing() sync.Locker { return s.sealing.RLocker() }

func isID(s string) bool { return strings.HasPrefix(s, ids.Secret) }

// CreateSecret implements [sandbox.Secrets]. The store gets the value sealed.
func (s *Secrets) CreateSecret(ctx context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return call.Do(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.create"), func(c *call.Call) (_ *sandbox.Secret, err error) {
		if s.cfg.Vault == nil {
			return nil, ErrNone
		}
		if req, err = vault.Complete(req); err != nil {
			return nil, err
		}
		if isID(req.Name) {
			return nil, validate.Errorf("name %s begins like an id; use one that does not begin with %q", validate.Quote(req.Name), ids.Secret)
		}
		if err := validate.Metadata(req.Metadata); err != nil {
			return nil, err
		}
		r := store.SecretRecord{Secret: sandbox.Secret{
			ID: ids.New(ids.Secret), Team: c.Caller.Team, Name: req.Name, Provider: req.Provider, Hosts: req.Hosts, Auth: *req.Auth, Metadata: req.Metadata,
			Version: 1, CreatedAt: time.Now().UTC(),
		}}
		c.Detail = detail(&r)
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

// detail returns the audit record's text for a secret.
func detail(r *store.SecretRecord) string { return r.ID + " named " + r.Name }

// seal encrypts the value of a record's version.
func (s *Secrets) seal(r *store.SecretRecord, value sandbox.SecretValue) ([]byte, error) {
	plain := []byte(value.Reveal())
	defer vault.Wipe(plain)
	return s.cfg.Vault.Seal(vault.Ref{Secret: r.ID, Version: r.Version}, plain)
}

// find returns the record of the caller's secret with this id or name.
func (s *Secrets) find(c *call.Call, ref string) (store.SecretRecord, error) {
	if ref == "" {
		return store.SecretRecord{}, validate.Errorf("no secret is named; set its id or name")
	}
	if len(ref) > sandbox.MaxNameLength || validate.Text("secret", ref) != nil {
		return store.SecretRecord{}, notFound(ref)
	}
	var r store.SecretRecord
	var err error
	if isID(ref) {
		r, err = s.cfg.Store.Secret(c.Ctx, ref)
	} else {
		r, err = s.cfg.Store.SecretByName(c.Ctx, c.Caller.Team, ref)
	}
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || err == nil && r.Team != c.Caller.Team {
		return store.SecretRecord{}, notFound(ref)
	}
	return r, err
}

func notFound(ref string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "there is no secret %s; list the secrets to see which exist", validate.Quote(ref))
}

// GetSecret implements [sandbox.Secrets].
func (s *Secrets) GetSecret(ctx context.Context, ref string) (*sandbox.Secret, error) {
	return call.Do(ctx, s.cfg.Gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.Secret, error) {
		r, err := s.find(c, ref)
		if err != nil {
			return nil, err
		}
		return &r.Secret, nil
	})
}

// ListSecrets implements [sandbox.Secrets].
func (s *Secrets) ListSecrets(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return call.Do(ctx, s.cfg.Gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.List[sandbox.Secret], error) {
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
func (s *Secrets) RotateSecret(ctx context.Context, ref string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return call.Do(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.rotate"), func(c *call.Call) (*sandbox.Secret, error) {
		if s.cfg.Vault == nil {
			return nil, ErrNone
		}
		if err := cmp.Or(vault.CheckValue(req.Value), validate.Metadata(req.Metadata)); err != nil {
			return nil, err
		}
		r, err := s.find(c, ref)
		if err != nil {
			return nil, err
		}
		c.Detail = detail(&r)
		r, err = s.replaceValue(c.Ctx, r.ID, &req)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, notFound(ref)
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

// replaceValue stores a new value of a secret.
func (s *Secrets) replaceValue(ctx context.Context, id string, req *sandbox.RotateSecretRequest) (store.SecretRecord, error) {
	s.sealing.RLock()
	defer s.sealing.RUnlock()
	return s.cfg.Store.UpdateSecret(ctx, id, func(r *store.SecretRecord) (err error) {
		now := time.Now().UTC()
		r.Version++
		r.RotatedAt = &now
		if req.Metadata != nil {
			r.Metadata = req.Metadata
		}
		r.Sealed, err = s.seal(r, req.Value)
		return err
	})
}

// DeleteSecret implements [sandbox.Secrets].
func (s *Secrets) DeleteSecret(ctx context.Context, ref string) error {
	return call.Run(ctx, s.cfg.Gate, call.AuditedAtOnce(sandbox.ScopeSecretsWrite, "secret.delete"), func(c *call.Call) error {
		r, err := s.find(c, ref)
		if err != nil {
			return err
		}
		c.Detail = detail(&r)
		if err := s.cfg.Store.DeleteSecret(c.Ctx, r.ID); err != nil {
			return err
		}
		return s.pushBound(c.Ctx, r.ID)
	})
}

// pushBound sends a changed secret to the gateways of all sandboxes that have it. For
// gateways that do not answer, it is sent again later, and the error says so.
func (s *Secrets) pushBound(ctx context.Context, secretID string) error {
	ctx, cancel := call.Teardown(ctx)
	defer cancel()
	// A sandbox that is being created is waited for, since it may have read the old
	// value.
	f := store.SandboxFilter{SecretID: secretID, States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning}}
	var g errgroup.Group
	g.SetLimit(pushes)
	var mu sync.Mutex
	var failed []string
	for r, err := range store.All(ctx, s.cfg.Store.ListSandboxes, f) {
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error {
			if err := s.cfg.Push(ctx, r.ID); err != nil {
				s.cfg.Log.Error("tell a gateway of a changed secret", "sandbox", r.ID, "error", call.Detailed(err))
				s.PushLater(r.ID)
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, r.ID)
			}
			return nil
		})
	}
	_ = g.Wait() // they fail by name
	if len(failed) > 0 {
		return sandbox.Errorf(sandbox.CodeUnavailable, "the secret is changed, but %d running sandboxes are not responding and may still use its old value, first %s; they get the change when they respond, or kill them to be sure", len(failed), slices.Min(failed))
	}
	return nil
}

// PushLater notes that a sandbox's gateway still needs the current secrets.
func (s *Secrets) PushLater(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpushed[id] = true
}

// PushUnpushed tries again to send the secrets to the gateways of [Secrets.PushLater].
func (s *Secrets) PushUnpushed(ctx context.Context) error {
	s.mu.Lock()
	late := s.unpushed
	s.unpushed = map[string]bool{}
	s.mu.Unlock()
	var errs []error
	for id := range late {
		if err := s.cfg.Push(ctx, id); err != nil {
			s.PushLater(id)
			errs = append(errs, fmt.Errorf("tell the gateway of sandbox %s of its secrets: %w", id, call.Detailed(err)))
		}
	}
	return errors.Join(errs...)
}

// ListProviders implements [sandbox.Secrets].
func (s *Secrets) ListProviders(ctx context.Context) (*sandbox.List[sandbox.Provider], error) {
	return call.Do(ctx, s.cfg.Gate, call.Unaudited(call.AnyScope), func(c *call.Call) (*sandbox.List[sandbox.Provider], error) {
		return &sandbox.List[sandbox.Provider]{Items: vault.Providers()}, nil
	})
}
