package service

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// The values of [sandbox.EnvVar].Source.
const (
	fromTemplate = "template"
	fromSandbox  = "sandbox"
	fromSecret   = "secret"
)

// GetEnv implements [sandbox.Observe]. It does not resume a paused sandbox.
func (s *Service) GetEnv(ctx context.Context, ref string, page sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.EnvVar], error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		return variables(&r, page)
	})
}

// variables returns a page of the default environment of a sandbox, sorted by name.
func variables(r *store.Record, page sandbox.Page) (*sandbox.List[sandbox.EnvVar], error) {
	all := map[string]sandbox.EnvVar{}
	for k, v := range r.BaseEnv {
		all[k] = sandbox.EnvVar{Name: k, Value: v, Source: fromTemplate}
	}
	for k, v := range r.Env {
		all[k] = sandbox.EnvVar{Name: k, Value: v, Source: fromSandbox}
	}
	for k, secret := range secrets.Names(r) {
		all[k] = sandbox.EnvVar{Name: k, Value: "[secret " + secret + "]", Source: fromSecret}
	}
	return call.PageOf("env", slices.Collect(maps.Values(all)), page, func(v *sandbox.EnvVar) store.Place { return store.Place{Text: v.Name} })
}

// SetEnv implements [sandbox.Observe]. It does not resume a paused sandbox, whose next
// resume takes the environment from the record.
func (s *Service) SetEnv(ctx context.Context, ref string, req sandbox.SetEnvRequest) (*sandbox.List[sandbox.EnvVar], error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeSandboxesWrite, "sandbox.env"), func(c *call.Call) (*sandbox.List[sandbox.EnvVar], error) {
		if err := checkSetEnv(&req); err != nil {
			return nil, err
		}
		c.Detail = fmt.Sprintf("set %d, unset %d", len(req.Set), len(req.Unset))
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		// Meanwhile no other instance takes over, and no update changes the
		// environment.
		unlock, err := s.lock(c.Ctx, r.ID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		var before store.Record
		r, err = s.cfg.Store.UpdateSandbox(c.Ctx, r.ID, store.Change{
			From: []sandbox.State{sandbox.StateRunning, sandbox.StatePaused},
			Apply: func(r *store.Record) error {
				before = *r
				r.Applying = r.Applying || r.State == sandbox.StateRunning
				return editEnv(r, &req)
			},
		})
		if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
			err = call.NotRunning(&r)
		}
		if err != nil {
			return nil, err
		}
		whole := sandbox.Page{Limit: sandbox.MaxPageSize}
		if r.State == sandbox.StatePaused {
			return variables(&r, whole)
		}
		h, err := s.openRecord(c.Ctx, &r)
		if err != nil {
			clean, cancel := call.Teardown(c.Ctx)
			defer cancel()
			if _, uerr := s.cfg.Store.UpdateSandbox(clean, r.ID, store.Change{Apply: func(r *store.Record) error {
				r.Env, r.BaseEnv, r.Applying = before.Env, before.BaseEnv, before.Applying
				return nil
			}}); uerr != nil {
				s.log.Error("take back the record of an environment", "sandbox", r.ID, "error", uerr)
			}
			return nil, err
		}
		// From here on the change is completed or undone, even if the caller goes away.
		clean, cancel := call.Teardown(c.Ctx)
		defer cancel()
		if _, err := h.apply(clean, &r, false, true); err != nil {
			s.takeBack(clean, h, &before, false, true)
			return nil, h.explain(clean, err)
		}
		r, err = s.cfg.Store.UpdateSandbox(clean, r.ID, store.Change{Apply: applied(nil, before.Applying)})
		if err != nil {
			return nil, err
		}
		return variables(&r, whole)
	})
}

func checkSetEnv(req *sandbox.SetEnvRequest) error {
	if err := validate.Env(req.Set); err != nil {
		return err
	}
	if len(req.Unset) > sandbox.MaxEnvPairs {
		return validate.Errorf("unset has %d names; use at most %d", len(req.Unset), sandbox.MaxEnvPairs)
	}
	for _, name := range req.Unset {
		if err := validate.Env(map[string]string{name: ""}); err != nil {
			return err
		}
		if _, both := req.Set[name]; both {
			return validate.Errorf("variable %s is in both set and unset; remove it from one of them", validate.Quote(name))
		}
	}
	return nil
}

// editEnv changes the environment of a record. Variables of the template can be unset
// too.
func editEnv(r *store.Record, req *sandbox.SetEnvRequest) error {
	env := map[string]string{}
	if !req.Replace {
		maps.Copy(env, r.Env)
	}
	maps.Copy(env, req.Set)
	base := maps.Clone(r.BaseEnv)
	for _, name := range req.Unset {
		delete(env, name)
		delete(base, name)
	}
	for name := range secrets.Names(r) {
		_, set := req.Set[name]
		if set || slices.Contains(req.Unset, name) {
			return sandbox.Errorf(sandbox.CodeConflict, "variable %s has the placeholder of a secret; detach the secret first", validate.Quote(name))
		}
	}
	r.Env, r.BaseEnv = env, base
	return validate.Env(env)
}
