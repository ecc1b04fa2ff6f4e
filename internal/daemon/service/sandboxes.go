package service

import (
	"context"
	"fmt"
	"slices"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// view returns a record as callers see it, with the current time of last use.
func (s *Service) view(r store.Record) *sandbox.Sandbox {
	sbx := r.Sandbox
	sbx.Secrets, sbx.Desktop = secrets.Names(&r), startup.DesktopOf(&r)
	if !sbx.State.Final() {
		sbx.Unenforced = append(slices.Clip(sbx.Unenforced), s.Volumes.Unenforced(&r)...)
	}
	sbx.Stored, sbx.LastCheckpoint = s.stored(r.Checkpoint), s.lastCheckpoint(&r)
	if p, ok := s.cfg.Engine.(engine.Placer); ok && !sbx.State.Final() {
		sbx.Node = p.PlaceOf(engine.Source{Instance: r.Instance, Checkpoint: r.Checkpoint})
	}
	if sbx.State == sandbox.StateRunning {
		s.mu.Lock()
		h := s.handles[sbx.ID]
		s.mu.Unlock()
		if h != nil {
			if at, _ := h.lastActive(); at.After(sbx.LastActiveAt) {
				sbx.LastActiveAt = at.UTC()
			}
			if since, ok := h.silent(); ok {
				sbx.Reason = silentReason(since)
			}
		}
	}
	return &sbx
}

// Get implements [sandbox.Sandboxes].
func (s *Service) Get(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.Sandbox, error) {
		r, err := c.Resolve(ref)
		if err != nil {
			return nil, err
		}
		return s.view(r), nil
	})
}

var states = []sandbox.State{
	sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused,
	sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed,
}

// List implements [sandbox.Sandboxes].
func (s *Service) List(ctx context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeSandboxesRead), func(c *call.Call) (*sandbox.List[sandbox.Sandbox], error) {
		f, err := s.filterFor(c, &req)
		if err != nil {
			return nil, err
		}
		records, next, err := s.cfg.Store.ListSandboxes(c.Ctx, f, req.Page)
		if err != nil {
			return nil, err
		}
		list := &sandbox.List[sandbox.Sandbox]{Items: make([]sandbox.Sandbox, len(records)), NextCursor: next}
		for i, r := range records {
			list.Items[i] = *s.view(r)
		}
		return list, nil
	})
}

// filterFor returns the store's filter for a request, within what the caller can see.
func (s *Service) filterFor(c *call.Call, req *sandbox.ListRequest) (store.SandboxFilter, error) {
	f := store.SandboxFilter{Team: c.Caller.Team, States: req.States, Metadata: req.Metadata, Name: req.Name, Template: req.Template}
	var err error
	if f.Namespace, err = c.Namespace(req.Namespace); err != nil {
		return f, err
	}
	for _, st := range req.States {
		if !slices.Contains(states, st) {
			return f, validate.Errorf("state %s is not valid; use one of %v", validate.Quote(string(st)), states)
		}
	}
	if len(f.States) == 0 {
		f.States = slices.DeleteFunc(slices.Clone(states), sandbox.State.Final)
	}
	if req.Name != "" {
		if err := validate.Name("name", req.Name); err != nil {
			return f, err
		}
	}
	if req.Template != "" {
		if err := validate.TemplateName(req.Template); err != nil {
			return f, err
		}
	}
	return f, validate.Metadata(req.Metadata)
}

// Audit implements [sandbox.Sandboxes].
func (s *Service) Audit(ctx context.Context, req sandbox.AuditRequest) (*sandbox.List[sandbox.AuditEvent], error) {
	scope := sandbox.ScopeSandboxesRead
	if req.SandboxID == "" {
		scope = sandbox.ScopeAdmin
	}
	return call.Do(ctx, s.gate, call.Unaudited(scope), func(c *call.Call) (_ *sandbox.List[sandbox.AuditEvent], err error) {
		if err := s.audit.Flush(c.Ctx); err != nil {
			return nil, err
		}
		f := store.AuditFilter{Team: c.Caller.Team}
		if req.SandboxID == "" {
			if err := c.NeedTeam("the record of what was done"); err != nil {
				return nil, err
			}
		} else if f.SandboxID, err = s.auditSubject(c, req.SandboxID); err != nil {
			return nil, err
		}
		events, next, err := s.cfg.Store.ListAudit(c.Ctx, f, req.Page)
		if err != nil {
			return nil, err
		}
		return &sandbox.List[sandbox.AuditEvent]{Items: append([]sandbox.AuditEvent{}, events...), NextCursor: next}, nil
	})
}

// auditSubject returns the id of a sandbox that the team has or had. Events outlive the
// sandbox's record, but do not have its namespace.
func (s *Service) auditSubject(c *call.Call, ref string) (string, error) {
	r, err := c.Resolve(ref)
	if err == nil || sandbox.CodeOf(err) != sandbox.CodeNotFound || c.Caller.Namespace != "" {
		return r.ID, err
	}
	past, _, lerr := s.cfg.Store.ListAudit(c.Ctx, store.AuditFilter{Team: c.Caller.Team, SandboxID: ref}, sandbox.Page{Limit: 1})
	if lerr != nil {
		return "", lerr
	}
	if len(past) == 0 {
		return "", err
	}
	return ref, nil
}

// held calls f for each record in these states of which the engine may hold something.
func (s *Service) held(ctx context.Context, states []sandbox.State, f func(store.Record)) error {
	for r, err := range store.All(ctx, s.cfg.Store.ListSandboxes, store.SandboxFilter{Held: true, States: states}) {
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		f(r)
	}
	return nil
}
