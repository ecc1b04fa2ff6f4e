package service

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// maxKeyName bounds the name of a key, in bytes.
const maxKeyName = 128

// CreateKey implements [sandbox.Keys]. Only the user who runs the daemon can make keys
// of other teams: an admin key of one team gives no access to another.
func (s *Service) CreateKey(ctx context.Context, req sandbox.CreateKeyRequest) (*sandbox.NewKey, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "key.create"), func(c *call.Call) (*sandbox.NewKey, error) {
		if err := s.checkKeyFor(c, &req); err != nil {
			return nil, err
		}
		secret, hint := auth.GenerateKey(s.cfg.KeyPrefix)
		now := time.Now().UTC()
		k := sandbox.Key{
			ID: auth.NewKeyID(), Name: req.Name, Team: req.Team, Hint: hint, Scopes: req.Scopes,
			CreatedAt: now, ExpiresAt: expiry(now, req.ExpiresInSeconds),
		}
		c.Detail = k.ID + " of team " + k.Team
		if err := s.cfg.Store.CreateKey(c.Ctx, k, auth.Hash(secret.Reveal())); err != nil {
			return nil, err
		}
		return &sandbox.NewKey{Key: k, Secret: secret.Reveal()}, nil
	})
}

// checkKeyFor refuses what is wrong and fills in what was left out.
func (s *Service) checkKeyFor(c *call.Call, req *sandbox.CreateKeyRequest) error {
	if err := validate.Text("name", req.Name); err != nil {
		return err
	}
	if req.Name == "" || len(req.Name) > maxKeyName {
		return validate.Errorf("name has %d bytes; use a name of 1 to %d bytes that says what the key is for", len(req.Name), maxKeyName)
	}
	if req.Team == "" {
		req.Team = c.Caller.Team
	}
	if err := validate.Name("team", req.Team); err != nil {
		return err
	}
	if req.Team != c.Caller.Team && c.Caller.KeyID != call.LocalKeyID {
		return sandbox.Errorf(sandbox.CodeForbidden, "only the user who runs the server can create keys of other teams; leave team out to create a key of your own")
	}
	if err := validate.Scopes(req.Scopes); err != nil {
		return err
	}
	if len(req.Scopes) == 0 {
		req.Scopes = slices.DeleteFunc(sandbox.Scopes(), func(s sandbox.Scope) bool { return s == sandbox.ScopeAdmin })
	}
	slices.Sort(req.Scopes)
	req.Scopes = slices.Compact(req.Scopes)
	return validate.Seconds("expires_in_seconds", &req.ExpiresInSeconds)
}

// keyTeamFor returns the team whose keys the caller manages; "" is all.
func (s *Service) keyTeamFor(c *call.Call) string {
	if c.Caller.KeyID == call.LocalKeyID {
		return ""
	}
	return c.Caller.Team
}

// ListKeys implements [sandbox.Keys].
func (s *Service) ListKeys(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Key], error) {
	return call.Do(ctx, s.gate, call.Unaudited(sandbox.ScopeAdmin), func(c *call.Call) (*sandbox.List[sandbox.Key], error) {
		keys, next, err := s.cfg.Store.ListKeys(c.Ctx, s.keyTeamFor(c), page)
		if err != nil {
			return nil, err
		}
		return &sandbox.List[sandbox.Key]{Items: append([]sandbox.Key{}, keys...), NextCursor: next}, nil
	})
}

// RevokeKey implements [sandbox.Keys].
func (s *Service) RevokeKey(ctx context.Context, ref string) (*sandbox.Key, error) {
	return call.Do(ctx, s.gate, call.AuditedAtOnce(sandbox.ScopeAdmin, "key.revoke"), func(c *call.Call) (*sandbox.Key, error) {
		if err := validate.Text("the key's id or name", ref); err != nil {
			return nil, err
		}
		c.Detail = ref
		id, err := s.keyID(c.Ctx, s.keyTeamFor(c), ref)
		if err != nil {
			return nil, err
		}
		k, err := s.cfg.Store.RevokeKey(c.Ctx, s.keyTeamFor(c), id, time.Now())
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no key %s; list the keys to see which exist", validate.Quote(ref))
		}
		if err != nil {
			return nil, err
		}
		return &k, nil
	})
}

// keyID returns the id of the key that ref names: the id of the one valid key with that
// name, or ref itself if it is an id or names no key.
func (s *Service) keyID(ctx context.Context, team, ref string) (string, error) {
	found := ref
	for k, err := range store.All(ctx, s.cfg.Store.ListKeys, team) {
		if err != nil {
			return "", err
		}
		if k.ID == ref {
			return ref, nil
		}
		if k.Name != ref || k.RevokedAt != nil {
			continue
		}
		if found != ref {
			return "", sandbox.Errorf(sandbox.CodeConflict, "several keys have the name %s; revoke each by its id", validate.Quote(ref))
		}
		found = k.ID
	}
	return found, nil
}
