package service

import (
	"context"
	"slices"

	"github.com/cove-sh/cove/internal/store"
	"github.com/cove-sh/cove/sandbox"
)

// view is a record as callers see it, with the time of last use as of now.
func (s *Service) view(r store.Record) *sandbox.Sandbox {
	sbx := r.Sandbox
	sbx.Secrets, sbx.Desktop = secretNames(&r), desktopOf(&r)
	if !sbx.State.Final() {
		sbx.Unenforced = append(slices.Clip(sbx.Unenforced), s.unenforcedMounts(&r)...)
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
func (s *Service) Get(ctx context.Context, ref string) (_ *sandbox.Sandbox, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	r, err := v.resolve(ref)
	if err != nil {
		return nil, err
	}
	return s.view(r), nil
}

var states = []sandbox.State{
	sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused,
	sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed,
}

// List implements [sandbox.Sandboxes].
func (s *Service) List(ctx context.Context, req sandbox.ListRequest) (_ *sandbox.List[sandbox.Sandbox], err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	f, err := v.filter(&req)
	if err != nil {
		return nil, err
	}
	records, next, err := s.cfg.Store.ListSandboxes(v.ctx, f, req.Page)
	if err != nil {
		return nil, err
	}
	list := &sandbox.List[sandbox.Sandbox]{Items: make([]sandbox.Sandbox, len(records)), NextCursor: next}
	for i, r := range records {
		list.Items[i] = *s.view(r)
	}
	return list, nil
}

// filter selects what a request asks for of what the caller may know of.
func (v *visit) filter(req *sandbox.ListRequest) (store.SandboxFilter, error) {
	f := store.SandboxFilter{Team: v.caller.Team, States: req.States, Metadata: req.Metadata, Name: req.Name, Template: req.Template}
	var err error
	if f.Namespace, err = v.namespace(req.Namespace); err != nil {
		return f, err
	}
	for _, st := range req.States {
		if !slices.Contains(states, st) {
			return f, invalid("state %s is not known; use some of %v", quote(string(st)), states)
		}
	}
	if len(f.States) == 0 {
		f.States = slices.DeleteFunc(slices.Clone(states), sandbox.State.Final)
	}
	if req.Name != "" {
		if err := checkName("name", req.Name); err != nil {
			return f, err
		}
	}
	if req.Template != "" {
		if err := checkTemplateName(req.Template); err != nil {
			return f, err
		}
	}
	return f, checkMetadata(req.Metadata)
}

// Stats implements [sandbox.Sandboxes]. Processes is counted inside; it is 0
// when the sandbox is too busy to say.
func (s *Service) Stats(ctx context.Context, ref string) (_ *sandbox.Stats, err error) {
	v, err := s.enter(ctx, sandbox.ScopeSandboxesRead, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	r, err := v.resolve(ref)
	if err != nil {
		return nil, err
	}
	h, err := s.openRecord(v.ctx, &r)
	if err != nil {
		return nil, err
	}
	return s.usage(v.ctx, h, &r)
}

// Audit implements [sandbox.Sandboxes].
func (s *Service) Audit(ctx context.Context, req sandbox.AuditRequest) (_ *sandbox.List[sandbox.AuditEvent], err error) {
	scope := sandbox.ScopeSandboxesRead
	if req.SandboxID == "" {
		scope = sandbox.ScopeAdmin
	}
	v, err := s.enter(ctx, scope, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := s.audit.Flush(v.ctx); err != nil {
		return nil, err
	}
	f := store.AuditFilter{Team: v.caller.Team}
	if req.SandboxID == "" {
		if err := v.needTeam("the record of what was done"); err != nil {
			return nil, err
		}
	} else {
		if f.SandboxID, err = s.auditSubject(v, req.SandboxID); err != nil {
			return nil, err
		}
	}
	events, next, err := s.cfg.Store.ListAudit(v.ctx, f, req.Page)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[sandbox.AuditEvent]{Items: append([]sandbox.AuditEvent{}, events...), NextCursor: next}, nil
}

// auditSubject returns the id of a sandbox that the team has, or had: events
// outlive the sandbox's own record, but do not tell its namespace.
func (s *Service) auditSubject(v *visit, ref string) (string, error) {
	r, err := v.resolve(ref)
	if err == nil || sandbox.CodeOf(err) != sandbox.CodeNotFound || v.caller.Namespace != "" {
		return r.ID, err
	}
	past, _, lerr := s.cfg.Store.ListAudit(v.ctx, store.AuditFilter{Team: v.caller.Team, SandboxID: ref}, sandbox.Page{Limit: 1})
	if lerr != nil {
		return "", lerr
	}
	if len(past) == 0 {
		return "", err
	}
	return ref, nil
}
