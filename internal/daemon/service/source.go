package service

import (
	"bytes"
	"context"
	"errors"
	"maps"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/recovery"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// bootSource is what an instance starts from: a fresh boot of a root, or a checkpoint,
// which is held until release is called.
type bootSource struct {
	root       engine.Root
	checkpoint string
	filesOnly  bool
	fresh      bool
	// foreign is set if the checkpoint is another sandbox's: then the new sandbox does
	// not take over its index among forks.
	foreign bool
	// startup is what runs in the sandbox from its boot on, or nil.
	startup *startup.Startup
	release func()
}

// boots reports whether the instance boots, rather than continuing a checkpoint's
// memory.
func (b *bootSource) boots() bool { return b.checkpoint == "" || b.filesOnly }

// startIn runs the startup in a new instance, unless the instance continues a
// checkpoint in which the startup runs already.
func (b *bootSource) startIn(ctx context.Context, instance engine.Instance) error {
	if b.startup == nil || !b.boots() {
		return nil
	}
	client := agentclient.New(instance.ID(), instance.Dial)
	defer client.Close()
	return b.startup.Run(ctx, client)
}

// spec returns the engine's specification of a record's instance.
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
		Checkpoint: b.checkpoint, FilesOnly: b.filesOnly, Fresh: b.fresh, Family: r.Family,
	}
}

// environment returns the environment of a sandbox's commands: the template's
// variables, overridden by the sandbox's own and the placeholders of its secrets.
func environment(r *store.Record) map[string]string {
	env := maps.Clone(r.BaseEnv)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, r.Env)
	for _, b := range r.Bindings {
		if b.Env != "" {
			env[b.Env] = b.Placeholder
		}
	}
	return env
}

// spec returns the specification of a record's instance with its gateway and mounts.
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

// networkOf returns the configuration of the gateway of a record's instance. It uses
// the current values of secrets; a deleted secret is revoked.
func (s *Service) networkOf(ctx context.Context, r *store.Record) (*engine.Network, error) {
	n := &engine.Network{SandboxID: r.ID, Policy: call.PolicyOf(r)}
	for _, a := range r.Answers {
		n.Answers = append(n.Answers, engine.Answer{Allow: a.Allow, Until: a.Until,
			Subject: engine.Subject{Protocol: a.Protocol, Host: a.Host, Address: a.Address, Port: a.Port, Secret: a.Secret}})
	}
	headerHosts := egress.HeaderSecrets(n.Policy.Headers)
	n.Headers = egress.BindHeaders(n.Policy.Headers, func(secret string) string { return secrets.HeaderPlaceholder(r, secret) })
	sealed := map[string]store.SecretRecord{}
	for _, b := range r.Bindings {
		bound := engine.Binding{Placeholder: b.Placeholder, SecretID: b.SecretID, Secret: b.Secret}
		secret, err := s.cfg.Store.Secret(ctx, b.SecretID)
		switch {
		case err == nil && secret.Team == r.Team && s.cfg.Vault != nil:
			bound.Hosts, bound.Auth = secret.Hosts, secret.Auth
			if b.Env == "" {
				bound.Hosts, bound.Auth = secrets.HeaderHosts(&secret, headerHosts[b.Secret]), headerAuth
			}
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

// headerAuth allows the value in any header that carries credentials; in a header of
// basic authentication, the value is the credentials as a whole.
var headerAuth = sandbox.SecretAuth{Type: "header", Name: "Authorization", Prefix: "Basic "}

// values passes on the values of bindings, one at a time, and wipes each afterwards. A
// value that was sealed with a new key since it was read is read again.
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
				return call.Unavailable(err, "the value of secret %q cannot be unsealed; rotate the secret, or detach it", secret.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}
