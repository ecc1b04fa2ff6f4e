package service

import (
	"bytes"
	"context"
	"errors"
	"maps"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// bootSource is what an instance begins with: a fresh boot of a root, or a
// checkpoint, which stays in place until it is released.
type bootSource struct {
	root       engine.Root
	checkpoint string
	filesOnly  bool
	fresh      bool
	// foreign is set if the checkpoint is of another sandbox, whose place
	// among forks the new one has not.
	foreign bool
	// startup is what runs in the sandbox from its boot on, or nil.
	startup *startup.Startup
	release func()
}

// boots reports whether an instance begins with a boot, and not where a
// checkpoint left off.
func (b *bootSource) boots() bool { return b.checkpoint == "" || b.filesOnly }

// startIn starts in a new instance what its sandbox begins with, if it has not
// gone on from a checkpoint in which that runs.
func (b *bootSource) startIn(ctx context.Context, instance engine.Instance) error {
	if b.startup == nil || !b.boots() {
		return nil
	}
	client := agentclient.New(instance.ID(), instance.Dial)
	defer client.Close()
	return b.startup.Run(ctx, client)
}

// spec describes the instance of a record.
func (b *bootSource) spec(r *store.Record) engine.Spec {
	host := r.ID
	if validate.HostLabel.MatchString(r.Name) {
		host = r.Name
	}
	var fork *engine.Fork
	if b.foreign {
		fork = &engine.Fork{}
	}
	return engine.Spec{
		Fork: fork,
		ID:   r.Instance, Root: b.root, Resources: r.Resources, Hostname: host, Env: environment(r), User: r.User, WorkDir: r.WorkDir,
		Checkpoint: b.checkpoint, FilesOnly: b.filesOnly, Fresh: b.fresh,
	}
}

// environment is what commands get: the sandbox's own above the template's,
// and the placeholders of its secrets.
func environment(r *store.Record) map[string]string {
	env := maps.Clone(r.BaseEnv)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, r.Env)
	for _, b := range r.Bindings {
		env[b.Env] = b.Placeholder
	}
	return env
}

// spec describes the instance of a record, with its gateway.
func (s *Service) spec(ctx context.Context, b *bootSource, r *store.Record) (engine.Spec, error) {
	spec := b.spec(r)
	spec.Label = recovery.InstanceLabel(r)
	n, err := s.networkOf(ctx, r)
	if err != nil {
		return spec, err
	}
	spec.Network = n
	spec.Mounts, err = s.Volumes.InstanceMounts(ctx, r)
	return spec, err
}

// networkOf returns what the gateway of a record's instance does. Secrets are
// those of now: one that is gone is revoked.
func (s *Service) networkOf(ctx context.Context, r *store.Record) (*engine.Network, error) {
	n := &engine.Network{SandboxID: r.ID, Policy: call.PolicyOf(r)}
	sealed := map[string]store.SecretRecord{}
	for _, b := range r.Bindings {
		bound := engine.Binding{Placeholder: b.Placeholder, SecretID: b.SecretID, Secret: b.Secret}
		secret, err := s.cfg.Store.Secret(ctx, b.SecretID)
		switch {
		case err == nil && secret.Team == r.Team && s.cfg.Vault != nil:
			bound.Hosts, bound.Auth = secret.Hosts, secret.Auth
			sealed[b.Placeholder] = secret
		case err == nil || sandbox.CodeOf(err) == sandbox.CodeNotFound:
			bound.Revoked = true
		default:
			return nil, err
		}
		n.Bindings = append(n.Bindings, bound)
	}
	if len(sealed) > 0 {
		n.Values = s.values(context.WithoutCancel(ctx), n.Bindings, sealed)
	}
	return n, nil
}

// values tells the values of bindings, one at a time and wiped after that. One that
// has been sealed with another key since it was read is read again.
func (s *Service) values(ctx context.Context, bindings []engine.Binding, sealed map[string]store.SecretRecord) engine.Values {
	return func(yield func(placeholder string, value []byte) error) error {
		for _, b := range bindings {
			secret, ok := sealed[b.Placeholder]
			if !ok {
				continue
			}
			open := func() error {
				return s.cfg.Vault.Open(vault.Ref{Secret: secret.ID, Version: secret.Version}, secret.Sealed, func(value []byte) error {
					return yield(b.Placeholder, value)
				})
			}
			err := open()
			for errors.Is(err, vault.ErrKeyMissing) {
				now, serr := s.cfg.Store.Secret(ctx, secret.ID)
				if serr != nil || bytes.Equal(now.Sealed, secret.Sealed) {
					break
				}
				secret = now
				err = open()
			}
			if errors.Is(err, vault.ErrDamaged) || errors.Is(err, vault.ErrKeyMissing) {
				return call.Unavailable(err, "the value of secret %q cannot be opened; rotate the secret, or detach it", secret.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}
