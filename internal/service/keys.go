package service

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/auth"
	"github.com/cove-sh/cove/sandbox"
)

// local is the key id of the user who runs the daemon. Ids of real keys differ.
var local = sandbox.LocalCaller().KeyID

// maxKeyName bounds the name of a key, in bytes.
const maxKeyName = 128

// CreateKey implements [sandbox.Keys]. Only the user who runs the daemon makes
// keys of other teams: with an admin key of one team nobody gets into another.
func (s *Service) CreateKey(ctx context.Context, req sandbox.CreateKeyRequest) (_ *sandbox.NewKey, err error) {
	v, err := s.enter(ctx, sandbox.ScopeAdmin, "key.create")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := v.checkKey(&req); err != nil {
		return nil, err
	}
	secret, hint := auth.GenerateKey(s.cfg.KeyPrefix)
	now := time.Now().UTC()
	k := sandbox.Key{
		ID: auth.NewKeyID(), Name: req.Name, Team: req.Team, Hint: hint, Scopes: req.Scopes,
		CreatedAt: now, ExpiresAt: expiry(now, req.ExpiresInSeconds),
	}
	v.detail = k.ID + " of team " + k.Team
	if err := s.cfg.Store.CreateKey(v.ctx, k, auth.Hash(secret.Reveal())); err != nil {
		return nil, err
	}
	return &sandbox.NewKey{Key: k, Secret: secret.Reveal()}, nil
}

// checkKey refuses what is wrong and fills in what was left out.
func (v *visit) checkKey(req *sandbox.CreateKeyRequest) error {
	if err := checkText("name", req.Name); err != nil {
		return err
	}
	if req.Name == "" || len(req.Name) > maxKeyName {
		return invalid("name has %d bytes; give the key a name of 1 to %d that says what it is for", len(req.Name), maxKeyName)
	}
	if req.Team == "" {
		req.Team = v.caller.Team
	}
	if err := checkName("team", req.Team); err != nil {
		return err
	}
	if req.Team != v.caller.Team && v.caller.KeyID != local {
		return sandbox.Errorf(sandbox.CodeForbidden, "only the user who runs the server makes keys of other teams; leave team out for a key of your own")
	}
	if err := checkScopes(req.Scopes); err != nil {
		return err
	}
	if len(req.Scopes) == 0 {
		req.Scopes = slices.DeleteFunc(sandbox.Scopes(), func(s sandbox.Scope) bool { return s == sandbox.ScopeAdmin })
	}
	slices.Sort(req.Scopes)
	req.Scopes = slices.Compact(req.Scopes)
	return checkSeconds("expires_in_seconds", &req.ExpiresInSeconds)
}

// keyTeam is the team whose keys the caller manages; "" is all.
func (v *visit) keyTeam() string {
	if v.caller.KeyID == local {
		return ""
	}
	return v.caller.Team
}

// ListKeys implements [sandbox.Keys].
func (s *Service) ListKeys(ctx context.Context, page sandbox.Page) (_ *sandbox.List[sandbox.Key], err error) {
	v, err := s.enter(ctx, sandbox.ScopeAdmin, "")
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	keys, next, err := s.cfg.Store.ListKeys(v.ctx, v.keyTeam(), page)
	if err != nil {
		return nil, err
	}
	return &sandbox.List[sandbox.Key]{Items: append([]sandbox.Key{}, keys...), NextCursor: next}, nil
}

// RevokeKey implements [sandbox.Keys].
func (s *Service) RevokeKey(ctx context.Context, ref string) (_ *sandbox.Key, err error) {
	v, err := s.enter(ctx, sandbox.ScopeAdmin, "key.revoke")
	v.atOnce = true
	defer v.leave(&err)
	if err != nil {
		return nil, err
	}
	if err := checkText("the key's id or name", ref); err != nil {
		return nil, err
	}
	v.detail = ref
	id, err := s.keyID(v.ctx, v.keyTeam(), ref)
	if err != nil {
		return nil, err
	}
	k, err := s.cfg.Store.RevokeKey(v.ctx, v.keyTeam(), id, time.Now())
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no key %s; list the keys to see which there are", quote(ref))
	}
	if err != nil {
		return nil, err
	}
	return &k, nil
}

// keyID returns the id of the key that ref names: ref itself if it is an id or
// nothing at all, and otherwise the id of the one valid key with that name.
func (s *Service) keyID(ctx context.Context, team, ref string) (string, error) {
	found := ref
	for page := (sandbox.Page{Limit: sandbox.MaxPageSize}); ; {
		keys, next, err := s.cfg.Store.ListKeys(ctx, team, page)
		if err != nil {
			return "", err
		}
		for _, k := range keys {
			if k.ID == ref {
				return ref, nil
			}
			if k.Name != ref || k.RevokedAt != nil {
				continue
			}
			if found != ref {
				return "", sandbox.Errorf(sandbox.CodeConflict, "several keys have the name %s; revoke each by its id", quote(ref))
			}
			found = k.ID
		}
		if page.Cursor = next; next == "" {
			return found, nil
		}
	}
}
